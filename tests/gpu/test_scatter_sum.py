"""Sums by index on a GPU: lists that are longer than shared memory holds, few and many rows, the same bits again."""

from __future__ import annotations

import pytest
import torch

from tests.frontend import test_scatter_sum as host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# rows of the table, terms, columns: both ways to share a tile among threads, whole and part vectors
SIZES = [(2, 3840, 1024), (512, 3840, 1024), (50257, 1024, 768), (30522, 3840, 256), (1000, 77, 9), (5, 100000, 33)]
SIZES += [(512, 3840, 1000), (4096, 20000, 136), (300, 50000, 72)]  # long lists of many rows


def inputs(rows: int, terms: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return host.some((terms, columns), dtype, "cuda"), host.indices((terms,), rows, device="cuda")


@pytest.mark.parametrize("dtype", host.FLOATS, ids=str)
@pytest.mark.parametrize("rows, terms, columns", SIZES)
def test_gradient_of_a_table(rows, terms, columns, dtype):
    source, index = inputs(rows, terms, columns, dtype)
    check(host.gradient(rows), source, index)


def check(body, source: torch.Tensor, index: torch.Tensor) -> None:
    """Within what as many roundings in the sum's type may be off, and one to the result's."""
    mine, exact = host.compiled(body)(source, index), body(source.double(), index)
    largest = int(torch.bincount(index.flatten()).max())
    eps = torch.finfo(torch.float64 if source.dtype == torch.float64 else torch.float32).eps
    bound = torch.finfo(source.dtype).eps * exact.abs() + eps * largest**0.5 * 16 * largest**0.5 + 1e-300
    assert mine.dtype == source.dtype and bool(((mine.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("rows", [40, 3000])
@pytest.mark.parametrize("terms", [2047, 2049, 5000])
def test_one_row_gets_all(rows, terms):
    """More terms than the list of a tile has room for, with a few for its neighbours."""
    source, index = inputs(rows, terms, 40, torch.float32)
    index[: terms - 5] = rows // 2
    check(host.gradient(rows), source, index)
    check(host.gradient(rows, rows // 2), source, index)  # which is left out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_common_words(dtype):
    """Most terms are of the first rows, as tokens are: lists of ever fewer rows, and of the last tile's part."""
    rows, terms = 50257, 16384
    source, _ = inputs(rows, terms, 320, dtype)
    index = (rows ** torch.rand(terms, device="cuda") - 1).long()
    assert (index < 256).sum() > terms // 3
    check(host.gradient(rows), source, index)


def test_same_bits_again():
    source, index = inputs(300, 20000, 64, torch.bfloat16)
    run = host.compiled(host.gradient(300))
    first = run(source, index)
    assert all(torch.equal(first, run(source, index)) for _ in range(10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_into_a_tensor(dtype):
    index = host.indices((5, 80), 22, device="cuda") - 11
    x, y = host.some((11, 48), dtype, "cuda"), host.some((5, 80, 48), dtype, "cuda")
    host.check(lambda x, index, y: x.index_put((index,), y, accumulate=True), x, index, y, terms=400)
    line = index.flatten() % 11
    host.check(lambda x, index, y: x.index_add(0, index, y), x, line, y.flatten(0, 1), terms=400)


def test_training_steps_of_a_model_with_tables_are_one_launch():
    host.train_tables("cuda")
