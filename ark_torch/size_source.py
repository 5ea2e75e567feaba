"""Symbolic sizes as Python source, with the values that Python's own arithmetic has."""

from __future__ import annotations

import math

from ark_torch._compat import sympy
from ark_torch.errors import Unsupported

_INFIX = {
    "Add": " + ",
    "Mul": " * ",
    "Pow": " ** ",
    "FloorDiv": " // ",
    "CleanDiv": " // ",
    "Mod": " % ",
    "PythonMod": " % ",
    "IntTrueDiv": " / ",
    "FloatTrueDiv": " / ",
    "FloatPow": " ** ",
    "PowByNatural": " ** ",
    "LShift": " << ",
    "RShift": " >> ",
    "BitwiseFn_bitwise_and": " & ",
    "BitwiseFn_bitwise_or": " | ",
    "BitwiseFn_bitwise_xor": " ^ ",
}
_CALLS = {
    "Max": "max",
    "Min": "min",
    "Abs": "abs",
    "ToFloat": "float",
    "TruncToInt": "math.trunc",
    "FloorToInt": "math.floor",
    "CeilToInt": "math.ceil",
    "RoundToInt": "round",
    "RoundDecimal": "round",
}
_OPAQUE = "OpaqueUnaryFn_"  # before the name of a function of `math`


def _function(name: str) -> str | None:
    if name.startswith(_OPAQUE) and hasattr(math, name.removeprefix(_OPAQUE)):
        return f"math.{name.removeprefix(_OPAQUE)}"
    return _CALLS.get(name)


def to_python(size, names: dict[str, str]) -> str:
    """Python source of a size; `names` gives the variable of each symbol (KeyError when one is missing). Unsupported
    where an operation has no source here."""
    if isinstance(size, int) or size.is_Integer:
        return f"({int(size)})" if size < 0 else str(int(size))
    if size.is_Float:
        return f"({float(size)!r})"
    if size.is_Symbol:
        return names[size.name]
    name = type(size).__name__
    parts = [to_python(arg, names) for arg in size.args]
    if name == "ModularIndexing":
        return f"({parts[0]} // {parts[1]} % {parts[2]})"
    if name in _INFIX and (name != "Pow" or _is_natural(size.args[1])):
        return f"({_INFIX[name].join(parts)})"
    function = _function(name)
    if function is None:
        raise Unsupported(f"size expression {size} ({name})")
    return f"{function}({', '.join(parts)})"


def _is_natural(exponent: sympy.Expr) -> bool:
    return exponent.is_Integer and int(exponent) > 0


def check_python(size: sympy.Expr) -> None:
    """Raises Unsupported for a size that has no Python source."""
    to_python(size, {symbol.name: symbol.name for symbol in size.free_symbols})
