"""What the backward pass may work out again: nothing that was read from an argument which the forward pass writes."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ark_torch._compat import min_cut_rematerialization_partition


def partition_joint(joint: fx.GraphModule, inputs, **kwargs):
    """The min-cut partition. By itself it would read a written argument again in the backward pass, after the write."""
    keep_readers(joint.graph)
    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def keep_readers(graph: fx.Graph) -> None:
    """Marks what reads a written argument, through views too, as something to save where the backward pass needs it."""
    waiting = _written(graph)
    seen = set(waiting)
    while waiting:
        for user in waiting.pop().users:
            if user in seen or user.op != "call_function" or user.target is torch.ops.aten.copy_.default:
                continue
            seen.add(user)
            if shows_argument(user):
                waiting.append(user)
            else:
                user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _written(graph: fx.Graph) -> list[fx.Node]:
    """Arguments that the graph writes itself, and those whose new value it returns for AOTAutograd to write."""
    nodes = list(graph.nodes)
    arguments = [n for n in nodes if n.op == "placeholder"]
    outside = [getattr(desc, "mutated_input", None) for desc in nodes[-1].meta.get("desc") or ()]
    inside = [n.args[0] for n in nodes if n.target is torch.ops.aten.copy_.default]
    return [n for n in arguments if n in inside or (n.meta.get("desc") is not None and n.meta["desc"] in outside)]


def shows_argument(node: fx.Node) -> bool:
    """Its memory is an argument's, by the op's schema, whether ark has a view for it (ordering.is_view) or not. Of
    several views that one op makes, those that are picked are."""
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
