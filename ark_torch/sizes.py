"""Symbolic sizes: sympy expressions to the postfix pool of ir::Graph, and to Python source."""

from __future__ import annotations

from dataclasses import dataclass, field

from ark_torch._compat import sympy, sympy_functions
from ark_torch.errors import Unsupported

Size = "int | sympy.Expr"


def _children(expr: sympy.Expr) -> tuple[str, tuple]:
    """The expression's outermost operation in the vocabulary of ir::SizeExpr, and its operands."""
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
    raise Unsupported(f"size expression {expr} ({name})")


@dataclass
class SizePool:
    """The symbols and expressions of one graph."""

    symbols: list[str] = field(default_factory=list)
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
            if expr.name not in self.symbols:
                self.symbols.append(expr.name)
            entry = {"op": "sym", "value": self.symbols.index(expr.name)}
        else:
            op, args = _children(expr)
            entry = {"op": op, "args": [self._expr(arg) for arg in args]}
        self.exprs.append(entry)
        self._known[expr] = len(self.exprs) - 1
        return self._known[expr]


def to_python(size, names: dict[str, str]) -> str:
    """Python source of a size; `names` gives the variable of each symbol (KeyError when one is missing)."""
    if isinstance(size, int) or size.is_Integer:
        return str(int(size))
    if size.is_Symbol:
        return names[size.name]
    op, args = _children(size)
    parts = [to_python(arg, names) for arg in args]
    if op in ("max", "min"):
        return f"{op}({', '.join(parts)})"
    return "(" + {"add": " + ", "mul": " * ", "floordiv": " // ", "mod": " % "}[op].join(parts) + ")"


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
