"""Values and types that eager has by rules of its own: powers of bools, roundings before a conversion, memory that is
not initialised."""

from __future__ import annotations

import operator

import pytest
import torch

from ark_torch.backend import ark
from tests.support.lowering_check import check

BOOLS = torch.tensor([True, False, True])


@pytest.mark.parametrize("exponent", [True, False])
@pytest.mark.parametrize("power", [torch.pow, operator.pow, torch.Tensor.pow, lambda x, n: torch.pow(x, exponent=n)])
def test_bool_to_the_power_of_a_bool(power, exponent):
    check(lambda x: power(x, exponent), BOOLS)
    check(lambda x: power(x > 0, exponent) & (x > 1), torch.randn(100))
    result = torch.compile(lambda x: power(x, exponent), backend=ark)(BOOLS)
    result.logical_not_()
    assert BOOLS.tolist() == [True, False, True]


@pytest.mark.parametrize("exponent", [1, 2, 2.0])
def test_bool_to_the_power_of_a_number(exponent):
    check(lambda x: x**exponent, BOOLS)


@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.bfloat16])
def test_conversion_sees_the_overflow_of_half(to):
    x = torch.tensor([1e4, 300.0, 2.0, -1e4], dtype=torch.float16)
    check(lambda x: (x * x).to(to).isinf(), x)
    check(lambda x: (x * x).to(to) - 1e8, x)
    check(lambda x: (x * x).to(to).to(torch.float16), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversion_rounds_first(dtype):
    x, y = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype)
    check(lambda x, y: (x * y).float(), x, y, rtol=0, atol=0)
    check(lambda x, y: (x * y).float() - x.float() * y.float(), x, y, rtol=0, atol=0)
    check(lambda x, y: (x * y).double().sum(), x, y, rtol=1e-12, atol=1e-12)


def test_conversion_of_a_product_of_matrices():
    a, b = torch.full((8, 64), 100.0).half(), torch.full((64, 8), 100.0).half()
    check(lambda a, b: (a @ b).float(), a, b)  # 640000: infinity in half


EMPTY = {
    "empty": lambda x: torch.empty(3, 4, dtype=x.dtype),
    "empty_like": lambda x: torch.empty_like(x),
    "new_empty": lambda x: x.new_empty(5),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (3, 1), dtype=x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("what", EMPTY)
def test_empty_under_deterministic_algorithms(what, dtype):
    x, body = torch.ones(4).to(dtype), EMPTY[what]
    torch.use_deterministic_algorithms(True)
    try:
        check(body, x, rtol=0, atol=0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_mode_is_asked_again():
    compiled = torch.compile(lambda x: torch.empty_like(x), backend=ark)
    assert not compiled(torch.ones(3)).isnan().any()
    torch.use_deterministic_algorithms(True)
    try:
        assert compiled(torch.ones(3)).isnan().all()
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch._dynamo.reset()
        assert not compiled(torch.ones(3)).isnan().any()
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("m, k, bound", [(1, 30, 0.55), (4, 30, 0.55), (1, 1000, 2), (8, 1000, 1)])
def test_sums_of_a_product_are_added_in_runs(m, k, bound):
    """The rms error, in rounding units of the sums. One after the other is 0.7 for 30 terms, 4 for 1000."""
    a, b = torch.randn(m, k) + 7, torch.randn(k, 200) + 7
    exact = a.double() @ b.double()
    error = torch.compile(torch.matmul, backend=ark)(a, b).double() - exact
    assert error.square().mean().sqrt() < bound * torch.finfo(torch.float32).eps * exact.mean()
