"""Symbolic sizes: sympy expressions to the postfix pool of ir::Graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from ark_torch._compat import sympy, sympy_functions
from ark_torch.size_source import check_python

Size = "int | sympy.Expr"


def _children(expr: sympy.Expr) -> tuple[str, tuple] | None:
    """The expression's outermost operation in the vocabulary of ir::SizeExpr, and its operands; None for others."""
    name = type(expr).__name__
    args = expr.args
    if name in ("Add", "Mul"):
        return name.lower(), args
    if name == "Pow" and args[1].is_Integer and int(args[1]) > 0:
        return "mul", (args[0],) * int(args[1])
    if name in ("FloorDiv", "CleanDiv"):
        return "floordiv", args
    if name in ("Mod", "PythonMod"):
        return "mod", args
    if name == "ModularIndexing":
        return "mod", (sympy_functions.FloorDiv(args[0], args[1]), args[2])
    if name in ("Max", "Min"):
        return name.lower(), args
    return None


@dataclass
class SizePool:
    """The symbols and expressions of one graph.

    What ir::SizeExpr cannot express (floats, roots, bits) becomes a symbol of its own, which the caller works out from
    the others at each call.
    """

    symbols: list[str] = field(default_factory=list)
    derived: dict = field(default_factory=dict)  # symbol -> its expression over symbols that are none of these
    exprs: list[dict] = field(default_factory=list)
    _known: dict = field(default_factory=dict)

    def encode(self, size) -> int | dict:
        """The JSON of a size: a number, or a reference into the pool."""
        if isinstance(size, int):
            return size
        size = sympy.sympify(size)
        return int(size) if size.is_Integer else {"expr": self._expr(size)}

    def _expr(self, expr: sympy.Expr) -> int:
        if expr in self._known:
            return self._known[expr]
        if expr.is_Integer:
            entry = {"op": "const", "value": int(expr)}
        elif expr.is_Symbol:
            entry = self._symbol(expr.name)
        elif (children := _children(expr)) is not None:
            op, args = children
            entry = {"op": op, "args": [self._expr(arg) for arg in args]}
        else:
            entry = self._derive(expr)
        self.exprs.append(entry)
        self._known[expr] = len(self.exprs) - 1
        return self._known[expr]

    def _symbol(self, name: str) -> dict:
        if name not in self.symbols:
            self.symbols.append(name)
        return {"op": "sym", "value": self.symbols.index(name)}

    def _derive(self, expr: sympy.Expr) -> dict:
        """The symbols that it follows from are symbols of the graph too: a stand-in works out every size from them."""
        check_python(expr)
        for symbol in sorted(s.name for s in expr.free_symbols):
            self._symbol(symbol)
        name = f"derived{len(self.derived)}"
        self.derived[name] = expr
        return self._symbol(name)


def contiguous_strides(shape: tuple) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size if size != 0 else step
    return tuple(reversed(strides))


def numel(shape: tuple):
    product = 1
    for size in shape:
        product = product * size
    return product


def floordiv(a, b):
    """a // b of sizes; sympy's own operator would give floor(a / b)."""
    return (
        a // b
        if isinstance(a, int) and isinstance(b, int)
        else sympy_functions.FloorDiv(sympy.sympify(a), sympy.sympify(b))
    )
