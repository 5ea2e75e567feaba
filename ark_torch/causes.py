"""Why nodes of a graph run through ATen: node -> cause."""

from __future__ import annotations

import operator
import re

import torch
from torch import fx

from ark_torch import eager_random
from ark_torch._compat import size_expr
from ark_torch.errors import StrictRefusal
from ark_torch.groups import (
    COLLECTIVES,
    is_wait,
    may_be_empty,
    other_groups,
    waited_for,
)
from ark_torch.host_scalars import on_device
from ark_torch.loops import Loop, log_one_by_one
from ark_torch.ordering import is_view
from ark_torch.partition import Step, is_symbolic
from ark_torch.records import REGISTRY, GraphRecord, told
from ark_torch.runtime_asserts import check_sizes
from ark_torch.segment import probe

# Assertions on sizes, numbers on their way to the device: they run on the host and are no fallback.
HOST_OPS = {
    on_device,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
    check_sizes,
}


def probe_nodes(nodes: list[fx.Node], device: torch.device, target: str | None, causes: dict[fx.Node, str]) -> None:
    """Adds the nodes that cannot be lowered, and why."""
    empty = may_be_empty(nodes)
    for node in nodes:
        if node in causes:
            continue
        reason = _probe(node, device, causes, empty) if target else f"tensors on {device} (native: CUDA and CPU)"
        if reason is not None:
            causes[node] = reason
    if target:
        causes.update(other_groups(nodes, causes, device))
    _follow(causes, nodes)


def _follow(causes: dict[fx.Node, str], nodes: list[fx.Node], message: str = "") -> None:
    """A getitem goes where its source goes. A wait is only the value itself where its collective is native."""
    for n in nodes:
        if n.target is operator.getitem and n.args[0] in causes:
            causes.setdefault(n, message or causes[n.args[0]])
        elif is_wait(n) and waited_for(n) in causes:
            causes.setdefault(n, causes[waited_for(n)])


def _probe(node: fx.Node, device: torch.device, causes: dict, empty: bool) -> str | None:
    """A getitem goes where its source goes."""
    if node.op == "get_attr":
        return "attribute"
    if is_symbolic(node) or node.target in HOST_OPS:
        return "host arithmetic"
    if node.target is operator.getitem:
        source = node.args[0]
        return causes.get(source, None if source.op == "call_function" else "getitem of an argument")
    if is_wait(node) and waited_for(node).target not in COLLECTIVES:
        return "wait for what no collective of the graph has made"
    return probe(node, device, empty)


def decline(causes: dict[fx.Node, str], nodes: list[fx.Node], step: Step, message: str, node: fx.Node | None) -> None:
    """Notes what the planner said of a step, for the node that it blames, else for all of the step."""
    for n in step.nodes if node is None else [node]:
        causes.setdefault(n, message)
        if n.target is operator.getitem:
            causes.setdefault(n.args[0], message)
    _follow(causes, nodes, message)


def unknown_size(graph: fx.Graph, symbol: str) -> str:
    """Why a size is not known before the run: the op that made it, and where the user called it."""
    for node in graph.nodes:
        val = node.meta.get("val")
        vals = val if isinstance(val, (tuple, list)) else (val,)
        sizes = [s for v in vals if isinstance(v, torch.Tensor) and v.layout == torch.strided for s in v.shape]
        exprs = [size_expr(s) for s in [*sizes, *(v for v in vals if isinstance(v, torch.SymInt))]]
        if any(not isinstance(e, int) and symbol in {s.name for s in e.free_symbols} for e in exprs):
            return f"reads a result of {node.target}, whose size depends on {_which_values(node)}{_users_line(node)}"
    return f"size {symbol} follows from no argument"


def _which_values(node: fx.Node) -> str:
    """Those of a tensor; or a number read with `.item()`, which tracing cannot compare with the sliced size."""
    numbers = [n for n in node.all_input_nodes if is_symbolic(n)]
    for n in numbers:
        if n.target is torch.ops.aten._local_scalar_dense.default:
            return "an .item() (native where torch._check(n >= 0) and torch._check(n <= size) of that number precede)"
        numbers += [m for m in n.all_input_nodes if m not in numbers]  # sees those too
    return "values"


def _users_line(node: fx.Node) -> str:
    """The innermost line of the user's code, where tracing noted it."""
    places = re.findall(r'File "(.+)", line (\d+), in .*(?:\n(?!\s*File ")\s*(.*))?', node.stack_trace or "")
    if not places:
        return ""
    file, line, code = places[-1]  # no code where its source is not to be had
    return f" ({code}, at {file}:{line})" if code else f" (at {file}:{line})"


def _at(cause: str, place: str) -> str:
    """A cause and the user's line, which some causes have in them."""
    return cause if place and place in cause else told(cause) + place


def _count_loop(loop: Loop, record: GraphRecord, strict: bool) -> None:
    """One whose iterations are calls."""
    if loop.launch is not None:
        return
    cause = f"a while_loop once per iteration: {told(loop.row.cause)}"
    record.num_aten += 1
    record.fallbacks[cause] += 1
    place = record.places.setdefault(cause, _users_line(loop.row.node))
    if not strict:
        log_one_by_one(record.name, _at(loop.row.cause, place))


def count_fallbacks(steps: list[Step], causes: dict[fx.Node, str], record: GraphRecord, strict: bool) -> None:
    """What the steps leave to ATen goes into the record; under strict it is an error."""
    for step in steps:
        for node in () if step.native else step.nodes:
            if is_view(node) or node.op == "get_attr" or node.target is operator.getitem:
                continue
            if is_symbolic(node) or node.target in HOST_OPS:
                continue
            if isinstance(node.target, Loop):
                _count_loop(node.target, record, strict)
                continue
            cause = causes.get(node, "too small for a plan of its own")
            record.num_aten += 1
            if cause != eager_random.CAUSE and node in causes:
                record.fallbacks[cause] += 1
                place = record.places.setdefault(cause, _users_line(node))
                if not strict:  # else nothing runs
                    REGISTRY.log_cause(cause, record.name, _at(cause, place))
    if strict and record.fallbacks:
        listed = ", ".join(f"{_at(cause, record.places[cause])} x{n}" for cause, n in record.fallbacks.most_common())
        raise StrictRefusal(f"{record.name} needs ATen for: {listed}")
