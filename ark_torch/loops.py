"""A `while_loop` of a graph: one launch for all iterations, or its body, compiled as any graph, called for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from ark_torch.eager_random import leave_random
from ark_torch.errors import Unsupported
from ark_torch.graph_json import to_text
from ark_torch.loop_nodes import LoopNode, find_loops, replace_loop
from ark_torch.loop_runs import OneByOne, OneLaunch, take_writable
from ark_torch.lower_loop import lower_loop
from ark_torch.records import REGISTRY, GraphRecord, InternalCause, LoopRow, log
from ark_torch.segment import make_executable


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
        writable = take_writable()
        if self.launch is not None:
            try:
                return self.launch(carried, additional, first, writable)
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
        if isinstance(row.cause, InternalCause):
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
        if target is None:
            raise Unsupported(f"a loop on {device}")
        if loop.stacked:
            raise Unsupported("a loop that keeps every iteration's values, for a backward pass")
        if options.fallback_random and leave_random([*loop.cond.graph.nodes, *loop.body.graph.nodes]):
            raise Unsupported("eager's random numbers in a loop (fallback_random)")
        written = {len(loop.carried) + place for place in loop.written}
        lowered = lower_loop(name, loop.cond, loop.body, written, device)
        native = {**options.for_graph(target, device), "name": name}
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
        row.cause, row.node = InternalCause.of(error), loop.node
    return row, None


__all__ = ["Loop", "log_one_by_one", "replace_loops"]
