"""transformers' logits processors as `ark_torch.sampling` has them, by their classes; others are refused."""

from __future__ import annotations

import torch
from transformers.generation import logits_process as theirs

from ark_torch.sampling import Processor


def read_processors(processors, ids: torch.Tensor, refused) -> tuple[Processor, ...]:
    """In their order, for prompts `ids` [batch, length]. `refused(what)` makes the error for what has none here."""
    found = tuple(_read(one, ids.device, refused) for one in processors or ())
    for one in found:
        if one.kind == "repetition_penalty" and bool((one.values[1] > ids.size(1)).any()):
            raise refused(f"repetition penalty that leaves out more than the {ids.size(1)} tokens of the prompt")
    if sum(one.kind == "repetition_penalty" for one in found) > 1:
        raise refused("second repetition penalty")
    return found


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
        unread = torch.as_tensor(0 if one.prompt_ignore_length is None else one.prompt_ignore_length).reshape(-1)
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
