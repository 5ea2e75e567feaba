"""Cuts an FX graph into steps: native segments and ATen nodes, in an order that `order_edges` allows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch.lowering import is_sym
from ark_torch.ordering import is_getitem, is_view, order_edges

aten = torch.ops.aten
_CONSTANTS = {aten.full.default, aten.scalar_tensor.default}
_COPIES = {aten.lift_fresh_copy.default, aten.clone.default, aten.alias.default, aten.detach.default}


@dataclass
class Step:
    """Nodes in execution order; native ones become one plan, the others run one by one."""

    native: bool
    nodes: list[fx.Node] = field(default_factory=list)


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
    return any(not (is_view(n) or is_constant(n) or is_symbolic(n) or is_getitem(n)) for n in step.nodes)


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
