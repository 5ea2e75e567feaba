"""What `ark_torch.generate` was asked for: greedy search or draws, with a static cache. An error names the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ark_torch.errors import Unsupported
from ark_torch.sampling import Processor
from ark_torch.sampling_checks import read_processors

_REFUSED = (  # of a GenerationConfig
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
    "prefill_chunk_size",
    "compile_config",
    "disable_compile",
)
CACHES = ("cache", "past_key_values")  # transformers has the second name to 5.23, and takes it later
_TAKEN = (
    "attention_mask",
    "position_ids",
    *CACHES,
    "use_cache",
    "logits_to_keep",
)  # of the model's arguments


@dataclass(frozen=True)
class Request:
    """`ids` are the prompts [batch, length], `mask` is 0 where they are padding, `positions` has a batch of 1 where all
    rows have the same."""

    ids: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    cache: object  # a StaticCache
    max_length: int  # of prompt and new tokens
    eos: list[int]
    pad: int  # what follows a row's end
    logits_to_keep: int | None
    sample: bool
    processors: tuple[Processor, ...]


def check_request(model, ids: torch.Tensor, processors, criteria, config, arguments: dict) -> Request:
    """Raises Unsupported, and ValueError where the cache is too short."""
    _check_config(model, config)
    max_length, eos = _read_criteria(criteria)
    for name, value in arguments.items():
        if name not in _TAKEN and value is not None and value is not False:
            raise refused(f"argument {name}")
    if ids.dim() != 2 or ids.size(1) == 0:
        raise ValueError(
            f"generate: input_ids are {list(ids.shape)}, expected [batch, length] with a length of 1 or more"
        )
    processors = read_processors(processors, ids, refused)
    mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
    for name, value in (("attention_mask", mask), ("position_ids", positions)):
        if value is not None and value.size(-1) != ids.size(1):
            raise ValueError(f"generate: {name} is {list(value.shape)}, expected {list(ids.shape)}, as input_ids are")
    cache = given_cache(arguments)
    _check_cache(cache, max_length)
    pad = getattr(config, "_pad_token_tensor", None)
    return Request(
        ids,
        mask,
        positions,
        cache,
        max_length,
        eos,
        0 if pad is None else int(pad),
        arguments.get("logits_to_keep"),
        bool(config.do_sample),
        processors,
    )


def given_cache(arguments: dict):
    return next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)


def refused(what: str) -> Unsupported:
    return Unsupported(f"ark_torch.generate decodes one sequence a row with a static cache, it has no {what}")


def _check_config(model, config) -> None:
    mode = config.get_generation_mode()
    if mode not in ("greedy_search", "sample"):
        raise refused(f"{mode.value} (do_sample={config.do_sample}, num_beams={config.num_beams})")
    if model.config.is_encoder_decoder:
        raise refused(f"encoder ({type(model).__name__})")
    for name in _REFUSED:
        if getattr(config, name, None):
            raise refused(f"{name}={getattr(config, name)!r}")


def _read_criteria(criteria) -> tuple[int, list[int]]:
    """The greatest length, and the tokens that end a row."""
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    lengths, eos = [], []
    for one in criteria:
        if type(one) is MaxLengthCriteria:
            lengths.append(one.max_length)
        elif type(one) is EosTokenCriteria:
            eos += one.eos_token_id.tolist()
        else:
            raise refused(f"stopping criterion {type(one).__name__}")
    if not lengths:
        raise ValueError("generate: no length to stop at, expected max_length or max_new_tokens")
    return min(lengths), eos


def _check_cache(cache, max_length: int) -> None:
    from transformers.cache_utils import StaticCache, StaticLayer

    if type(cache) is not StaticCache:
        found = "cache (use_cache=False)" if cache is None else f"{type(cache).__name__}"
        raise refused(f'{found}; expected cache_implementation="static"')
    for layer in cache.layers:
        if type(layer) is not StaticLayer or not hasattr(layer, "cumulative_length"):
            raise refused(f"cache layer {type(layer).__name__}")
        if layer.max_cache_len < max_length - 1:
            raise ValueError(
                f"generate: the cache holds {layer.max_cache_len} tokens, expected {max_length - 1} or more for a "
                f"length of {max_length}"
            )
        if layer.is_initialized and (held := int(layer.cumulative_length)):
            raise refused(f"cache that holds tokens already ({held} of them)")
    if getattr(cache, "offloading", False):
        raise refused("cache that is offloaded")


__all__ = ["Request", "check_request", "given_cache", "refused"]
