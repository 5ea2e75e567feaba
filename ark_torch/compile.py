"""An FX graph to one callable: native segments and ATen steps in order, memory dropped after its last use."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch import (  # noqa: F401 - they fill the table
    lower_attention,
    lower_collective,
    lower_create,
    lower_foreach,
    lower_index,
    lower_matmul,
    lower_pointwise,
    lower_reduce,
    lower_scatter,
    lower_select,
    lower_view,
)
from ark_torch._compat import alias_offsets_are_relative
from ark_torch.assertions import Assertion
from ark_torch.causes import count_fallbacks, decline, probe_nodes, unknown_size
from ark_torch.costs import costs_for
from ark_torch.dump import dump_call, dump_folder, dump_fx
from ark_torch.eager_random import leave_random
from ark_torch.emitter import Emitter
from ark_torch.errors import TooLong, Unsupported
from ark_torch.groups import has_exchange, is_uneven, may_be_empty, ranks_meet, split_waits
from ark_torch.host_scalars import move_host_scalars
from ark_torch.loops import Loop, replace_loops
from ark_torch.lowering import SEED
from ark_torch.ordering import order_edges, roots
from ark_torch.partition import Step, is_constant, partition
from ark_torch.records import GraphRecord, InternalCause, log
from ark_torch.runtime_asserts import keep_assertions
from ark_torch.segment import NativeSegment, blamed_node, compile_segment, lower_segment
from ark_torch.split_products import split_products
from ark_torch.steps import cuts_of, outputs_of, own_views, release_small, split_at, split_wide
from ark_torch.symbols import SymbolTable
from ark_torch.targets import check_workers, graph_device, resolve_target

MAX_RETRIES = 64  # nodes that the planner may decline, one after the other, before the segment goes to ATen as a whole


class SizeOfValues(Unsupported):
    """Of a whole step: none of its nodes is to blame."""


@dataclass(frozen=True)
class CompileOptions:
    """What the caller asked for. `native` goes to CompiledGraph as it is."""

    strict: bool = False
    target: str = "auto"
    fallback_random: bool = False
    costs: str = "auto"
    native: dict = field(default_factory=dict)

    def for_graph(self, target: str, device: torch.device) -> dict:
        """CompiledGraph's options for a graph on this device."""
        return {**self.native, "costs": costs_for(self.costs, target, device), "dump": dump_folder()}


def compile_graph(
    gm: fx.GraphModule, options: CompileOptions, record: GraphRecord, assertions: tuple[Assertion, ...] = ()
):
    """The callable: takes a list of arguments, which it clears, and returns a list. `assertions` are the user's."""
    keep_assertions(gm.graph, assertions)
    dump_fx(gm, record.name)
    compiler = _GraphCompiler(gm, options, record)
    function = compiler.build()
    dump_call(record.name, function.source)
    function._boxed_call = True
    function.record = record
    return function


