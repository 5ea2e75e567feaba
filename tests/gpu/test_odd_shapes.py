"""Pointwise tasks on rows that no vector divides: every element, and nothing behind the last."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def check(body, *inputs):
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        torch.testing.assert_close(compiled(*mine), body(*theirs))
    torch.testing.assert_close(mine, theirs)


def values(shape, dtype) -> torch.Tensor:
    return torch.randint(-8, 8, shape, device="cuda").to(dtype)  # exact in every type


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(4097, 4095), (33, 65), (3, 1001), (1, 7), (127, 257)], ids=str)
def test_rows(shape, dtype):
    x, y, row, column = (
        values(shape, dtype),
        values(shape, dtype),
        values(shape[1:], dtype),
        values((shape[0], 1), dtype),
    )
    check(lambda x, y, row, column: (x + y, x + row, x - column, y * row), x, y, row, column)


@pytest.mark.parametrize("begin", [0, 1, 3, 8])
def test_slices(begin):
    """Padded rows, and rows that begin anywhere: neighbours of what is written stay as they were."""
    x, y = values((515, 1032), torch.bfloat16), values((515, 1001), torch.bfloat16)

    def body(x, y):
        x[:, begin : begin + 1001].add_(y)
        return x[:, begin : begin + 1001] * 2, x[:, 1:1002] + y

    check(body, x, y)


@pytest.mark.parametrize("shape", [(4096, 4097), (2011, 257), (301, 9), (64, 1024)], ids=str)
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float32, torch.bool], ids=str)
def test_rows_and_columns(shape, other):
    """A value per row and one per column, which begins anywhere, of types that may be wider or narrower."""
    x, rows = values(shape, torch.bfloat16), values((shape[0], 1), torch.bfloat16)
    for begin in (0, 1, 5):
        columns = values((shape[1] + 8,), other)[begin : begin + shape[1]]
        check(lambda x, rows, columns: x.relu() * columns + rows, x, rows, columns)


@pytest.mark.parametrize("begin", [0, 1, 6])
@pytest.mark.parametrize("length", [1001, 1000, 33], ids=str)
def test_copies_of_slices(begin, length):
    """Rows that are read off alignment, into rows of any length; long ones, of which an item has a part."""
    x = values((771, length + 8), torch.bfloat16)
    check(lambda x: x[:, begin : begin + length].contiguous(), x)
    check(lambda x: x[:, begin : begin + length].float() + x[:, :length], x)
    long = values((5, 60 * length + 8), torch.bfloat16)
    check(lambda x: torch.cat([x[:, begin : begin + 60 * length], x[:, :1]], 1), long)


@pytest.mark.parametrize(
    "widths", [(768, 769), (1024, 1024), (769, 769), (512, 512, 512, 512, 512), (40001, 1)], ids=str
)
def test_pieces(widths):
    check(lambda *x: torch.cat(x, 1), *[values((517, width), torch.bfloat16) for width in widths])


def test_types_of_other_widths():
    x, y, z = values((301, 1001), torch.bfloat16), values((301, 1001), torch.float32), values((1001,), torch.bool)
    check(lambda x, y, z: (x.float() + y, torch.where(z, x, 1), (y * 2).bfloat16()), x, y, z)


def test_gathered_rows():
    table, index = values((400, 1001), torch.bfloat16), torch.randint(0, 400, (77,), device="cuda")
    check(lambda table, index: table[index] + table[0], table, index)


@pytest.mark.parametrize("rows", [3, 128, 700])
def test_rows_of_gathered_numbers(rows):
    """Numbers of a row's own come first: embeddings of kinds that a table of positions holds, normed."""
    table, kinds = values((400, 1024), torch.bfloat16), values((2, 1024), torch.bfloat16)
    index, position = torch.randint(0, 400, (rows,), device="cuda"), torch.randint(0, 512, (rows,), device="cuda")
    kind_of = torch.randint(0, 2, (512,), device="cuda")
    check(
        lambda table, kinds, index, position, kind_of: torch.nn.functional.layer_norm(
            table[index] + kinds[kind_of.gather(0, position)], (1024,)
        ),
        table,
        kinds,
        index,
        position,
        kind_of,
    )
