"""Integers worked out from a dynamic size with more than ir's own arithmetic: as data, as sizes, in training."""

from __future__ import annotations

import math

import pytest
import torch

from ark_torch._compat import sympy, sympy_functions
from ark_torch.backend import ark
from ark_torch.records import recording
from ark_torch.segment import NativeSegment
from ark_torch.size_source import to_python
from ark_torch.versions import minor

FUNCTIONS = {
    "int": lambda n: int(n * 0.2),
    "int of a negative": lambda n: int((3 - n) * 0.5),
    "floor": lambda n: math.floor(n / 3),
    "ceil": lambda n: math.ceil(n / 3),
    "round": lambda n: round(n / 4),
    "round to a digit": lambda n: int(round(n * 0.35, 1)),
    "sqrt": lambda n: int(math.sqrt(n)),
    "log2": lambda n: int(math.log2(n)),
    "power": lambda n: int(n**0.5),
    "abs": lambda n: abs(n - 9),
    "and": lambda n: n & 5,
    "or": lambda n: n | 5,
    "xor": lambda n: n ^ 5,
    "left shift": lambda n: n << 1,
    "right shift": lambda n: n >> 1,
    "remainder of a float": lambda n: int(n % 2.5),
    "remainder of a negative": lambda n: (-n) % 4,
    "floor of a negative": lambda n: -n // 4,
    "nested": lambda n: max(int(n * 0.5) + n % 3, math.ceil(n / 7)),
}
if minor(torch.__version__) >= (2, 15):
    del FUNCTIONS["remainder of a float"]  # Dynamo's is a float then, int() or not, for every backend
SIZES = (9, 11, 5, 16, 7, 30)


def _data(f):
    return lambda x: (x + f(x.size(0)), (x * f(x.size(0))).sum(1).softmax(0))


def _sizes(f):
    def body(x):
        n = abs(f(x.size(0)))
        return torch.ones(n) * 2, torch.arange(n) + 1, torch.cat([x, torch.zeros(n, 4)]).sum(0)

    return body


def _both(f):
    return lambda x: ((x[: f(x.size(0))] * f(x.size(0))).cos(), x[: f(x.size(0))].sum(0) * 2)


USES = {"data": _data, "sizes": _sizes, "both": _both}


def _sweep(body, run, limit: int) -> None:
    with recording() as records:
        compiled = torch.compile(body, backend=ark, dynamic=True)
        for n in SIZES:
            x = torch.randn(n, 4)
            torch.testing.assert_close(run(compiled, x), run(body, x), rtol=1e-4, atol=1e-5)
    assert len(records) <= limit, [record.name for record in records]
    assert any(record.segments for record in records)
    assert [error for record in records for error in record.internal_errors] == []
    assert [cause for record in records for cause in record.runtime_fallbacks] == []


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward(name: str, use: str):
    """Dynamo compiles anew at most for results of 0 and 1."""
    _sweep(USES[use](FUNCTIONS[name]), lambda call, x: call(x), limit=3)


def _gradient(call, x):
    leaf = x.clone().requires_grad_()
    loss = call(leaf)
    loss.backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_training(name: str):
    """The backward graph's sizes are saved numbers."""
    f = FUNCTIONS[name]

    def body(x):
        n = abs(f(x.size(0)))
        longer = torch.cat([x.exp() / (1 + x.size(0)), torch.ones(n % 7 + 2, 4) * x[0]])
        return longer.softmax(0)[: x.size(0)].pow(2).sum() + (x * f(x.size(0))).tanh().sum()

    _sweep(body, _gradient, limit=6)


def test_strict():
    """Nothing of it is left to ATen."""
    body = _data(FUNCTIONS["int"])
    compiled = torch.compile(body, backend=ark, dynamic=True, options={"strict": True})
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), body(x), rtol=1e-4, atol=1e-5)


def test_stand_in(monkeypatch):
    """The ATen steps that stand in for a segment get the same numbers."""
    monkeypatch.setattr(NativeSegment, "__call__", NativeSegment._run_fallback)
    for use in USES.values():
        body = use(FUNCTIONS["floor"])
        torch._dynamo.reset()
        compiled = torch.compile(body, backend=ark, dynamic=True)
        for n in SIZES:
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), body(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [-7, -1, 0, 1, 5, 12])
def test_source_has_the_values_of_sympy(n: int):
    s = sympy.Symbol("s", integer=True)
    functions = sympy_functions
    cases = [
        functions.FloorDiv(s, 3) - 2 * s,
        functions.PythonMod(s, 4) ** 2,
        functions.TruncToInt(functions.FloatTrueDiv(functions.ToFloat(s), 2.0)),
        functions.FloorToInt(functions.IntTrueDiv(s, 3)),
        functions.CeilToInt(functions.IntTrueDiv(s, 3)),
        functions.Max(s, -s, 2),
        functions.Min(s + 1, 4),
        -((s - 2) ** 3),
    ]
    for case in cases:
        wanted = case.subs(s, n)  # a sympy.Float, which equals no integer, where torch truncates to one (2.15)
        assert eval(to_python(case, {"s": f"({n})"}), {"math": math}) == int(wanted), case


def test_a_negative_number_as_a_hint():
    def body(x, n):
        return x.new_zeros(int(n**2 / 2) + 1) + x.sum()

    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, dynamic=True, options={"strict": True})
    for n in (-3, -5, 4):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, n), body(x, n))
