"""transformers' logits processors as `ark_torch.sampling` has them, by their classes; others are refused."""

from __future__ import annotations

import torch
from transformers.generation import logits_process as theirs

from ark_torch.sampling import Processor


def read_processors(processors, ids: torch.Tensor, refused) -> tuple[Processor, ...]:
    """In their order, for prompts `ids` [batch, length]. `refused(what)` makes the error for what has none here."""
    given = list(processors or ())
    if given and type(given[-1]) is theirs.LogitNormalization:
        given.pop()  # neither the likeliest token nor a draw changes by it
    found = tuple(_read(one, ids.device, refused) for one in given)
    penalties = [one for one in found if one.kind == "repetition_penalty"]
    if len(penalties) > 1:
        raise refused("second repetition penalty")
    for one in penalties:
        _check_unread(one.values[1], ids, refused)
    return found


def _check_unread(unread: torch.Tensor, ids: torch.Tensor, refused) -> None:
    rows, length = ids.shape
    if unread.numel() not in (1, rows):
        raise ValueError(
            f"generate: prompt_ignore_length of a repetition penalty has {unread.numel()} elements, expected one for "
            f"each of {rows} rows"
        )
    if bool((unread > length).any()):
        raise refused(f"repetition penalty that leaves out more than the {length} tokens of the prompt")


def _read(one, device: torch.device, refused) -> Processor:
    kind, values = _kind_and_values(one, refused)
    types = {float: torch.float32, int: torch.int64}
    return Processor(kind, tuple(torch.as_tensor(x, dtype=types.get(type(x)), device=device) for x in values))


def _kind_and_values(one, refused) -> tuple[str, tuple]:
    name = type(one).__name__
    if getattr(one, "filter_value", -torch.inf) != -torch.inf:
        raise refused(f"logits processor {name} with filter_value={one.filter_value}")
    if type(one) is theirs.TemperatureLogitsWarper:
        return "temperature", (float(one.temperature),)
    if type(one) is theirs.TopKLogitsWarper:
        return "top_k", (int(one.top_k),)
    if type(one) is theirs.TopPLogitsWarper:
        return _with_least("top_p", 1 - float(one.top_p), one.min_tokens_to_keep)
    if type(one) is theirs.MinPLogitsWarper:
        return _with_least("min_p", float(one.min_p), one.min_tokens_to_keep)
    if type(one) is theirs.RepetitionPenaltyLogitsProcessor:
        unread = one.prompt_ignore_length
        unread = unread if isinstance(unread, torch.Tensor) else torch.tensor([unread or 0])
        return "repetition_penalty", (float(one.penalty), unread)
    if type(one) is theirs.MinLengthLogitsProcessor:
        return "min_length", (one.min_length, one.eos_token_id)
    if type(one) is theirs.MinNewTokensLengthLogitsProcessor:
        return "min_length", (one.prompt_length_to_skip + one.min_new_tokens, one.eos_token_id)
    raise refused(f"logits processor {name}")


def _with_least(kind: str, value: float, least: int) -> tuple[str, tuple]:
    """One token stays by itself."""
    return kind, (value,) if least == 1 else (value, least)


__all__ = ["read_processors"]
