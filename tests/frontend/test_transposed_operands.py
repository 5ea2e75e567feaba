"""Pointwise ops some of whose operands are transposed: odd sizes, every size of element, offsets off alignment, beside
what stands still along a dimension, and in place. The kernels' own way: tests/gpu/test_transposes.py."""

from __future__ import annotations

import itertools

import pytest
import torch

from ark_torch.backend import ark

DTYPES = [torch.uint8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64]


def values(shape, dtype) -> torch.Tensor:
    return torch.randint(-8, 8, shape).to(dtype)  # exact in every type


def check(body, *inputs):
    """Results, and every argument afterwards, are eager's, bit for bit."""
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*mine), body(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (129, 257), (769, 301), (24, 1031)], ids=str)
def test_matrices(shape, dtype, executor):
    a, b = values(shape, dtype), values(shape[::-1], dtype)
    check(lambda a, b: ((a.t() * 2).contiguous(), a + b.t(), a.t() + b), a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64], ids=str)
def test_permutes(dtype, executor):
    x = values((18, 3, 17, 21), dtype)
    check(lambda x: [(x.permute(order) + 1).contiguous() for order in itertools.permutations(range(4))], x)


@pytest.mark.parametrize("begin", [1, 3])
def test_offsets(begin, executor):
    a, b, out = (values(size, torch.bfloat16) for size in ((101, 223), (230, 111), (110, 241)))

    def body(a, b, out):
        part = out[begin : begin + 100, begin + 1 : begin + 220]
        part.copy_(a[:100, :219] + b[begin : begin + 219, :100].t())
        return out + 0

    check(body, a, b, out)


def test_in_place(executor):
    check(lambda a, b: a.add_(b.t()) * 2, values((115, 87), torch.bfloat16), values((87, 115), torch.bfloat16))


def test_broadcast_beside_transposed(executor):
    x, y = values((5, 67, 45), torch.bfloat16), values((45, 67), torch.bfloat16)
    row, plane = values((67,), torch.bfloat16), values((5, 1, 1), torch.float32)
    check(lambda x, y, row: x.transpose(1, 2) + y + row, x, y, row)
    check(lambda x, y, plane: (x.transpose(1, 2) * plane + y).contiguous(), x, y, plane)
    check(lambda x, y: x + y.t(), x, y)
    check(lambda x, row: (x.permute(2, 0, 1) + row).contiguous(), x, row)


def test_several(executor):
    a, b, c = (values(size, torch.bfloat16) for size in ((101, 75), (75, 101), (101, 75)))
    check(lambda a, b, c: a.t() * c.t() + b, a, b, c)
    check(lambda a, c: (a.t() + c.t() + a.float().t() + c.double().t()).contiguous(), a, c)
