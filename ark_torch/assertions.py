"""The user's assertions as Dynamo noted them, with the messages that eager raises."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

from ark_torch._compat import sympy

aten = torch.ops.aten
_USER = "_fx_runtime_assert_preserve"  # Dynamo's mark of the user's own assertions
GENERATED = "Runtime assertion failed for expression"
_EAGER = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


_EAGER_ASYNC = "Expected Tensor with single nonzero value, but got zero"
_BEYOND = {operator.ge: -1, operator.le: 1}  # from a bound to the next number that it excludes


@dataclass(frozen=True)
class Assertion:
    """The user's: a condition over size symbols, and eager's message."""

    condition: sympy.Basic
    message: str


def _keep_async(gm: fx.GraphModule) -> None:
    """An assertion on a tensor would be dropped on the way for lack of effects, but not where it has a message."""
    for node in gm.graph.nodes:
        if node.target in (torch._assert_async, aten._assert_async.default) and len(node.all_input_nodes) == 1:
            if len(node.args) + len(node.kwargs) == 1:
                node.args, node.kwargs = (node.all_input_nodes[0], _EAGER_ASYNC), {}
                node.target = torch._assert_async


def first_failed(assertions, values: dict) -> str | None:
    """The message of the first assertion that these values make false."""
    return next((a.message for a in assertions if _is_false(a.condition, values)), None)


def _is_false(condition: sympy.Basic, values: dict) -> bool:
    if not condition.free_symbols <= values.keys():
        return False
    try:
        return condition.subs(values) == sympy.false
    except (AssertionError, ZeroDivisionError):  # a remainder of or by a number that it is not defined for
        return False


def _condition(node: fx.Node):
    """What Dynamo's assertion says, before anything was put in for its symbols; None where it is not of symbols."""
    source = node.args[0] if node.args else None
    val = source.meta.get("example_value") if isinstance(source, fx.Node) else None
    return val.node._expr if isinstance(val, torch.SymBool) else None


def take_assertions(gm: fx.GraphModule) -> list[Assertion]:
    """The user's assertions in Dynamo's graph, in order. They and what Dynamo made of them get eager's messages."""
    _keep_async(gm)
    found = []
    nodes = [n for n in gm.graph.nodes if n.target is aten._assert_scalar.default and len(n.args) == 2]
    for node in (n for n in nodes if n.meta.get(_USER)):
        if node.args[1].startswith(GENERATED):
            node.args = (node.args[0], _EAGER)
        condition = _condition(node)
        if isinstance(condition, sympy.Basic):
            found.append(Assertion(condition, node.args[1]))
    for node in nodes:
        if not node.meta.get(_USER):
            node.args = (node.args[0], _message_of_bound(node, found) or node.args[1])
    return found


def _message_of_bound(node: fx.Node, assertions: list[Assertion]) -> str | None:
    """Of a bound that Dynamo made of assertions: the message of the first that the next value beyond it breaks."""
    condition, source = _condition(node), node.args[0]
    same = [a.message for a in assertions if condition is not None and a.condition == condition]
    if same:
        return same[0]
    if not isinstance(source, fx.Node) or source.target not in _BEYOND or not isinstance(source.args[1], int):
        return None
    val = source.args[0].meta.get("example_value") if isinstance(source.args[0], fx.Node) else None
    if not isinstance(val, torch.SymInt) or not isinstance(val.node._expr, sympy.Symbol):
        return None
    return first_failed(assertions, {val.node._expr: source.args[1] + _BEYOND[source.target]})


__all__ = ["GENERATED", "Assertion", "first_failed", "take_assertions"]
