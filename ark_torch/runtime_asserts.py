"""What was assumed of sizes that only a call knows is checked at every call.

An assertion that makes such a size a number (`torch._check(z.size(0) == 4)`), or another size, is taken for granted as
soon as the graph is traced again: its condition becomes True. So the size is compared where it comes into being.
The error is the one that eager raises.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from ark_torch._compat import detect_fake_mode, key_get, resolve_unbacked_bindings, size_expr, size_path, sympy
from ark_torch.assertions import GENERATED, Assertion, first_failed

aten = torch.ops.aten


@dataclass(frozen=True)
class SizeCheck:
    """`wanted` is what the size has to be: a number, or an expression of the symbols of `others`. `path` leads to it
    from the node that makes it; `symbol` is its name in the assertions."""

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
    message = first_failed(check.assertions, values)
    raise RuntimeError(message or f"{GENERATED} Eq({check.symbol}, {check.wanted}): {actual} is not {wanted}")


ASSERTIONS = {
    aten._assert_scalar.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    check_sizes,
}


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


def _divides_by_a_symbol(key) -> bool:
    return isinstance(getattr(key, "divisor", None), torch.SymInt)


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
                if not isinstance(size, (int, torch.SymInt)) or any(_divides_by_a_symbol(key) for key in path):
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
            if str(node.args[1]).startswith(GENERATED):
                held.append(node)
        elif node.target not in ASSERTIONS and not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool)):
            for assertion in held:
                node.prepend(assertion)
            held.clear()


def keep_assertions(graph: fx.Graph, assertions: tuple[Assertion, ...]) -> None:
    """Compares each size that a node brings forth, where tracing has put something else in for its symbol; drops the
    assertions that it has made out to be true by that, and those on types and devices, which tracing has checked."""
    _SizeChecks(graph, assertions).walk()
    for node in list(graph.nodes):
        proved = node.target is aten._assert_scalar.default and node.args[0] is True
        if proved or node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    _generated_last(graph)


__all__ = ["ASSERTIONS", "check_sizes", "keep_assertions"]
