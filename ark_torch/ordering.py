"""Which nodes of an FX graph must follow which: data flow, memory that several nodes share, effects, random order."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from ark_torch.lower_view import MULTI_VIEW_OPS, VIEW_OPS
from ark_torch.runtime_asserts import ASSERTIONS, check_sizes

_VIEWS = set(VIEW_OPS) | set(MULTI_VIEW_OPS)
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: fx.Node) -> bool:
    return node.target in _VIEWS or (is_getitem(node) and is_view(node.args[0]))


def _is_higher_order(node: fx.Node) -> bool:
    """What other higher-order ops than loops do nobody says; a loop (loops.py) may draw and wait like any graph."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) or getattr(node.target, "has_effect", False)


def _is_wait(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith("::wait_tensor")


def _arguments(node: fx.Node) -> Iterator[tuple]:
    """(argument of the schema, what the node passes for it)"""
    for place, argument in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            yield argument, node.args[place]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def _shown(node: fx.Node, place: int = 0) -> fx.Node | None:
    """The node whose memory the result is (of several results: the one at `place`), None where it has memory of its
    own. Waiting, and a view that may not be written, return the memory of their argument though no schema says so."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if _is_wait(node):
        return node.all_input_nodes[0]
    returns = node.target._schema.returns
    info = returns[place if len(returns) > 1 else 0].alias_info if returns else None
    if info is None:
        return node.args[0] if node.target in _VIEWS else None
    for argument, value in _arguments(node):
        if argument.alias_info is not None and _may_share(argument.alias_info, info):
            if isinstance(value, (list, tuple)) and place < len(value):
                value = value[place]
            if isinstance(value, fx.Node):
                return value
    return None


def _may_share(argument, result) -> bool:
    """By the names of memory in a schema; those of lists are not told."""
    names = argument.before_set, result.before_set
    return not all(names) or bool(names[0] & names[1])


def roots(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """node -> the node that owns its memory, as far as the schemas say."""
    owner: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if is_getitem(node):
            source, place = node.args
            shown = _shown(source, place) if isinstance(place, int) and place >= 0 else None
            owner[node] = owner[shown or source]
        else:
            shown = _shown(node)
            owner[node] = node if shown is None else owner[shown]
    return owner


def _affected(node: fx.Node) -> list[fx.Node]:
    """The inputs that are others once the node has run: written, waited for, of a size that has been checked."""
    if node.target is check_sizes:
        return list(node.args[1])
    if node.op != "call_function" or node.target in ASSERTIONS:
        return []
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        written: list[fx.Node] = []
        for argument, value in _arguments(node):
            if argument.alias_info is not None and argument.alias_info.is_write:
                fx.map_arg(value, written.append)
        return written
    return node.all_input_nodes if _has_effect(node) else []


def _has_effect(node: fx.Node) -> bool:
    """Beyond its result and what its schema says that it writes. Higher-order ops may hide anything."""
    if node.op != "call_function" or node.target in ASSERTIONS:
        return False
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return False
    return _is_higher_order(node) or node.is_impure(impure_random=False)


def _is_collective(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COLLECTIVES


def is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _touched_memory(node: fx.Node, owner: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """What the node reads or writes. A collective reads its inputs until somebody waits for its result."""
    memory = {owner[x] for x in node.all_input_nodes}
    if _is_wait(node):
        memory |= {owner[x] for root in list(memory) if _is_collective(root) for x in root.all_input_nodes}
    return memory


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


def _memory_edges(nodes: list[fx.Node], owner: dict[fx.Node, fx.Node], before: dict[fx.Node, set[fx.Node]]) -> None:
    """What has an effect on memory comes after who touched it earlier, and before who touches it later."""
    touched: dict[fx.Node, list[fx.Node]] = {}
    last_effect: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        affected = {owner[x] for x in _affected(node)}
        for root in _touched_memory(node, owner):
            if root in last_effect:
                before[node].add(last_effect[root])
            if root in affected:
                before[node].update(touched.get(root, ()))
                last_effect[root] = node
            touched.setdefault(root, []).append(node)


def _chains(nodes: list[fx.Node], before: dict[fx.Node, set[fx.Node]]) -> None:
    """Random ops, collectives and effects keep their order; so do assertions and effects, writes after assertions."""
    last_ordered = last_effect = last_assertion = None
    for node in nodes:
        effect, assertion = _has_effect(node) or _is_collective(node), node.target in ASSERTIONS
        follows = []
        if effect or is_random(node):
            follows.append(last_ordered)
            last_ordered = node
        if assertion:
            follows += [last_assertion, last_effect]
            last_assertion = node
        elif effect or _affected(node):
            follows.append(last_assertion)
        if effect:
            last_effect = node
        before[node].update(x for x in follows if x is not None)


def order_edges(nodes: list[fx.Node], owner: dict[fx.Node, fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    """For each node the earlier nodes that it must follow."""
    before = _inputs(nodes)
    _memory_edges(nodes, owner, before)
    _chains(nodes, before)
    return {node: edges - {node} for node, edges in before.items()}


__all__ = ["is_getitem", "is_view", "order_edges", "roots"]
