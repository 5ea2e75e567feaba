"""Choosing the next token from scores, in ops that run inside a loop: what transformers' logits processors do, told by
their classes, and a draw by Gumbel noise.

Top-k and top-p keep the tokens that are nearest to the best one. How far the last kept one is away is found without
sorting (`row_select`). Distances are float32, counted in whole steps of 2**-22 below 64: tokens of the same step are
kept together, and so are those that are farther away than that, whose probability is below 2e-28.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ark_torch.row_select import steps


class Processor(NamedTuple):
    """One logits processor: its kind, a key of `_APPLY`, and what that takes, tensors of rank 0 or 1. Kinds are
    compiled in, other values of the same shapes compile nothing."""

    kind: str
    values: tuple[torch.Tensor, ...]


@dataclass
class _Scores:
    """Of one step, float32 [batch, vocabulary]: -inf where a token is taken away. `top` [batch, 1] is the largest."""

    values: torch.Tensor
    length: torch.Tensor  # int64 []: tokens of a row so far, padding included
    seen: torch.Tensor | None  # bool [batch, vocabulary]: tokens of the row so far
    top: torch.Tensor | None = None
    some: bool = False  # most may have been taken away

    def distances(self) -> torch.Tensor:
        """How far below the largest, at least 0; the top stays what it is when others are taken away."""
        if self.top is None:
            self.top = self.values.amax(-1, keepdim=True)
        return self.top - self.values

    def keep(self, kept: torch.Tensor) -> None:
        self.values, self.some = self.values.where(kept, -torch.inf), True

    def change(self, values: torch.Tensor) -> None:
        self.values, self.top = values, None


def _per_row(value: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """[batch], of a tensor of rank 0 or 1."""
    return value.expand(distances.size(0))


def _near_enough(distances: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Fewer than k tokens are nearer."""
    return steps(distances) <= torch.ops.ark.select_by_count(distances, _per_row(k, distances))[:, None]


def _temperature(scores: _Scores, temperature: torch.Tensor) -> None:
    scores.change(scores.values / temperature)


def _top_k(scores: _Scores, k: torch.Tensor) -> None:
    scores.keep(_near_enough(scores.distances(), k))


def _top_p(scores: _Scores, rest: torch.Tensor, least: torch.Tensor | None = None) -> None:
    """`rest` is 1 - p: a token stays if it and all that are not nearer have more than that. `least` are how many stay
    in any case; the nearest does."""
    distances = scores.distances()
    last = torch.ops.ark.select_by_mass(distances, _per_row(rest, distances))[:, None]
    kept = steps(distances) <= last
    scores.keep(kept if least is None else kept | _near_enough(distances, least))


def _min_p(scores: _Scores, p: torch.Tensor, least: torch.Tensor | None = None) -> None:
    distances = scores.distances()
    likely = ~(torch.exp(-distances) < p)  # with an infinity NaN stays, and fails the draw
    scores.keep(likely if least is None else likely | _near_enough(distances, least))


def _repetition_penalty(scores: _Scores, penalty: torch.Tensor, unread: torch.Tensor) -> None:
    """`unread`: see `seen_tokens`."""
    x = scores.values
    scores.change(torch.where(scores.seen, torch.where(x < 0, x * penalty, x / penalty), x))


def _min_length(scores: _Scores, least: torch.Tensor, eos: torch.Tensor) -> None:
    """Rows shorter than `least` do not end."""
    tokens = torch.arange(scores.values.size(-1), device=eos.device)
    ends = (tokens[:, None] == eos).any(-1)
    scores.change(scores.values.masked_fill(ends & (scores.length < least), -torch.inf))


_APPLY: dict[str, Callable] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "repetition_penalty": _repetition_penalty,
    "min_length": _min_length,
}


def _process(scores: torch.Tensor, processors, length: torch.Tensor, seen: torch.Tensor | None) -> _Scores:
    state = _Scores(scores, length, seen)
    for processor in processors:
        _APPLY[processor.kind](state, *processor.values)
    return state


def process(scores: torch.Tensor, processors, length: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """float32 [batch, vocabulary]: the scores with all processors applied, in their order."""
    return _process(scores, processors, length, seen).values


def gumbel_like(scores: torch.Tensor) -> torch.Tensor:
    """Noise G with P(G <= g) = exp(-exp(-g)): the largest of score + noise is a token with probability softmax(score)
    (Gumbel 1954). Uniform numbers of 48 bits, fine where they are small, which is where the noise is large."""
    uniform = torch.rand_like(scores) + torch.rand_like(scores) * 2.0**-24
    return -torch.log(-torch.log1p(-uniform.clamp(2.0**-49, 1 - 2.0**-24)))


def seen_tokens(ids: torch.Tensor, vocabulary: int, unread: torch.Tensor) -> torch.Tensor:
    """bool [batch, vocabulary]: the tokens among `ids` [batch, length], but for so many at the beginning of each row
    (`unread`, int64 [batch] or [1]) and those that the scores do not have."""
    places = torch.arange(ids.size(1), device=ids.device)
    known = (places >= unread[:, None]) & (ids < vocabulary)
    none = torch.zeros(ids.size(0), vocabulary + 1, dtype=torch.bool, device=ids.device)
    return none.scatter(1, ids.where(known, vocabulary), True)[:, :vocabulary]


def unread_tokens(processors) -> torch.Tensor | None:
    """For `seen_tokens`; None where no processor asks for tokens that were seen."""
    return next((one.values[1] for one in processors if one.kind == "repetition_penalty"), None)


def most_likely(scores: torch.Tensor, processors, length: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """int64 [batch]."""
    return process(scores, processors, length, seen).argmax(-1)


def _is_top_p_alone(last: Processor, scores: _Scores) -> bool:
    """Nothing else takes tokens away, by what is known of the kept ones. One op draws then: the first token, in the
    order of score + noise, that top-p keeps."""
    return last.kind == "top_p" and len(last.values) == 1 and not scores.some


def draw(scores: torch.Tensor, processors, length: torch.Tensor, seen: torch.Tensor | None):
    """int64 [batch], tokens drawn from softmax of the processed scores; and bool [batch]: whether the row has one, no
    NaN, and something to draw from."""
    *others, last = processors or (None,)
    state = _process(scores, others, length, seen)
    if last is not None and not _is_top_p_alone(last, state):
        _APPLY[last.kind](state, *last.values)
    elif last is not None:
        share = _per_row(last.values[0], state.values)
        token, best = torch.ops.ark.draw_by_mass(state.values, gumbel_like(scores), share)
        return token, best.isfinite()
    noisy = state.values + gumbel_like(scores)
    if state.some:  # noise changes nothing of the others: where a vector has none but those, the kernel draws none
        noisy = noisy.where(state.values > -torch.inf, state.values)
    best, token = noisy.max(-1)
    return token, best.isfinite()  # noise is: so is the largest, where one was


__all__ = ["Processor", "draw", "most_likely", "process", "seen_tokens", "unread_tokens"]
