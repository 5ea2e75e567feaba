"""Sums over rows that begin anywhere between aligned addresses: wide and narrow tables, slices, operands that are off
alignment in different ways, the same bits again."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compiled(body):
    torch._dynamo.reset()
    return torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)


def values(shape, dtype) -> torch.Tensor:
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)  # sums are exact


def check(body, *inputs) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(body)(*inputs), body(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(512, 50257), (3840, 769), (33, 65), (1, 1001), (4097, 35), (300, 4100)], ids=str)
def test_odd_rows(shape, dtype):
    into = torch.float32 if dtype == torch.bfloat16 else dtype
    check(lambda x: (x.sum(0, dtype=into), x.amax(0)), values(shape, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 7, 8, 12, 16, 31])
@pytest.mark.parametrize("rows", [5, 4099, 100003])
def test_few_columns(rows, columns, dtype):
    """Rows that lie one behind another are runs of whole vectors; a prime number of them has parts and a rest."""
    into = torch.float64 if dtype == torch.uint8 else torch.float32
    x = values((rows, columns), dtype)
    check(lambda x: (x.sum(0, dtype=into), x.amax(0)), x)
    check(lambda x: (x[1:].sum(0, dtype=into), x[:, : columns // 2 + 1].amax(0)), x)


def test_primes():
    check(lambda x: x.sum(dtype=torch.float32), values((1000003,), torch.bfloat16))
    check(lambda x, y: (x.float() * y).sum(0), values((4099, 769), torch.bfloat16), values((4099, 769), torch.bfloat16))


def test_beside():
    """Many sums side by side."""
    tables = [values((3840, 769), torch.bfloat16) for _ in range(32)]
    check(lambda *xs: [x.sum(0, dtype=torch.float32) for x in xs], *tables)


@pytest.mark.parametrize("begin", [0, 1, 3, 8])
def test_slices(begin):
    """Padded rows, bases between aligned addresses, two operands that are aligned differently."""
    x, y = values((515, 1032), torch.bfloat16), values((515, 1001), torch.bfloat16)
    check(lambda x, y: (x[:, begin : begin + 1001].float() * y).sum(0), x, y)
    check(lambda x: x[:, begin : begin + 1000].float().sum(0), x)


def test_values_of_rows_and_columns():
    x, y = values((2000, 1003), torch.bfloat16), values((2000, 1003), torch.float32)
    row, column = values((1003,), torch.float32), values((2000, 1), torch.float32)
    check(lambda x, y, row, column: ((x * y).sum(0), (x * column).sum(0), (x - row).amax(0)), x, y, row, column)


def test_two_reduced_and_two_kept_dimensions():
    x = values((13, 5, 11, 101), torch.float32)
    check(lambda x: (x.sum((0, 1)), x.sum((0, 2)), x.sum(0), x.argmax(0)), x)


def test_same_bits_again():
    x = torch.randn(512, 50257, device="cuda", dtype=torch.bfloat16)
    run = compiled(lambda x: x.sum(0, dtype=torch.float32))
    first = run(x)
    torch.testing.assert_close(first.double(), x.double().sum(0), rtol=1e-5, atol=1e-4)
    assert all(torch.equal(first, run(x)) for _ in range(10))
