"""Regions under `torch.compiler.nested_compile_region`: functions of Dynamo's graph that are called more than once.
Each call is written out, for a plan spans the whole graph."""

from __future__ import annotations

import operator

import torch
from torch import fx

_INVOKE = torch.ops.higher_order.invoke_subgraph


def inline_regions(gm: fx.GraphModule) -> None:
    """In place, also the regions that are called by regions."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is _INVOKE]
    for node in calls:
        region = operator.attrgetter(node.args[0].target)(gm)
        inline_regions(region)
        _replace(gm, node, copy_nodes(gm, node, region, node.args[2:]))
    if calls:
        gm.recompile()


def copy_nodes(gm: fx.GraphModule, call: fx.Node, region: fx.GraphModule, arguments):
    """The region's nodes in front of its call, for these arguments; what the region returns."""
    placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
    copies = dict(zip(placeholders, arguments, strict=True))
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], copies.__getitem__)
            if node.op != "placeholder":
                copies[node] = gm.graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                copies[node].target = _attribute(gm, node.target, operator.attrgetter(node.target)(region))
    raise ValueError(f"a region without an output: {call}")


def _attribute(gm: fx.GraphModule, name: str, value: object) -> str:
    """A name in `gm` for what a region calls by this name."""
    base, number = name.replace(".", "_"), 0
    while hasattr(gm, name := f"{base}_{number}"):
        if getattr(gm, name) is value:
            return name
        number += 1
    setattr(gm, name, value)
    return name


def _replace(gm: fx.GraphModule, call: fx.Node, results: tuple) -> None:
    for user in list(call.users):
        if user.target is not operator.getitem:
            raise ValueError(f"a region's results are read one by one, not by {user}")
        value = results[user.args[1]]
        if isinstance(value, fx.Node):
            user.replace_all_uses_with(value)
            gm.graph.erase_node(user)
        else:  # None or a number
            user.args = (list(results), user.args[1])
    region = call.args[0]
    gm.graph.erase_node(call)
    if not region.users:
        gm.graph.erase_node(region)


__all__ = ["copy_nodes", "inline_regions"]
