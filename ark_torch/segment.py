"""A native segment: its ir::Graph, the executable behind it, and the ATen steps that stand in where the planner
declines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch._compat import FakeTensor, size_expr
from ark_torch.errors import ArgumentRefused, IndexOutOfRange, NodeUnsupported, RanksApart, RanksDisagree, Unsupported
from ark_torch.graph_json import to_text
from ark_torch.lowering import SEED, Lowering
from ark_torch.partition import is_constant, is_symbolic
from ark_torch.records import REGISTRY, InternalCause, log


def make_executable(graph_text: str, target: str, device_index: int, options: dict):
    """The extension's CompiledGraph; tests put the reference evaluator here."""
    from ark_torch import _C

    return _C.CompiledGraph(graph_text, target, device_index, options)


@dataclass(frozen=True)
class SegmentGraph:
    """A lowered segment. Called with the tensors of `inputs`, the extras inserted at their places, then one int per
    symbol."""

    graph: dict
    inputs: list[fx.Node]
    outputs: list[fx.Node]
    symbols: list[str]
    extras: list[tuple[int, object]]  # (place among the tensors, SEED or the expression of a size), ascending
    derived: dict = field(default_factory=dict)  # those of the symbols that follow from others -> their expressions


def lower_constant(ctx: Lowering, node: fx.Node) -> None:
    """Emits a rank-0 constant and what it is a copy of; where it was to live does not matter."""
    for source in node.all_input_nodes:
        lower_constant(ctx, source)
    device, ctx.device = ctx.device, None
    ctx.lower(node)
    ctx.device = device


def lower_segment(
    name: str,
    nodes: list[fx.Node],
    outputs: list[fx.Node],
    device: torch.device,
    uneven: bool = False,
    empty: bool = False,
    meets: bool = False,
) -> SegmentGraph:
    """Raises Unsupported when a node has no rule; partitioning has probed every node before."""
    ctx = Lowering(name, device, uneven, empty, meets)
    inputs: list[fx.Node] = []
    inside = set(nodes)

    def need(node: fx.Node) -> None:
        if node in ctx.env or node in inside or is_symbolic(node):
            return
        if is_constant(node):
            lower_constant(ctx, node)
        else:
            inputs.append(node)
            ctx.add_input(node)

    for node in nodes:
        for source in node.all_input_nodes:
            need(source)
        ctx.lower(node)
    extras = sorted(((ctx.graph.inputs.index(v.id), k) for k, v in ctx.extras.items()), key=lambda item: item[0])
    ctx.graph.outputs = [ctx.env[node].id for node in outputs]
    graph = ctx.graph.finish()
    sizes = ctx.graph.sizes
    return SegmentGraph(graph, inputs, list(outputs), list(sizes.symbols), extras, dict(sizes.derived))


def probe(node: fx.Node, device: torch.device, empty: bool = False) -> str | None:
    """Why the node cannot be lowered, or None."""
    ctx = Lowering("probe", device, empty=empty)
    try:
        for source in node.all_input_nodes:
            if is_constant(source):
                lower_constant(ctx, source)
        ctx.lower(node)
    except Unsupported as error:
        return str(error)
    except Exception as error:  # a bug of a rule must not cost the user the model
        log.error("internal error: the rule of %s failed: %r", node.target, error)
        return InternalCause.of(f"rule of {node.target}: {error!r}")
    return None


def blamed_node(error: Exception, nodes: list[fx.Node]) -> fx.Node | None:
    """The node of the segment that the planner declines; None where it blames none of them."""
    if not isinstance(error, NodeUnsupported):
        return None
    return next((n for n in nodes if n.name == error.node), None)


