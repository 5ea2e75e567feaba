"""Pointwise tasks with values per row, channel or column: vectors that end in the next row."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)


def compiled(body, *inputs):
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)(*inputs)


def values(shape, dtype, base: int = 0) -> torch.Tensor:
    """`base`: elements from a multiple of 16 bytes to the first."""
    size = base + torch.Size(shape).numel()
    return torch.randint(0, 5, (size,), device="cuda").to(dtype)[base:].view(shape)  # exact in every type


PATTERNS = ("c", "n", "nc", "hw", "w", "h", "ncw", "")  # the dimensions that an operand moves along


def case(seed: int) -> tuple[tuple[int, ...], torch.dtype, list[str], list[int]]:
    chosen = random.Random(seed)
    shape = (chosen.randint(1, 4), chosen.randint(1, 40), chosen.randint(1, 9), chosen.randint(1, 9))
    if seed % 3 == 0:
        shape = (*shape[:2], 1, chosen.randint(1, 70))
    patterns = [chosen.choice(PATTERNS) for _ in range(chosen.randint(1, 3))]
    bases = [chosen.choice((0, 0, 1, 3, 8)) for _ in range(1 + len(patterns))]
    return shape, chosen.choice(TYPES), patterns, bases


@pytest.mark.parametrize("seed", range(60))
def test_patterns(seed):
    shape, dtype, patterns, bases = case(seed)
    parts = [tuple(n if d in pattern else 1 for d, n in zip("nchw", shape, strict=True)) for pattern in patterns]
    x = values(shape, dtype, bases[0])
    others = [values(part, dtype, base) for part, base in zip(parts, bases[1:], strict=True)]

    def body(x, *others):
        for i, other in enumerate(others):
            x = x * other if i == 1 else x + other
        return x

    assert torch.equal(compiled(body, x, *others), body(x, *others)), case(seed)


@pytest.mark.parametrize("inner", [*range(1, 71), 1001, 4097])
def test_rows(inner):
    x, row, column = (values(s, torch.bfloat16) for s in ((7, 11, inner), (11, 1), (7, 1, inner)))
    body = lambda x, row, column: (x + row, x * row - column)
    for mine, theirs in zip(compiled(body, x, row, column), body(x, row, column), strict=True):
        assert torch.equal(mine, theirs), inner


@pytest.mark.parametrize("begin", [0, 1, 3, 8])
@pytest.mark.parametrize("width", [101, 16])
def test_in_place_of_a_view(width, begin):
    """Neighbours of what is written stay as they were."""
    mine, row, column = (values(shape, torch.bfloat16) for shape in ((5000,), (33, 1), (width,)))
    theirs = mine.clone()
    body = lambda x, row, column: x[begin : begin + 33 * width].view(33, width).add_(row * column)
    compiled(body, mine, row, column)
    body(theirs, row, column)
    assert torch.equal(mine, theirs)


def test_types_of_other_widths():
    x, row, mask = values((9, 65, 49), torch.bfloat16), values((65, 1), torch.float32), values((9, 1, 49), torch.bool)
    body = lambda x, row, mask: (x.float() + row, torch.where(mask, x, 1), (x + row).to(torch.uint8))
    for mine, theirs in zip(compiled(body, x, row, mask), body(x, row, mask), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("shape", [(8, 2048, 7, 7), (8, 256, 56, 56), (1, 96, 55, 55), (3, 5, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_batch_norm(shape, dtype):
    x, *values = (torch.randn(s, device="cuda", dtype=dtype) for s in (shape, *[shape[1:2]] * 4))
    body = lambda x, mean, variance, w, b: F.relu(F.batch_norm(x, mean, variance.abs() + 0.5, w, b))
    close = 2e-2 if dtype == torch.bfloat16 else 1e-5  # eager rounds the factors of a channel otherwise
    torch.testing.assert_close(compiled(body, x, *values), body(x, *values), atol=close, rtol=close)


def test_gelu_by_columns_and_rows():
    x, y, z = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((515, 4097), (4097,), (515, 1)))
    body = lambda x, y, z: F.gelu(x) * y + z
    torch.testing.assert_close(compiled(body, x, y, z), body(x, y, z), atol=4e-2, rtol=2e-2)
