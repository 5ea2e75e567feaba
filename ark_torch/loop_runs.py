"""The two ways in which a loop's iterations run: calls of compiled graphs, or one launch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch

from ark_torch._compat import size_expr
from ark_torch.lower_loop import LoopGraph
from ark_torch.lowering import SEED

FOREVER = 2**62  # iterations: the condition ends the loop


class _Thread(threading.local):
    writable: frozenset = frozenset()  # addresses


_thread = _Thread()


@contextlib.contextmanager
def writing_over(tensors: list[torch.Tensor]):
    """The first loop that this thread runs within may keep what it carries where it was given, in these tensors; they
    share no memory."""
    _thread.writable = frozenset(x.data_ptr() for x in tensors)
    try:
        yield
    finally:
        _thread.writable = frozenset()


def take_writable() -> frozenset:
    found, _thread.writable = _thread.writable, frozenset()
    return found


class OneByOne:
    """The iterations as calls of two compiled graphs."""

    def __init__(self, cond: Callable, body: Callable, written: list[int], stacked: bool):
        self.cond, self.body, self.written, self.stacked = cond, body, written, stacked

    def __call__(self, carried: tuple, additional: tuple) -> tuple:
        rest = list(additional)
        for place in self.written:
            rest[place] = rest[place].clone()
        values, kept, iteration = list(carried), [], 0
        while self._goes_on([*values, *rest], iteration):
            values = list(_noted(self.body, [*values, *rest], iteration))
            kept.append(values)
            iteration += 1
        if self.stacked:
            return tuple(_stacked(column) for column in zip(*(kept or [values])))
        return own_tensors([*carried, *additional], [*values, *(rest[place] for place in self.written)])

    def _goes_on(self, values: list, iteration: int) -> bool:
        return bool(_noted(self.cond, values, iteration)[0])


def _noted(function: Callable, values: list, iteration: int):
    """What the function returns; an error of it names the iteration."""
    try:
        return function(values)
    except Exception as error:
        error.add_note(f"in iteration {iteration} of a while_loop")
        raise


def _stacked(values: tuple):
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else values[-1]


def own_tensors(given: list, results: list) -> tuple:
    """Copies of results that share memory with an argument or an earlier result."""
    seen = {t.untyped_storage().data_ptr() for t in given if isinstance(t, torch.Tensor)}
    found = []
    for value in results:
        if isinstance(value, torch.Tensor):
            value = value.clone() if value.untyped_storage().data_ptr() in seen else value
            seen.add(value.untyped_storage().data_ptr())
        found.append(value)
    return tuple(found)


class OneLaunch:
    """The iterations as one launch of a plan. Raises Unsupported where the planner declines the sizes. Of what it
    carries it makes copies, but for tensors at the addresses `writable`."""

    def __init__(self, lowered: LoopGraph, executable, written: list[int]):
        self.lowered, self.executable, self.written = lowered, executable, written
        self.nodes = lowered.nodes
        self.strides = [tuple(map(size_expr, node.meta["val"].stride())) for node in lowered.inputs]

    def __call__(self, carried: tuple, additional: tuple, first: torch.Tensor, writable: frozenset) -> tuple:
        given, stored = [*carried, *additional], set(self.lowered.stored)
        over = {place for place, x in enumerate(carried) if isinstance(x, torch.Tensor) and x.data_ptr() in writable}
        numbers = {name: _number(given, *source) for name, source in self.lowered.sources.items()}
        copied = stored - over
        tensors = {
            place: _laid_out(given[place], strides, numbers, place in copied)
            for place, strides in zip(self.lowered.places, self.strides)
        }
        go = first.reshape(1).expand(2).contiguous()
        count = [torch.zeros(1, dtype=torch.int64, device=go.device)] if self.lowered.has_count else []
        items = list(tensors.values())
        for place, key in self.lowered.extras:
            data = torch.empty((), dtype=torch.int64, device=go.device)
            items.insert(place, data.random_() if key == SEED else data.fill_(_evaluated(key, numbers)))
        self.executable.loop([*items, go, *count, *(numbers[s] for s in self.lowered.symbols)], FOREVER)
        results = [*range(len(carried)), *(len(carried) + place for place in self.written)]
        return tuple(tensors[place] if place in stored else given[place].clone() for place in results)


def _number(given: list, place: int, dim: int | None) -> int:
    return given[place] if dim is None else given[place].size(dim)


def _laid_out(tensor: torch.Tensor, strides: tuple, numbers: dict[str, int], copied: bool) -> torch.Tensor:
    """The tensor in the traced layout; `copied`: in memory of its own. A model's loop has hundreds of them."""
    if not copied and tensor.stride() == strides:
        return tensor
    strides = tuple(s if isinstance(s, int) else _evaluated(s, numbers) for s in strides)
    fits = all(a == w or size == 1 for a, w, size in zip(tensor.stride(), strides, tensor.shape))
    if fits and not copied:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _evaluated(expr, numbers: dict[str, int]) -> int:
    return int(expr.subs({s: numbers[s.name] for s in expr.free_symbols}))


__all__ = ["OneByOne", "OneLaunch", "own_tensors", "take_writable", "writing_over"]
