"""The `while_loop`s of an FX graph, and how each becomes one step: a node that calls a `Loop`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from ark_torch._compat import WHILE_LOOPS, auto_functionalized
from ark_torch.lower_loop import placeholders
from ark_torch.regions import copy_nodes


@dataclass
class LoopNode:
    """A `while_loop`: the graphs, and what it is called with. `written` are the places among `additional` that the body
    writes, in the order in which the node returns them behind the carried values."""

    node: fx.Node
    cond: fx.GraphModule
    body: fx.GraphModule
    carried: list
    additional: list
    written: list[int]
    stacked: bool  # returns the values of every iteration, not the last ones


def _graph(gm: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    return operator.attrgetter(node.target)(gm)


def _plain(gm: fx.GraphModule, node: fx.Node) -> LoopNode | None:
    """None where the body writes tensors from outside, which AOTAutograd has left as they were."""
    if node.kwargs:
        return None
    cond, body, carried, additional = node.args
    stacked = node.target is not WHILE_LOOPS[0]
    return LoopNode(node, _graph(gm, cond), _graph(gm, body), list(carried), list(additional), [], stacked)


def _functionalized(gm: fx.GraphModule, node: fx.Node) -> LoopNode | None:
    """AOTAutograd's form of a loop that writes tensors from outside: it returns what they have become. None where
    those are views, or one of them is two arguments."""
    known: dict[str, dict[int, object]] = {"carried": {}, "additional": {}}
    written: dict[int, int] = {}  # which base -> place among the additional inputs
    for name, value in node.kwargs.items():
        if match := re.fullmatch(r"(carried|additional)_input(\d+)", name):
            known[match[1]][int(match[2])] = value
        elif match := re.fullmatch(r"_additional_input(\d+)_base_index", name):
            if value in written:
                return None
            written[value] = int(match[1])
            known["additional"][int(match[1])] = node.kwargs["_all_bases"][value]
        elif name.startswith("_") and name not in ("_all_bases", "_op_schema", "_ops_schema"):
            return None
    bases = sorted(written)
    carried, additional = ([found[i] for i in sorted(found)] for found in known.values())
    fits = bases == list(range(len(node.kwargs["_all_bases"]))) and sorted(known["additional"]) == list(
        range(len(additional))
    )
    cond, body = (_graph(gm, node.kwargs[name]) for name in ("cond_fn", "body_fn"))
    if not fits or len(placeholders(body)) != len(carried) + len(additional):
        return None
    return LoopNode(node, cond, body, carried, additional, [written[base] for base in bases], False)


def find_loops(gm: fx.GraphModule) -> list[LoopNode]:
    """Those that can become a step; others stay torch's."""
    found = []
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in WHILE_LOOPS:
            found.append(_plain(gm, node))
        elif node.target is auto_functionalized and node.args[0] is WHILE_LOOPS[0]:
            found.append(_functionalized(gm, node))
    return [loop for loop in found if loop is not None]


def replace_loop(gm: fx.GraphModule, loop: LoopNode, call: Callable, ask: bool) -> None:
    """The node calls `call(carried, additional, first)`. `first` is the condition before the first iteration, worked
    out in the graph around it; None without `ask`."""
    first = None
    if ask:
        first = copy_nodes(gm, loop.node, loop.cond, [*loop.carried, *loop.additional])
        first = first[0] if isinstance(first, (list, tuple)) else first
    graphs = [n for n in loop.node.all_input_nodes if n.op == "get_attr"]
    loop.node.target, loop.node.kwargs = call, {}
    loop.node.args = (tuple(loop.carried), tuple(loop.additional), first)
    for node in graphs:
        if not node.users:
            gm.graph.erase_node(node)


__all__ = ["LoopNode", "find_loops", "replace_loop"]
