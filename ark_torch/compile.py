"""An FX graph to one callable: native segments and ATen steps in order, memory dropped after its last use."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch import (  # noqa: F401 - they fill the table
    lower_attention,
    lower_create,
    lower_foreach,
    lower_index,
    lower_matmul,
    lower_pointwise,
    lower_reduce,
    lower_select,
    lower_view,
)
from ark_torch._compat import size_expr
from ark_torch.dump import dump_call, dump_folder, dump_fx
from ark_torch.errors import Unsupported
from ark_torch.host_scalars import move_host_scalars, on_device
from ark_torch.lowering import SEED
from ark_torch.partition import Step, is_constant, is_symbolic, is_view, order_edges, partition, roots
from ark_torch.records import REGISTRY, GraphRecord, log
from ark_torch.segment import NativeSegment, blamed_node, compile_segment, lower_segment, probe
from ark_torch.sizes import to_python

MAX_RETRIES = 64  # nodes that the planner may decline, one after the other, before the segment goes to ATen as a whole
# Assertions on sizes, numbers on their way to the device: they run on the host and are no fallback.
HOST_OPS = {
    on_device,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}


@dataclass(frozen=True)
class CompileOptions:
    """What the caller asked for. `native` goes to CompiledGraph as it is."""

    strict: bool = False
    target: str = "auto"
    native: dict = field(default_factory=dict)


def graph_device(gm: fx.GraphModule) -> torch.device:
    """The accelerator that most tensors of the graph are on, else the CPU."""
    devices = Counter()
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        for item in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(item, torch.Tensor):
                devices[item.device] += 1
    accelerators = [d for d, _ in devices.most_common() if d.type == "cuda"]
    if accelerators:
        return accelerators[0]
    return torch.device("cpu")


def resolve_target(wanted: str, device: torch.device) -> str:
    fitting = {"cuda": "cuda", "cpu": "host"}.get(device.type)
    if wanted != "auto" and wanted != fitting:
        raise ValueError(f"option target={wanted!r} does not fit tensors on {device} (expected {fitting!r})")
    return fitting


def check_workers(workers: int | None, target: str, device: torch.device) -> None:
    """Every worker of the loop kernel has an SM of its own."""
    if workers and target == "cuda":
        most = torch.cuda.get_device_properties(device).multi_processor_count
        if workers > most:
            raise ValueError(f"option 'workers' is {workers}, expected at most {most}, the SMs of {device}")


def compile_graph(gm: fx.GraphModule, options: CompileOptions, record: GraphRecord):
    """The callable: takes a list of arguments, which it clears, and returns a list."""
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
        move_host_scalars(gm.graph, self.device)
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.result = next(n for n in gm.graph.nodes if n.op == "output").args[0]
        self.owner = roots(gm.graph)
        self.symbols = SymbolTable(gm.graph)
        self.causes: dict[fx.Node, str] = {}
        self.nodes = [n for n in gm.graph.nodes if n.op in ("call_function", "get_attr") and not self._floats(n)]
        record.num_nodes = len(self.nodes)

    def _floats(self, node: fx.Node) -> bool:
        """Made where it is needed: rank-0 constants and sizes that follow from the symbols."""
        return is_constant(node) or self.symbols.knows(node)

    def build(self):
        for node in self.nodes:
            reason = probe_with_source(node, self.device, self.causes) if self.target else f"device {self.device}"
            if reason is not None:
                self.causes[node] = reason
                if reason.startswith("internal error"):
                    self.record.internal_errors.append(reason)
        steps, segments = self._plan()
        self.record.segments = list(segments.values())
        self._note(steps)
        emitter = Emitter(self.gm, self.symbols, self.device)
        return emitter.emit(self.record.name, self.placeholders, steps, segments, self.result)

    def _own_views(self, steps: list[Step]) -> bool:
        """A plan sees only the aliases that it makes itself. A native step that writes an input therefore makes its own
        views of it; where it cannot, the write is declined. Whether that was so anywhere."""
        declined = False
        for step in (s for s in steps if s.native):
            inside, views = set(step.nodes), []
            writes = [n for n in step.nodes if n.target == torch.ops.aten.copy_.default]
            for source in (x for n in step.nodes for x in n.all_input_nodes):
                mine = [n for n in writes if self.owner[n] is self.owner[source]]
                if not mine or source in inside or source is self.owner[source]:
                    continue
                chain = self._view_chain(source)
                if chain is None:
                    self.causes.update((n, "copy_ into an input that ATen views") for n in mine)
                    declined = True
                else:
                    views += [n for n in chain if n not in inside]
                    inside.update(chain)
            step.nodes[:0] = views
        return declined

    def _view_chain(self, node: fx.Node) -> list[fx.Node] | None:
        """The native views that lead from the argument that owns the node's memory to the node; None where there is
        more than that to it."""
        chain = []
        while node is not self.owner[node]:
            if not is_view(node) or node in self.causes:
                return None
            chain.append(node)
            node = node.args[0]
        return chain[::-1] if node.op == "placeholder" else None

    def _plan(self) -> tuple[list[Step], dict[int, NativeSegment]]:
        """Partition, lower, compile; a node that the planner declines becomes an ATen step and the cut starts again."""
        built: dict[tuple, NativeSegment] = {}
        for attempt in range(MAX_RETRIES + 1):
            steps = partition(self.nodes, lambda n: n not in self.causes, self.owner)
            self._release_small(steps)
            if self._own_views(steps):
                continue
            segments, declined = {}, False
            for i, step in enumerate(steps):
                if not step.native:
                    continue
                outputs = outputs_of(step, steps, self.result)
                key = (tuple(step.nodes), tuple(outputs))
                try:
                    if key not in built:
                        built[key] = self._native(f"{self.record.name}_{i}", step, outputs)
                    segments[i] = built[key]
                except Unsupported as error:
                    self._decline(step, str(error), whole=attempt == MAX_RETRIES - 1)
                    declined = True
                    break
                except (RuntimeError, ValueError) as error:
                    self._internal_error(step, error)
                    declined = True
                    break
            if not declined:
                return steps, segments
        raise RuntimeError(f"{self.record.name}: no partition after {MAX_RETRIES} attempts")

    def _release_small(self, steps: list[Step]) -> None:
        """Segments that compute a handful of scalars between ATen steps cost more as a launch than as ATen calls."""
        if sum(s.native for s in steps) < 2:
            return
        for step in steps:
            if step.native and len(step.nodes) <= 8 and all(_is_tiny(n) for n in step.nodes):
                step.native = False

    def _decline(self, step: Step, message: str, whole: bool) -> None:
        node = None if whole else blamed_node(message, step.nodes)
        for n in step.nodes if node is None else [node]:
            self.causes.setdefault(n, message)
            if n.target is operator.getitem:
                self.causes.setdefault(n.args[0], message)
        for n in self.nodes:  # a getitem goes where its source goes
            if n.target is operator.getitem and n.args[0] in self.causes:
                self.causes.setdefault(n, message)
        log.debug("%s: declined %s: %s", self.record.name, node, message)

    def _internal_error(self, step: Step, error: Exception) -> None:
        if self.options.strict:
            raise error
        log.error("internal error in %s, its ops run through ATen: %s", self.record.name, error)
        self.record.internal_errors.append(str(error))
        self._decline(step, f"internal error: {error}", whole=True)

    def _native(self, name: str, step: Step, outputs: list[fx.Node]) -> NativeSegment:
        lowered = lower_segment(name, step.nodes, outputs, self.device)
        data = [str(s) for _, key in lowered.extras if key != SEED for s in key.free_symbols]
        for symbol in [*lowered.symbols, *data]:
            if symbol not in self.symbols.sources:
                raise Unsupported(f"size {symbol} that no argument carries")
        native = {**self.options.native, "dump": dump_folder()}
        executable = compile_segment(name, lowered, self.target, self.device, native, self.symbols.hints)

        def make_fallback():
            emitter = Emitter(self.gm, self.symbols, self.device)
            return emitter.emit_segment(f"{name}_aten", lowered, step.nodes)

        counts = self.record.runtime_fallbacks
        return NativeSegment(
            name, lowered, executable, make_fallback, self.record.name, counts, self.options.strict, list(step.nodes)
        )

    def _note(self, steps: list[Step]) -> None:
        for step in steps:
            for node in () if step.native else step.nodes:
                if is_view(node) or node.op == "get_attr" or node.target is operator.getitem:
                    continue
                if is_symbolic(node) or node.target in HOST_OPS:
                    continue
                cause = self.causes.get(node, "too small for a plan of its own")
                self.record.num_aten += 1
                if node in self.causes:
                    self.record.fallbacks[cause] += 1
                    REGISTRY.log_cause(cause, self.record.name)
        if self.options.strict and self.record.fallbacks:
            causes = ", ".join(f"{cause} (x{n})" for cause, n in self.record.fallbacks.most_common())
            raise Unsupported(f"strict: {self.record.name} needs ATen for: {causes}")


def probe_with_source(node: fx.Node, device: torch.device, causes: dict) -> str | None:
    """A getitem goes where its source goes."""
    if node.op == "get_attr":
        return "attribute"
    if is_symbolic(node) or node.target in HOST_OPS:
        return "host arithmetic"
    if node.target is operator.getitem:
        source = node.args[0]
        return causes.get(source, None if source.op == "call_function" else "getitem of an argument")
    return probe(node, device)


def _is_tiny(node: fx.Node) -> bool:
    val = node.meta.get("val")
    vals = val if isinstance(val, (tuple, list)) else (val,)
    inputs = [n.meta.get("val") for n in node.all_input_nodes]
    return all(not isinstance(v, torch.Tensor) or v.dim() == 0 for v in [*vals, *inputs])


def outputs_of(step: Step, steps: list[Step], result) -> list[fx.Node]:
    """Values of the step that later steps or the caller read, and that no earlier step has made."""
    inside = set(step.nodes)
    made = {node for earlier in itertools.takewhile(lambda s: s is not step, steps) for node in earlier.nodes}
    returned = set()
    fx.map_arg(result, returned.add)
    found = []
    for node in step.nodes:
        if isinstance(node.meta.get("val"), (tuple, list)) or is_symbolic(node) or node in made:
            continue
        if node in returned or any(u not in inside and u.op != "output" and _reads_values(u) for u in node.users):
            found.append(node)
    return found


def _reads_values(node: fx.Node) -> bool:
    """Not only sizes: what a number is taken out of (`item`) has to be there."""
    return not is_symbolic(node) or _is_unbacked_source(node)


class SymbolTable:
    """Where each shape symbol's value comes from at run time, and what it was when the graph was traced."""

    def __init__(self, graph: fx.Graph):
        self.sources: dict[str, str] = {}  # symbol -> Python expression
        self.nodes: dict[str, fx.Node] = {}  # symbol -> node that the expression reads
        self.hints: dict[str, int] = {}
        for node in graph.nodes:
            self._add_scalar(node)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._add_tensor(node)

    def _put(self, expr, source: str, node: fx.Node, size) -> None:
        if not isinstance(expr, int) and expr.is_Symbol and expr.name not in self.sources:
            self.sources[expr.name], self.nodes[expr.name] = source, node
            hint = getattr(size.node, "hint", None)
            if isinstance(hint, int):
                self.hints[expr.name] = hint

    def _add_scalar(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt) and (node.op == "placeholder" or _is_unbacked_source(node)):
            self._put(size_expr(val), node.name, node, val)

    def _add_tensor(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.layout == torch.strided:
            for d, size in enumerate(val.shape):
                if not isinstance(size, int):
                    self._put(size_expr(size), f"{node.name}.size({d})", node, size)

    def knows(self, node: fx.Node) -> bool:
        """Whether the node is a size that follows from known symbols."""
        val = node.meta.get("val")
        if node.op != "call_function" or not isinstance(val, torch.SymInt) or _is_unbacked_source(node):
            return False
        return self.source_of(val) is not None

    def carries(self, node: fx.Node) -> bool:
        """Whether the node is an argument that is a size (a segment's stand-in gets the symbols instead)."""
        val = node.meta.get("val")
        return node.op == "placeholder" and isinstance(val, torch.SymInt) and self.source_of(val) is not None

    @property
    def variables(self) -> dict[str, str]:
        return {name: f"s_{name}" for name in self.sources}

    def source_of(self, val) -> str | None:
        try:
            return to_python(size_expr(val), self.variables)
        except (KeyError, Unsupported):
            return None


def _is_unbacked_source(node: fx.Node) -> bool:
    return node.target in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class Emitter:
    """Writes the callable as Python source: one line per step, `del` after the last use of each value."""

    def __init__(self, gm: fx.GraphModule, symbols: SymbolTable, device: torch.device):
        self.gm, self.symbols, self.device = gm, symbols, device
        self.scope: dict = {"torch": torch}
        self.lines: list[str] = []
        self.known_symbols: set[str] = set()
        self.made: set[fx.Node] = set()
        self.data: dict = {}  # size expression -> variable, a rank-0 tensor

    # ---- entry points ----
    def emit(self, name: str, placeholders, steps: list[Step], segments: dict[int, NativeSegment], result):
        self._open(placeholders)
        last = self._last_uses(steps, segments, result)
        for i, step in enumerate(steps):
            if step.native:
                self._emit_native(segments[i])
                self._drop(last.get(i, ()))
            else:
                for j, node in enumerate(step.nodes):
                    self._emit_aten(node)
                    self._drop(last.get((i, j), ()))
        returned = self._argument(list(result) if isinstance(result, (tuple, list)) else [result])
        self.lines.append(f"return {returned}")
        return self._close(name)

    def emit_segment(self, name: str, lowered, nodes: list[fx.Node]):
        """The ATen stand-in of a native segment: inputs, symbols and sizes as data, last to first; same results."""
        keys = [key for _, key in reversed(lowered.extras) if key != SEED]
        self.data = {key: f"data_{i}" for i, key in enumerate(keys)}
        self._open(lowered.inputs, lowered.symbols, list(self.data.values()))
        for node in nodes:
            self._emit_aten(node)
        self.lines.append(f"return {self._argument(list(lowered.outputs))}")
        return self._close(name)

    def _open(self, arguments, symbols=(), data=()) -> None:
        names = [*(n.name for n in arguments), *(f"s_{s}" for s in symbols), *data]
        if names:
            self.lines.append(f"({', '.join(names)},) = args")
        self.lines.append("args.clear()")
        self.made.update(arguments)
        self.known_symbols.update(symbols)
        for symbol, node in self.symbols.nodes.items():
            if node in self.made and symbol not in self.known_symbols:
                self._define_symbol(symbol)

    def _define_symbol(self, symbol: str) -> None:
        self.lines.append(f"s_{symbol} = {self.symbols.sources[symbol]}")
        self.known_symbols.add(symbol)

    def _close(self, name: str):
        source = "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(source, f"<ark {name}>", "exec"), self.scope)
        call = self.scope["call"]
        call.__name__ = name
        call.source = source
        return call

    # ---- steps ----
    def _emit_native(self, segment: NativeSegment) -> None:
        lowered = segment.lowered
        items = [node.name for node in lowered.inputs]
        for place, key in lowered.extras:
            items.insert(place, self._extra(key))
        for symbol in lowered.symbols:
            items.append(f"s_{symbol}")
        call = f"{self._constant(segment, segment.name)}([{', '.join(items)}])"
        targets = ", ".join(node.name for node in lowered.outputs)
        self.lines.append(f"({targets},) = {call}" if targets else call)
        self.made.update(lowered.outputs)

    def _extra(self, key) -> str:
        """A rank-0 tensor made for this call: the seed from ATen's generator, or a size as data."""
        where = f"dtype=torch.int64, device={self._constant(self.device)}"
        if key == SEED:
            return f"torch.empty((), {where}).random_()"
        return f"torch.full((), {to_python(key, self.symbols.variables)}, {where})"

    def _emit_aten(self, node: fx.Node) -> None:
        if node in self.made:
            return
        self.made.add(node)
        if node.op == "get_attr":
            value = self._constant(operator.attrgetter(node.target)(self.gm), node.name + "_value")
            self.lines.append(f"{node.name} = {value}")
            return
        if node.target is operator.getitem:
            self.lines.append(f"{node.name} = {self._argument(node.args[0])}[{self._argument(node.args[1])}]")
            return
        args = [self._argument(a) for a in node.args]
        args += [f"{key}={self._argument(value)}" for key, value in node.kwargs.items()]
        self.lines.append(f"{node.name} = {self._constant(node.target, _short_name(node.target))}({', '.join(args)})")
        for symbol, source in self.symbols.nodes.items():
            if source is node:
                self._define_symbol(symbol)

    def _drop(self, nodes) -> None:
        if nodes:
            self.lines.append(f"del {', '.join(n.name for n in nodes)}")

    # ---- arguments ----
    def _argument(self, arg) -> str:
        if isinstance(arg, fx.Node):
            return self._node(arg)
        if isinstance(arg, list):
            return f"[{', '.join(self._argument(a) for a in arg)}]"
        if isinstance(arg, tuple):
            return f"({', '.join(self._argument(a) for a in arg)}{',' if len(arg) == 1 else ''})"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{k!r}: {self._argument(v)}" for k, v in arg.items()) + "}"
        if arg is None or isinstance(arg, (bool, int, str)):
            return repr(arg)
        if isinstance(arg, slice):
            return f"slice({self._argument(arg.start)}, {self._argument(arg.stop)}, {self._argument(arg.step)})"
        return self._constant(arg)

    def _node(self, node: fx.Node) -> str:
        """The node's variable; constants and sizes are made at their first use."""
        if node not in self.made:
            if is_constant(node):
                self._emit_aten(node)
            elif self.symbols.knows(node) or self.symbols.carries(node):
                return self._size(node.meta["val"])
            else:
                raise RuntimeError(f"{node.name} is read before any step makes it")
        return node.name

    def _size(self, val) -> str:
        """From the symbols; in a stand-in that lacks one, from the number that its segment gets as data."""
        expr = size_expr(val)
        known = isinstance(expr, int) or {s.name for s in expr.free_symbols} <= self.known_symbols
        return self.symbols.source_of(val) if known or expr not in self.data else f"int({self.data[expr]})"

    def _constant(self, value, name: str = "") -> str:
        key = f"c{len(self.scope)}_{name}" if name else f"c{len(self.scope)}"
        for known, item in self.scope.items():
            if item is value:
                return known
        self.scope[key] = value
        return key

    # ---- lifetimes ----
    def _last_uses(self, steps, segments, result) -> dict:
        """Place of a step -> values that no later step reads and nobody returns."""
        place_of: dict[fx.Node, object] = {}
        for node in self.made:
            place_of[node] = None

        def use(node, place):
            place_of[node] = place

        for i, step in enumerate(steps):
            if step.native:
                for node in [*segments[i].lowered.inputs, *segments[i].lowered.outputs]:
                    use(node, i)
                continue
            for j, node in enumerate(step.nodes):
                for source in node.all_input_nodes:
                    if not is_constant(source) and not self.symbols.knows(source):
                        use(source, (i, j))
                use(node, (i, j))
        returned = set()
        fx.map_arg(result, returned.add)
        found: dict = {}
        for node, place in place_of.items():
            if place is not None and node not in returned:
                found.setdefault(place, []).append(node)
        return found


def _short_name(target) -> str:
    name = getattr(target, "__name__", type(target).__name__)
    return "".join(c if c.isalnum() else "_" for c in name)


__all__ = ["CompileOptions", "compile_graph", "order_edges"]
