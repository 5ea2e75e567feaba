"""A `while_loop` of a graph: one launch for all iterations, or its body, compiled as any graph, called for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from ark_torch._compat import size_expr
from ark_torch.dump import dump_folder
from ark_torch.errors import Unsupported
from ark_torch.graph_json import to_text
from ark_torch.loop_nodes import LoopNode, find_loops, replace_loop
from ark_torch.lower_loop import LoopGraph, lower_loop
from ark_torch.records import REGISTRY, GraphRecord, LoopRow, log
from ark_torch.segment import make_executable

FOREVER = 2**62  # iterations: the condition ends the loop


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
        return _own([*carried, *additional], [*values, *(rest[place] for place in self.written)])

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


def _own(given: list, results: list) -> tuple:
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
    """The iterations as one launch of a plan. Raises Unsupported where the planner declines the sizes."""

    def __init__(self, lowered: LoopGraph, executable, written: list[int]):
        self.lowered, self.executable, self.written = lowered, executable, written
        self.nodes = lowered.nodes

    def __call__(self, carried: tuple, additional: tuple, first: torch.Tensor) -> tuple:
        given, stored = [*carried, *additional], set(self.lowered.stored)
        numbers = {name: _number(given, *source) for name, source in self.lowered.sources.items()}
        tensors = {
            place: _laid_out(given[place], node.meta["val"], numbers, place in stored)
            for place, node in zip(self.lowered.places, self.lowered.inputs)
        }
        go = first.reshape(1).expand(2).contiguous()
        count = torch.zeros(1, dtype=torch.int64)
        self.executable.loop([*tensors.values(), go, count, *(numbers[s] for s in self.lowered.symbols)], FOREVER)
        results = [*range(len(carried)), *(len(carried) + place for place in self.written)]
        return tuple(tensors[place] if place in stored else given[place].clone() for place in results)


def _number(given: list, place: int, dim: int | None) -> int:
    return given[place] if dim is None else given[place].size(dim)


def _laid_out(tensor: torch.Tensor, val: torch.Tensor, numbers: dict[str, int], copied: bool) -> torch.Tensor:
    """The tensor in the traced layout; `copied`: in memory of its own."""
    strides = tuple(_value(s, numbers) for s in val.stride())
    fits = all(a == w or size == 1 for a, w, size in zip(tensor.stride(), strides, tensor.shape))
    if fits and not copied:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _value(size, numbers: dict[str, int]) -> int:
    expr = size_expr(size)
    return expr if isinstance(expr, int) else int(expr.subs({s: numbers[s.name] for s in expr.free_symbols}))


class Loop:
    """The callable of a loop's step."""

    def __init__(self, name: str, launch: OneLaunch | None, make_calls: Callable[[], OneByOne], row: LoopRow):
        self.__name__ = name
        self.launch, self.make_calls, self.row = launch, make_calls, row
        self.calls: OneByOne | None = None
        self.strict, self.counts = False, None

    def __str__(self) -> str:
        return "while_loop"

    @property
    def has_effect(self) -> bool:
        return self.launch is None

    def __call__(self, carried: tuple, additional: tuple, first: torch.Tensor | None) -> tuple:
        if self.launch is not None:
            try:
                return self.launch(carried, additional, first)
            except Unsupported as error:
                self._fall_back(error)
        return self.one_by_one()(carried, additional)

    def one_by_one(self) -> OneByOne:
        if self.calls is None:
            self.calls = self.make_calls()
        return self.calls

    def _fall_back(self, error: Unsupported) -> None:
        if self.strict:
            raise Unsupported(f"strict: {self.row.name} runs once per iteration for these sizes: {error}") from error
        if self.counts is not None:
            self.counts[str(error)] += 1
        REGISTRY.runtime_fallbacks[str(error)] += 1
        log_one_by_one(self.row.name, str(error))


def log_one_by_one(name: str, cause: str) -> None:
    if REGISTRY.first(f"loop: {cause}"):
        log.warning("a while_loop runs once per iteration: %s (first seen in %s)", cause, name)


def replace_loops(
    gm: fx.GraphModule, options, record: GraphRecord, device: torch.device, target: str | None, compile_graph: Callable
) -> None:
    """Every `while_loop` of the graph becomes a call of a `Loop`."""
    for number, node in enumerate(find_loops(gm)):
        name = f"{record.name}_loop{number}"
        row, launch = _plan(name, node, options, device, target)
        record.loops.append(row)
        if row.cause.startswith("internal error"):
            record.internal_errors.append(row.cause)

        def make_calls(node=node, name=name):
            graphs = []
            for part, graph in (("cond", node.cond), ("body", node.body)):
                own = GraphRecord(f"{name}_{part}", record.kind)
                graphs.append(compile_graph(graph, options, own))
                REGISTRY.add(own)
            return OneByOne(*graphs, node.written, node.stacked)

        loop = Loop(name, launch, make_calls, row)
        loop.strict, loop.counts = options.strict, record.runtime_fallbacks
        replace_loop(gm, node, loop, ask=launch is not None)
        if launch is None and not options.strict:  # else nothing runs
            loop.one_by_one()


def _plan(name: str, loop: LoopNode, options, device: torch.device, target: str | None):
    """The row that explain shows, and the launch; None where each iteration is a call."""
    row = LoopRow(name)
    try:
        if target != "host":
            raise Unsupported(f"a loop on {device} (in one launch: on the CPU)")
        if loop.stacked:
            raise Unsupported("a loop that keeps every iteration's values, for a backward pass")
        lowered = lower_loop(name, loop.cond, loop.body, len(loop.carried), device)
        native = {**options.native, "name": name, "dump": dump_folder()}
        executable = make_executable(to_text(lowered.graph), target, device.index or 0, native)
        if all(symbol in lowered.hints for symbol in lowered.symbols):
            executable.prepare([lowered.hints[symbol] for symbol in lowered.symbols])
        return row, OneLaunch(lowered, executable, loop.written)
    except Unsupported as error:
        row.cause = error.args[0]
        row.node = error.args[1] if len(error.args) > 1 else loop.node
    except Exception as error:  # a bug must not cost the user the model
        if options.strict:
            raise
        log.error("internal error in %s, its iterations run one by one: %s", name, error)
        row.cause, row.node = f"internal error: {error}", loop.node
    return row, None


__all__ = ["Loop", "log_one_by_one", "replace_loops"]
