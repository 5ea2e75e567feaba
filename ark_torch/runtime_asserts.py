"""What was assumed of sizes that only a call knows is checked at every call.

An assertion that makes such a size a number (`torch._check(z.size(0) == 4)`), or another size, is taken for granted as
soon as the graph is traced again: its condition becomes True. So the size is compared where it comes into being.
The error is the one that eager raises: the user's assertions are kept as Dynamo noted them, with their messages.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

from ark_torch._compat import detect_fake_mode, key_get, resolve_unbacked_bindings, size_expr, size_path, sympy

aten = torch.ops.aten
_USER = "_fx_runtime_assert_preserve"  # Dynamo's mark of the user's own assertions
_GENERATED = "Runtime assertion failed for expression"
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


@dataclass(frozen=True)
class SizeCheck:
    """`wanted[i]` is what size i has to be; `symbol` names it, `paths` lead from nodes to the symbols' values."""

    symbol: sympy.Symbol
    wanted: object
    path: tuple
    others: tuple  # (symbol, path), one for each further node
    assertions: tuple[Assertion, ...]


def check_sizes(check: SizeCheck, checked: list, others: list) -> None:
    """A step of the graph: raises RuntimeError where the size is not what the graph was traced with."""
    actual = key_get(checked[0], check.path)
    wanted = check.wanted
    if others:
        values = {symbol: int(key_get(x, path)) for (symbol, path), x in zip(check.others, others)}
        wanted = int(check.wanted.subs(values))
    if actual == wanted:
        return
    values = {check.symbol: int(actual), **(values if others else {})}
    message = _first_failed(check.assertions, values)
    raise RuntimeError(message or f"{_GENERATED} Eq({check.symbol}, {check.wanted}): {actual} is not {wanted}")


ASSERTIONS = {
    aten._assert_scalar.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    check_sizes,
}


def _keep_async(gm: fx.GraphModule) -> None:
    """An assertion on a tensor would be dropped on the way for lack of effects, but not where it has a message."""
    for node in gm.graph.nodes:
        if node.target in (torch._assert_async, aten._assert_async.default) and len(node.all_input_nodes) == 1:
            if len(node.args) + len(node.kwargs) == 1:
                node.args, node.kwargs = (node.all_input_nodes[0], _EAGER_ASYNC), {}
                node.target = torch._assert_async


def _first_failed(assertions, values: dict) -> str | None:
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
        if node.args[1].startswith(_GENERATED):
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
    return _first_failed(assertions, {val.node._expr: source.args[1] + _BEYOND[source.target]})


def _bindings(node: fx.Node) -> dict:
    """The symbols of sizes that come into being with the node's result, as the graph was first traced -> path there."""
    found = node.meta.get("unbacked_bindings")
    fake_mode = detect_fake_mode(node.meta.get("val")) if found else None
    return resolve_unbacked_bindings(fake_mode.shape_env, found) if fake_mode else {}


def _argument_symbols(node: fx.Node) -> dict:
    """The symbols that an argument is or has as its sizes -> path there."""
    val = node.meta.get("val")
    if isinstance(val, torch.SymInt):
        return {size_expr(val): ()}
    if not isinstance(val, torch.Tensor) or val.layout != torch.strided:
        return {}
    return {size_expr(size): size_path(d) for d, size in enumerate(val.shape)}


class _SizeChecks:
    """While the nodes are walked: where each symbol is found, and the sizes whose symbols are not all found yet."""

    def __init__(self, graph: fx.Graph, assertions: tuple[Assertion, ...]):
        self.graph, self.assertions = graph, assertions
        self.places: dict[sympy.Symbol, tuple[fx.Node, tuple]] = {}
        self.waiting: list[tuple[fx.Node, sympy.Symbol, tuple, object]] = []

    def walk(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                for expr, path in _argument_symbols(node).items():
                    self._found(expr, node, path)
            for symbol, path in _bindings(node).items():
                size = key_get(node.meta["val"], path)
                if not isinstance(size, (int, torch.SymInt)):
                    continue
                expr = size_expr(size)
                if expr == symbol:
                    self._found(expr, node, path)
                else:
                    self.waiting.append((node, symbol, path, expr))
            if node.op == "call_function":
                self._insert_after(node)

    def _found(self, expr, node: fx.Node, path: tuple) -> None:
        if isinstance(expr, sympy.Symbol):
            self.places.setdefault(expr, (node, path))

    def _insert_after(self, last: fx.Node) -> None:
        for item in list(self.waiting):
            node, symbol, path, wanted = item
            symbols = [] if isinstance(wanted, int) else sorted(wanted.free_symbols, key=str)
            if any(s not in self.places for s in symbols):
                continue
            self.waiting.remove(item)
            others = tuple((s, self.places[s][1]) for s in symbols)
            check = SizeCheck(symbol, wanted, path, others, self.assertions)
            with self.graph.inserting_after(last):
                last = self.graph.call_function(check_sizes, (check, [node], [self.places[s][0] for s in symbols]))


def _generated_last(graph: fx.Graph) -> None:
    """Between two steps the user's assertions come first: those made of what later ops ask of sizes have no message of
    the user's."""
    held: list[fx.Node] = []
    for node in list(graph.nodes):
        if node.target is aten._assert_scalar.default:
            if str(node.args[1]).startswith(_GENERATED):
                held.append(node)
        elif node.target not in ASSERTIONS and not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool)):
            for assertion in held:
                node.prepend(assertion)
            held.clear()


def keep_assertions(graph: fx.Graph, assertions: tuple[Assertion, ...]) -> None:
    """Compares each size that a node brings forth, where tracing has put something else in for its symbol; drops the
    assertions that it has made out to be true by that."""
    _SizeChecks(graph, assertions).walk()
    for node in list(graph.nodes):
        if node.target is aten._assert_scalar.default and node.args[0] is True:
            graph.erase_node(node)
    _generated_last(graph)


__all__ = ["ASSERTIONS", "Assertion", "check_sizes", "keep_assertions", "take_assertions"]
