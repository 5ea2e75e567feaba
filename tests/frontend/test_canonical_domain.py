"""Shapes and layouts that domains are made simple for: odd sizes, permutations, broadcasts, sizes of 0 and 1, slices at
any offset, every type."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark

SHAPES = [
    (),
    (1,),
    (0,),
    (7,),
    (1, 1),
    (3, 0, 5),
    (5, 1, 3),
    (33, 129),
    (4097, 3),
    (3, 4097),
    (63, 65),
    (1, 4095),
    (2, 3, 5, 7, 11),
]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def values(shape, dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


def check(body, *inputs):
    """Results, and every argument afterwards, are eager's."""
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    check_given(body, mine, theirs)


def check_given(body, mine, theirs):
    strict = all(x.numel() > 0 for x in mine)  # ATen makes what is empty
    compiled = torch.compile(body, backend=ark, options={"strict": strict}, dynamic=False)
    with torch.no_grad():
        actual, wanted = compiled(*mine), body(*theirs)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, executor):
    check(lambda x, y: (x * y + 1, x - y), values(shape, torch.float32), values(shape, torch.float32))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(37, 41), (3, 5, 67), (1023,)], ids=str)
def test_types(shape, dtype, executor):
    x, y, row = values(shape, dtype), values(shape, dtype), values(shape[-1:], dtype)
    if dtype == torch.bool:
        check(lambda x, y, row: (x & y, x | row), x, y, row)
    else:
        check(lambda x, y, row: (x + y, x * row), x, y, row)


def test_mixed_types(executor):
    x, y, mask = values((19, 75), torch.bfloat16), values((19, 75), torch.float32), values((19, 75), torch.bool)
    check(lambda x, y, mask: (torch.where(mask, x.float(), y), (x.float() + y).bfloat16(), mask), x, y, mask)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
def test_permutations(order, executor):
    """What is read lies in another order, what is written keeps it or does not."""
    x, y = values((6, 35, 33), torch.float32), values((6, 35, 33), torch.float32)
    z = y.permute(order).contiguous()

    def body(x, z):
        p = x.permute(order)
        return p + z, (p * 2).contiguous(), p.exp().permute(order), p.sum((0, 2)), p.amax(1), p.argmax(2)

    check(body, x, z)


def test_channels_last(executor):
    x = values((2, 5, 9, 11), torch.float32).to(memory_format=torch.channels_last)
    scale = values((5, 1, 1), torch.float32)
    check_given(lambda x, scale: (torch.relu(x * scale), x.sum((0, 2, 3)), x.mean(1)), [x, scale], [x.clone(), scale])


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(5, 33, 67), (1, 33, 67), (33, 1, 1), (7, 64, 1)], ids=str)
def test_reductions(shape, dims, executor):
    x = values(shape, torch.float32)
    check(lambda x: (x.sum(dims), x.amax(dims, keepdim=True), x - x.mean(dims, keepdim=True)), x)


def test_place_of_the_largest(executor):
    """Ties: the first place, in the order of the reduced dimensions, wins."""
    x = values((6, 9, 5), torch.int32) % 4
    check(lambda x: (x.argmax(), x.transpose(0, 2).argmin(), x.permute(1, 2, 0).argmax(1)), x)


@pytest.mark.parametrize("shape", [(64, 65), (65, 64), (1, 129)], ids=str)
def test_broadcasts(shape, executor):
    rows, columns = shape
    x = values(shape, torch.bfloat16)
    check(
        lambda x, row, column, one: (x * row, x - column, x + one, row + column, x.expand(3, rows, columns) * 2),
        x,
        values((columns,), torch.bfloat16),
        values((rows, 1), torch.bfloat16),
        values((1, 1), torch.bfloat16),
    )


@pytest.mark.parametrize("begin", [0, 1, 3, 8])
def test_slices(begin, executor):
    """Rows that begin anywhere and are longer than what is used of them."""
    x, y = values((33, 105), torch.bfloat16), values((33, 97), torch.bfloat16)
    check(lambda x, y: (x[:, begin : begin + 97] * y, x[begin:, 1:] + 1, x[:, ::2] + 1), x, y)


@pytest.mark.parametrize("shape", [(33, 129), (5, 7, 9)], ids=str)
def test_in_place(shape, executor):
    def body(x, y):
        x.mul_(y).add_(1)
        y.copy_(y.flip(-1) + x)
        return x * y

    check(body, values(shape, torch.float32), values(shape, torch.float32))


def test_in_place_through_views(executor):
    def body(x, y):
        x.transpose(0, 1).add_(y)
        x[1:, 3:].mul_(2)
        return x.sum(0)

    check(body, values((17, 31), torch.float32), values((31, 17), torch.float32))


def test_coordinates(executor):
    """Values that count along rows of an odd length."""

    def body(x):
        place = torch.arange(x.shape[1])
        keep = place[None, :] <= torch.arange(x.shape[0])[:, None]
        return torch.where(keep, x, 0.0), x + place, x.tril(), torch.arange(x.numel()).view_as(x) + x

    check(body, values((35, 67), torch.float32))


def test_gathered_rows(executor):
    table, index = values((40, 67), torch.bfloat16), torch.randint(0, 40, (9, 11))
    check(lambda table, index: (table[index] * 2, table[:, index[0]] + 1), table, index)
    check(lambda table, index: torch.nn.functional.embedding(index, table) + table[0], table, index)


def test_joined(executor):
    x, y = values((11, 35), torch.float32), values((11, 30), torch.float32)
    check(lambda x, y: (torch.cat([x, y], 1) + 1, torch.cat([x, y[:, :3]], 1).t().contiguous()), x, y)


def test_sizes_of_a_dynamic_graph(executor):
    """One compiled graph, odd and even sizes."""
    compiled = torch.compile(lambda x, y: (x * y, (x + y).sum(0), x.t() + 1), backend=ark, dynamic=True)
    for rows, columns in [(16, 32), (17, 33), (5, 64), (64, 5), (3, 129)]:
        x, y = values((rows, columns), torch.float32), values((columns,), torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), (x * y, (x + y).sum(0), x.t() + 1))
