"""Cuts an FX graph into steps: native segments and ATen nodes, in an order that keeps data flow, mutation and random
order."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch.lower_view import MULTI_VIEW_OPS, VIEW_OPS
from ark_torch.lowering import is_sym

aten = torch.ops.aten
_VIEWS = set(VIEW_OPS) | set(MULTI_VIEW_OPS)
_CONSTANTS = {aten.full.default, aten.scalar_tensor.default}
_COPIES = {aten.lift_fresh_copy.default, aten.clone.default, aten.alias.default, aten.detach.default}
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")


@dataclass
class Step:
    """Nodes in execution order; native ones become one plan, the others run one by one."""

    native: bool
    nodes: list[fx.Node] = field(default_factory=list)


def is_view(node: fx.Node) -> bool:
    return node.target in _VIEWS or (_is_getitem(node) and is_view(node.args[0]))


def is_constant(node: fx.Node) -> bool:
    """A rank-0 constant: cheap enough to be repeated in every segment that reads it, whatever its device."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dim() != 0:
        return False
    if node.op == "get_attr":
        return type(attribute(node)) is torch.Tensor and attribute(node).device.type == "cpu"
    if node.target in _COPIES:
        return isinstance(node.args[0], fx.Node) and is_constant(node.args[0])
    return node.target in _CONSTANTS and not node.all_input_nodes


def attribute(node: fx.Node):
    """What a get_attr node reads."""
    return operator.attrgetter(node.target)(node.graph.owning_module)


def is_symbolic(node: fx.Node) -> bool:
    return is_sym(node.meta.get("val"))


def _is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def roots(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """node -> the node that owns its storage, as far as the schemas say."""
    owner: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        owner[node] = node
        if _is_getitem(node):
            owner[node] = owner[node.args[0]]
        elif getattr(node.target, "_schema", None) is not None and node.target._schema.name.endswith("::wait_tensor"):
            owner[node] = owner[node.args[0]]  # returns its argument, though the schema does not say so
        elif isinstance(node.target, torch._ops.OpOverload):
            for argument, value in zip(node.target._schema.arguments, node.args):
                if argument.alias_info is not None and isinstance(value, fx.Node):
                    owner[node] = owner[value]
                    break
    return owner


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_ordered(node: fx.Node) -> bool:
    """Random ops, collectives and ops with effects keep their order among themselves."""
    if isinstance(node.target, torch._ops.OpOverload):
        if node.target.namespace in _COLLECTIVES:
            return True
        return torch.Tag.nondeterministic_seeded in node.target.tags
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)


def _inputs(nodes: list[fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    """What each node reads, through what is no step of its own: sizes that are worked out where they are needed follow
    from the node that reads a number off a tensor."""
    own, found = set(nodes), {}

    def through(node: fx.Node) -> set[fx.Node]:
        if node in own or not node.all_input_nodes:
            return {node}
        if node not in found:
            found[node] = set().union(*map(through, node.all_input_nodes))
        return found[node]

    return {node: set().union(*map(through, node.all_input_nodes)) for node in nodes}


def order_edges(nodes: list[fx.Node], owner: dict[fx.Node, fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    """For each node the earlier nodes that it must follow: data flow, writes after reads, reads after writes, random
    order."""
    before: dict[fx.Node, set[fx.Node]] = {}
    touched: dict[fx.Node, list[fx.Node]] = {}
    last_write: dict[fx.Node, fx.Node] = {}
    last_ordered = None
    inputs = _inputs(nodes)
    for node in nodes:
        edges = inputs[node]
        memory = {owner[x] for x in node.all_input_nodes}
        writes = _writes(node) or isinstance(node.target, torch._ops.HigherOrderOperator)
        for root in memory:
            if root in last_write:
                edges.add(last_write[root])
            if writes:
                edges.update(touched.get(root, ()))
                last_write[root] = node
            touched.setdefault(root, []).append(node)
        if _is_ordered(node):
            if last_ordered is not None:
                edges.add(last_ordered)
            last_ordered = node
        before[node] = edges - {node}
    return before


def _alternate(nodes: list[fx.Node], native: Callable[[fx.Node], bool], before: dict, start_native: bool) -> list[Step]:
    """Runs everything ready of one kind, then everything ready of the other, and so on."""
    remaining, done, steps, kind = list(nodes), set(), [], start_native
    pending = set(nodes)
    while remaining:
        step, rest = Step(kind), []
        for node in remaining:
            if native(node) == kind and not any(x in pending for x in before[node]):
                step.nodes.append(node)
                pending.discard(node)
                done.add(node)
            else:
                rest.append(node)
        if step.nodes:
            steps.append(step)
        remaining, kind = rest, not kind
    return steps


def _is_worth_a_plan(step: Step) -> bool:
    """A segment of nothing but views, constants and sizes is cheaper as ATen calls."""
    return any(not (is_view(n) or is_constant(n) or is_symbolic(n) or _is_getitem(n)) for n in step.nodes)


def partition(nodes: list[fx.Node], native: Callable[[fx.Node], bool], owner: dict[fx.Node, fx.Node]) -> list[Step]:
    """Steps in execution order; of the two starts the one with fewer native segments."""
    before = order_edges(nodes, owner)
    choices = [_alternate(nodes, native, before, start) for start in (True, False)]
    steps = min(choices, key=lambda s: sum(x.native and _is_worth_a_plan(x) for x in s))
    merged: list[Step] = []
    for step in steps:
        kind = step.native and _is_worth_a_plan(step)
        if merged and merged[-1].native == kind:
            merged[-1].nodes += step.nodes
        else:
            merged.append(Step(kind, step.nodes))
    return merged