@dataclass
class NativeSegment:
    """Callable: list of tensors (the segment's inputs, the extras at their places), then ints -> list of tensors."""

    name: str
    lowered: SegmentGraph
    executable: object
    make_fallback: Callable[[], Callable]
    where: str  # the graph's name, for the log
    counts: Counter = field(default_factory=Counter)  # run-time fallbacks of the graph, cause -> number
    strict: bool = False  # a run-time fallback is an error
    nodes: list[fx.Node] = field(default_factory=list)
    _fallback: Callable | None = None
    _declined: set = field(default_factory=set)  # values of the symbols
    _refused: set = field(default_factory=set)  # layouts of the arguments

    def __post_init__(self):
        self._exchanges = any(node["op"] == "exchange" for node in self.lowered.graph["nodes"])

    def __call__(self, inputs: list) -> list:
        if self._exchanges:
            return self._run_with_ranks(inputs)
        if self._declined and self._key(inputs) in self._declined:
            return self._run_fallback(inputs)
        if self._refused and self._layout(inputs) in self._refused:
            return self._run_fallback(inputs)
        try:
            return self.executable(inputs)
        except Unsupported as error:
            cause, problem = str(error), error
        except ValueError as error:
            return self._after_refusal(inputs, error)
        except RuntimeError as error:
            if type(error) is not RuntimeError or self._can_plan(inputs):
                raise
            cause, problem = InternalCause.of(error), error
            log.error("internal error in %s, sizes %s run through ATen: %s", self.where, self._key(inputs), error)
        self._fall_back(cause, problem)
        _remember(self._declined, self._key(inputs))
        return self._run_fallback(inputs)

    def _run_with_ranks(self, inputs: list) -> list:
        """Other ranks take part: ATen stands in where they call the collectives too, not on this one alone. They hear
        of what keeps it from running."""
        try:
            try:
                return self.executable(inputs)
            except (IndexOutOfRange, RanksApart, RanksDisagree):
                raise
            except ValueError:
                restrided = self._restride(inputs)
                if restrided is None:
                    raise
                return self.executable(restrided)
        except (IndexOutOfRange, RanksDisagree):
            raise
        except RanksApart as error:
            self._follow_ranks(error)
        except Exception as error:
            self._fail_ranks(error, inputs)
            raise
        return self._run_fallback(inputs)

    def _fail_ranks(self, error: Exception, inputs: list) -> None:
        if not _has_fake(inputs):  # else nobody runs this, on any rank
            self.executable.fail_ranks(f"{self.where}: {error}")

    def _follow_ranks(self, error: RanksApart) -> None:
        """Of calls that other ranks make, one after the other as the program has them."""
        try:
            self._fall_back("other ranks launch another plan, or none", error)
            self._fallback = self._fallback or self.make_fallback()
        except Exception as refusal:
            self._fail_ranks(refusal, [])
            raise

    def _after_refusal(self, inputs: list, error: ValueError) -> list:
        """The executable does not take these arguments: copies in the traced layout, else ATen."""
        if _has_fake(inputs):
            raise error
        restrided = self._restride(inputs)
        if restrided is not None:
            try:
                return self.executable(restrided)
            except ValueError as again:
                error = again
        if isinstance(error, IndexOutOfRange):
            if self.strict or not all(self.lowered.graph["immutable"]) or not self._has_fallback():
                raise error  # arguments may have been written: eager's own error cannot be had
        else:
            which = error.argument if isinstance(error, ArgumentRefused) else error
            self._fall_back(f"arguments refused: {which}", error)
            _remember(self._refused, self._layout(inputs))
        return self._run_fallback(inputs)

    def _fall_back(self, cause: str, error: Exception) -> None:
        """Counts and logs; under strict the error goes to the caller."""
        if self.strict:
            raise Unsupported(f"strict: {self.where} needs ATen for these arguments: {error}") from error
        self.counts[cause] += 1
        REGISTRY.runtime_fallbacks[cause] += 1
        REGISTRY.log_cause(cause, self.where, str(error))

    def _can_plan(self, inputs: list) -> bool:
        """Whether an internal error came after planning for these sizes."""
        try:
            self.executable.prepare(list(self._key(inputs)))
        except RuntimeError:
            return False
        return True

    def _key(self, inputs: list) -> tuple:
        return tuple(inputs[len(inputs) - len(self.lowered.symbols) :])

    def _layout(self, inputs: list) -> tuple:
        tensors = inputs[: len(inputs) - len(self.lowered.symbols)]
        return tuple((t.dtype, t.device, t.shape, t.stride()) for t in tensors)

    def _has_fallback(self) -> bool:
        """None can be made of a segment that computes with a number that `.item()` has read."""
        try:
            self._fallback = self._fallback or self.make_fallback()
        except RuntimeError:
            return False
        return True

    def _run_fallback(self, inputs: list) -> list:
        if self._fallback is None:
            self._fallback = self.make_fallback()
        inputs = list(inputs)
        extras = [(key, inputs.pop(place)) for place, key in reversed(self.lowered.extras)]
        return self._fallback(inputs + [value for key, value in extras if key != SEED])

    def _restride(self, inputs: list) -> list | None:
        """Copies of the tensors whose strides are not those that the graph was compiled for; None if that cannot
        help."""
        symbols = dict(zip(self.lowered.symbols, self._key(inputs)))
        result, changed = list(inputs), False
        immutable = self.lowered.graph["immutable"]
        nodes = list(self.lowered.inputs)
        for place, _ in self.lowered.extras:
            nodes.insert(place, None)
        for i, node in enumerate(nodes):
            if node is None:
                continue
            val, actual = node.meta["val"], inputs[i]
            want = tuple(_value_of(s, symbols) for s in val.stride())
            if tuple(actual.shape) != tuple(_value_of(s, symbols) for s in val.shape):
                return None
            if any(a != w and size > 1 for a, w, size in zip(actual.stride(), want, actual.shape)):
                if not immutable[i] or any(w == 0 for w in want):
                    return None
                result[i] = torch.empty_strided(actual.shape, want, dtype=actual.dtype, device=actual.device).copy_(
                    actual
                )
                changed = True
        return result if changed else None


def _has_fake(inputs: list) -> bool:
    return any(isinstance(x, FakeTensor) for x in inputs)


def _remember(known: set, key: tuple) -> None:
    if len(known) >= 1000:  # sizes without end: forgetting costs one more try each
        known.clear()
    known.add(key)


def _value_of(size, symbols: dict[str, int]) -> int:
    expr = size_expr(size)
    if isinstance(expr, int):
        return expr
    return int(expr.subs({s: symbols[s.name] for s in expr.free_symbols}))


def compile_segment(
    name: str, lowered: SegmentGraph, target: str, device: torch.device, options: dict, hints: dict[str, int]
) -> object:
    """The executable, planned for the hinted sizes so that Unsupported shows now and not at the first call."""
    executable = make_executable(to_text(lowered.graph), target, device.index or 0, {**options, "name": name})
    known = [hints.get(symbol) for symbol in lowered.symbols]
    if all(hint is not None for hint in known):
        executable.prepare(known)
    return executable
