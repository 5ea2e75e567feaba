"""Products of 1 to 16 rows of 16 bits with weights k x n: strips of columns (device/matmul/few_rows_columns.cuh)."""

from __future__ import annotations

import pytest
import torch

from tests.support.few_columns import BODIES, check, columns, gated, heads, inputs, normed, pairs, residual

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 9, 12, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_and_epilogues(body, m, dtype):
    check(body, inputs(m, 768, 3072, dtype, "cuda"))


@pytest.mark.parametrize("k", [8, 40, 72, 512, 520, 584, 776, 1000, 1032, 1600, 2560, 3072, 4096, 6400, 11264])
@pytest.mark.parametrize("m", [1, 2, 8, 16])
def test_lengths(m, k):
    check(residual, inputs(m, k, 1000, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("n", [8, 16, 24, 104, 768, 2056, 8456, 16896, 50264])
@pytest.mark.parametrize("m", [1, 6, 13])
def test_columns(m, n):
    """From one strip to wide ones, whose last is not full."""
    check(residual, inputs(m, 1024, n, torch.bfloat16, "cuda"))
    check(normed, inputs(m, 768, n, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("workers", [1, 7, 132])
def test_items_of_several_strips(workers):
    """Items of several strips and segments; of long rows, sums are held from window to window."""
    for m in (1, 4, 16):
        check(normed, inputs(m, 776, 640, torch.bfloat16, "cuda"), workers=workers)
        for body in (gated, pairs):
            check(body, inputs(m, 776, 640, torch.bfloat16, "cuda"), workers=workers)
            check(body, inputs(m, 5128, 320, torch.bfloat16, "cuda"), workers=workers)
    check(residual, inputs(8, 14336, 640, torch.bfloat16, "cuda"), workers=workers)
    check(residual, inputs(16, 8192, 320, torch.bfloat16, "cuda"), workers=workers)


@pytest.mark.parametrize("m", [1, 4])
def test_parts(m):
    check(columns, inputs(m, 768, 3 * 768, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("k", [8, 72, 520, 776, 1032, 1544, 3072, 5128])
@pytest.mark.parametrize("m", [1, 7, 16])
@pytest.mark.parametrize("body", [gated, pairs, heads], ids=lambda body: body.__name__)
def test_two_lanes(body, m, k):
    """Gates and pairs of columns; k ends within a page, a box, a warp's share."""
    check(body, inputs(m, k, 3 * 256, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("n", [48, 2064, 12048, 24624])
@pytest.mark.parametrize("m", [1, 8, 12])
def test_widths_of_two_lanes(m, n):
    """Pairs n / 2 apart, which strips of 8 columns divide, or wider ones."""
    for body in (gated, pairs):
        check(body, inputs(m, 768, n, torch.bfloat16, "cuda"))