class _GraphCompiler:
    def __init__(self, gm: fx.GraphModule, options: CompileOptions, record: GraphRecord):
        self.gm, self.options, self.record = gm, options, record
        self.device = graph_device(gm)
        self.target = resolve_target(options.target, self.device)
        check_workers(options.native.get("workers"), self.target, self.device)
        replace_loops(gm, options, record, self.device, self.target, compile_graph)
        move_host_scalars(gm.graph, self.device)
        split_waits(gm.graph)
        split_products(gm.graph)
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.result = next(n for n in gm.graph.nodes if n.op == "output").args[0]
        self.returned: set[fx.Node] = set()
        fx.map_arg(self.result, self.returned.add)
        self.owner = roots(gm.graph)
        self.symbols = SymbolTable(gm.graph)
        self.causes: dict[fx.Node, str] = {}
        self.cuts: set[fx.Node] = set()  # where native steps begin anew
        self.nodes = [n for n in gm.graph.nodes if n.op in ("call_function", "get_attr") and not self._floats(n)]
        record.num_nodes = len(self.nodes)

    def _floats(self, node: fx.Node) -> bool:
        """Made where it is needed: rank-0 constants and sizes that follow from the symbols."""
        return is_constant(node) or self.symbols.knows(node)

    def build(self):
        self.causes = leave_random(self.nodes) if self.options.fallback_random else {}
        loops = [n for n in self.nodes if isinstance(n.target, Loop)]
        self.causes.update({n: n.target.row.cause for n in loops})
        probe_nodes(self.nodes, self.device, self.target, self.causes)
        self.record.internal_errors += [c for c in self.causes.values() if isinstance(c, InternalCause)]
        self.uneven = any(is_uneven(n) for n in self.nodes if n not in self.causes)
        self.meets = ranks_meet(self.nodes, self.device)
        self._leave_offsets()
        steps, segments = self._plan()
        launches = [n.target.launch for n in loops if n.target.launch is not None]
        self.record.segments = [*segments.values(), *launches]
        count_fallbacks(steps, self.causes, self.record, self.options.strict)
        emitter = Emitter(self.gm, self.symbols, self.device)
        return emitter.emit(self.record.name, self.placeholders, steps, segments, self.result)

    def _leave_offsets(self) -> None:
        """With symbols, AOTAutograd makes an output that is a view of a written input anew, by the storage offset of
        what the graph returned: a copy that keeps its input's offset is ATen's. Where that counts from the input's own
        one (`alias_offsets_are_relative`), ark's copy, which begins at 0, is right, and views of ATen's are ATen's, by
        which AOTAutograd finds its way without the offset."""
        if not self.symbols.sources:
            return
        for root in {self.owner[node] for node in self.returned if node.op != "placeholder"}:
            val = root.meta.get("val")
            if root.op != "call_function" or not isinstance(val, torch.Tensor) or val.layout != torch.strided:
                continue
            if isinstance(val.storage_offset(), int) and val.storage_offset() == 0:
                continue
            if not alias_offsets_are_relative():
                self.causes.setdefault(root, "a copy with its input's storage offset")
            elif root in self.causes:
                for view in (node for node in self.nodes if self.owner.get(node) is root):
                    self.causes.setdefault(view, "a view of ATen's copy with its input's storage offset")

    def _plan(self) -> tuple[list[Step], dict[int, NativeSegment]]:
        """Partition, lower, compile; a node that the planner declines becomes an ATen step and the cut starts again."""
        built: dict[tuple, NativeSegment] = {}
        for attempt in range(MAX_RETRIES + len(self.nodes)):
            steps = partition(self.nodes, lambda n: n not in self.causes, self.owner)
            steps = split_wide(split_at(steps, self.cuts), self.returned)
            release_small(steps)
            if own_views(steps, self.owner, self.causes):
                continue
            segments = self._compile(steps, built, last=attempt >= MAX_RETRIES - 1)
            if segments is not None:
                return steps, segments
        raise RuntimeError(f"{self.record.name}: no partition")

    def _compile(self, steps: list[Step], built: dict, last: bool) -> dict[int, NativeSegment] | None:
        """Place of a native step -> its segment, of an earlier attempt where nothing has changed; None where one is
        declined."""
        segments: dict[int, NativeSegment] = {}
        made: set[fx.Node] = set()
        for i, step in enumerate(steps):
            outputs = outputs_of(step, made, self.returned) if step.native else []
            made.update(step.nodes)
            if not step.native:
                continue
            key = (tuple(step.nodes), tuple(outputs))
            try:
                if key not in built:
                    built[key] = self._native(f"{self.record.name}_{i}", step, outputs)
                segments[i] = built[key]
            except Unsupported as error:
                cuts = cuts_of(step, error)
                if cuts and not last:
                    self.cuts.update(cuts)
                    return None
                whole = last or isinstance(error, SizeOfValues)
                whole = whole or (bool(self.cuts) and isinstance(error, TooLong))
                self._decline(step, str(error), None if whole else blamed_node(error, step.nodes))
                return None
            except (RuntimeError, ValueError) as error:
                self._internal_error(step, error)
                return None
        return segments

    def _decline(self, step: Step, message: str, node: fx.Node | None) -> None:
        """`node`: None declines the whole step."""
        decline(self.causes, self.nodes, step, message, node)
        log.debug("%s: declined %s: %s", self.record.name, node, message)

    def _internal_error(self, step: Step, error: Exception) -> None:
        if self.options.strict or has_exchange(step.nodes):  # other ranks would wait for this one
            raise error
        log.error("internal error in %s, its ops run through ATen: %s", self.record.name, error)
        self.record.internal_errors.append(str(error))
        self._decline(step, InternalCause.of(error), None)

    def _native(self, name: str, step: Step, outputs: list[fx.Node]) -> NativeSegment:
        lowered = lower_segment(
            name, step.nodes, outputs, self.device, self.uneven, may_be_empty(self.nodes), self.meets
        )
        data = [str(s) for _, key in lowered.extras if key != SEED for s in key.free_symbols]
        for symbol in [*lowered.symbols, *data]:
            if symbol not in self.symbols.sources and symbol not in lowered.derived:
                raise SizeOfValues(unknown_size(self.gm.graph, symbol))
        native = self.options.for_graph(self.target, self.device)
        hints = {**self.symbols.hints, **{s: self.symbols.hint_of(e) for s, e in lowered.derived.items()}}
        executable = compile_segment(name, lowered, self.target, self.device, native, hints)

        def make_fallback():
            emitter = Emitter(self.gm, self.symbols, self.device)
            return emitter.emit_segment(f"{name}_aten", lowered, step.nodes)

        counts = self.record.runtime_fallbacks
        return NativeSegment(
            name, lowered, executable, make_fallback, self.record.name, counts, self.options.strict, list(step.nodes)
        )


__all__ = ["CompileOptions", "compile_graph", "order_edges"]
