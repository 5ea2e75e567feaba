"""Concatenations, those that their pieces write and those that select: every dimension, any layout, every type."""

from __future__ import annotations

import random

import pytest
import torch

from ark_torch.backend import ark

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
LARGE = 70_000  # elements: pieces of more than 64 KB


def values(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randint(-8, 8, shape).to(dtype)  # exact in every type


def check(body, *inputs, strict=True):
    """Results, where they lie, and every argument afterwards, are eager's."""
    torch._dynamo.reset()
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    compiled = torch.compile(body, backend=ark, options={"strict": strict}, dynamic=False)
    with torch.no_grad():
        actual, wanted = compiled(*mine), body(*theirs)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0, check_stride=True)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def layout(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The same values: as they are, transposed in memory, or a part of more."""
    kind = rng.randrange(3)
    if kind == 1 and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2:
        return torch.nn.functional.pad(x, (1, 2))[..., 1:-2]
    return x


def pieces(seed: int):
    """Pieces of one concatenation, and its dimension."""
    rng = random.Random(seed)
    rank, count = rng.randint(1, 4), rng.randint(1, 6)
    dim = rng.randrange(rank)
    sizes = [1] * rank
    while torch.Size(sizes).numel() < (LARGE if seed % 2 else 500):
        sizes[rng.randrange(rank)] += rng.choice([1, 7, 8, 32, 64])
    parts = []
    for _ in range(count):
        own = list(sizes)
        own[dim] = 0 if rng.random() < 0.15 else max(1, own[dim] + rng.randint(-5, 5))
        dtype = rng.choice(TYPES) if rng.random() < 0.3 else torch.float32
        parts.append(layout(values(own, dtype), rng))
    return parts, dim - rng.choice([0, rank])


@pytest.mark.parametrize("seed", range(16))
def test_random(seed, executor):
    parts, dim = pieces(seed)
    strict = any(x.numel() > 0 for x in parts)  # ATen makes what is empty
    check(lambda *xs: torch.cat(xs, dim), *parts, strict=strict)
    if all(x.dtype == torch.float32 for x in parts):
        check(
            lambda *xs: torch.cat([x.relu() if i % 2 else x * 2 + 1 for i, x in enumerate(xs)], dim),
            *parts,
            strict=strict,
        )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types(dtype, executor):
    check(lambda a, b: torch.cat([a, b], -1), values((300, 700), dtype), values((300, 701), dtype))
    check(lambda a, b: torch.cat([a, b.t()], 0), values((701, 300), dtype), values((300, 700), dtype))


@pytest.mark.parametrize("width", [256, 257, 264], ids=str)
@pytest.mark.parametrize("count", [2, 4, 7])
def test_pieces_of_one_size(width, count, executor):
    """They share an op where they are aligned alike: copied, computed, transposed, read by others too."""
    parts = [values((300, width)) for _ in range(count)]
    check(lambda *xs: torch.cat(xs, 1), *parts)
    check(lambda *xs: torch.cat([x * i for i, x in enumerate(xs)], 0), *parts)
    check(lambda *xs: (torch.cat([xs[0].t(), *(x.t() for x in xs[1:])], 0), xs[0] + 1), *parts)
    check(lambda *xs: (y := torch.cat([x.relu() for x in xs], 1), torch.cat([y[:, :width], xs[1]], 1)), *parts)


def test_same_input(executor):
    """Pieces that are one tensor, overlap, or are broadcast."""
    x = values((400, 400))
    check(lambda x: torch.cat([x, x, x.t()], 1), x)
    check(lambda x: torch.cat([x[1:], x[:-1], x[:1].expand(400, 400)], 0), x)
    check(lambda x: torch.cat([-x[:, 200:], x[:, :200]], -1), x)


def test_read_by_pointwise(executor):
    """What pointwise ops make of a concatenation."""
    a, b, bias = values((300, 400)), values((300, 401)), values((801,))
    check(lambda a, b: torch.cat([a, b], 1).relu(), a, b)
    check(lambda a, b, bias: torch.where(torch.cat([a, b], 1) > bias, torch.cat([a, b], 1) * 2, bias), a, b, bias)
    check(lambda a, b, bias: (torch.cat([a, b], 1) + bias).t() * torch.cat([b, a], 1).t(), a, b, bias)
    check(lambda a, b: (torch.cat([a, b], 1).relu(), torch.cat([a, b], 1).relu().sum(1)), a, b)


def test_inputs_are_overwritten(executor):
    """What is joined is the old value, and a joined value may be what overwrites."""

    def body(x, y):
        out = torch.cat([x, y], 0)
        x.mul_(2)
        return out

    check(body, values((300, 301)), values((200, 301)))

    def shift(x, y):
        x.copy_(torch.cat([x[200:], y], 0))
        return torch.cat([x, y], 1 - 1)

    check(shift, values((600, 301)), values((200, 301)))


def test_computed_pieces(executor):
    """Products, rows and sums of columns as pieces; pieces that others read too, and that are returned."""
    a, w, b = values((256, 128)), values((128, 160)), values((256, 300))

    def body(a, w, b):
        product, top = a @ w, b.amax(1, keepdim=True)
        normal = b - top
        joined = torch.cat([product, normal, b * 2], 1)
        return joined, joined.sum(1), product.relu(), normal.sum(0), torch.cat([normal, joined[:, :100]], 1)

    check(body, a, w, b)


def test_read_by_products(executor):
    a, b, w = values((256, 301)), values((256, 120)), values((421, 64))
    check(lambda a, b, w: torch.cat([a, b], 1) @ w, a, b, w)
    check(lambda a, b, w: torch.cat([torch.cat([a, b], 1), a * 2], 1) @ torch.cat([w, w[:301]], 0), a, b, w)


def test_sizes_vary(executor):
    torch._dynamo.reset()
    body = lambda a, b: torch.cat([a, b * 2], 1)
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=True)
    for rows, left, right in [(300, 256, 257), (301, 64, 900), (7, 5, 3), (200, 1024, 1024)]:
        a, b = values((rows, left)), values((rows, right))
        torch.testing.assert_close(compiled(a, b), body(a, b), rtol=0, atol=0)


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 1, 5), (1, 3, 4, 1)])
def test_layout_of_one_input_again_and_again(shape, times, executor):
    """It lies in memory as eager's does, dimensions of size 1 too."""
    x = values(shape).contiguous(memory_format=torch.channels_last)
    for body in (
        lambda x: torch.cat([x] * times, 1),
        lambda x: torch.cat([x + 1] * times, -1),
        lambda x: torch.stack([x.transpose(1, 2)] * times, 1),
    ):
        check(body, x)
        torch._dynamo.reset()
        assert torch.compile(body, backend=ark)(x).stride() == body(x).stride()


FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels last": torch.channels_last,
}
EMPTY = {
    "first": lambda x, y: torch.cat([x[:, :0], y], 1),
    "last": lambda x, y: torch.cat([y * 2, x, x[:, :0]], -3),
    "of other rank": lambda x, y: torch.cat([torch.zeros(0), x, y], 1),
    "alone but one": lambda x, y: torch.cat([torch.zeros(0), y.transpose(2, 3)], -1),
    "of a wider type": lambda x, y: torch.cat([x.bfloat16(), y[:, :0].double()], 1),
    "of a wider type and other rank": lambda x, y: torch.cat([x.int(), y.int(), torch.zeros(0)], 1),
    "of two types": lambda x, y: torch.cat([x[:0].bfloat16(), x.half(), y.half()], 0),
    "computed": lambda x, y: torch.cat([(x[:, :0] * 2).relu(), x, y], 1) + 1,
    "of a split": lambda x, y: torch.cat([part * 2 for part in x.split([0, 1, 0, x.size(1) - 1], 1)] + [y], 1),
    "of a chunk": lambda x, y: torch.cat([*x[:, :0].chunk(2, 1), *y.chunk(2, 1)], 1),
    "stacked": lambda x, y: torch.cat([torch.stack([x, y])[:, :, :0], torch.stack([y, x])], 2),
    "of empty ones": lambda x, y: torch.cat([torch.cat([x[:, :0], y[:, :0]], 1), y], 1),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)], ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_empty_pieces(name, shape, form, executor):
    """They give their type, and a layout that is contiguous."""
    strides = torch.empty(1, 2, 3, 4).to(memory_format=FORMATS[form]).stride()
    order = sorted(range(4), key=strides.__getitem__, reverse=True)
    back = sorted(range(4), key=order.__getitem__)
    make = lambda: values([shape[d] for d in order]).permute(back)  # strides of the format in sizes of 1, too
    check(EMPTY[name], make(), make())


@pytest.mark.parametrize("name", ["first", "of other rank", "computed", "of a split"])
def test_gradients_beside_empty_pieces(name, executor):
    gradients = []
    body = EMPTY[name]
    inputs = [values((2, 3, 4, 5)), values((2, 3, 4, 5))]
    for call in (body, torch.compile(body, backend=ark)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        call(*leaves).square().sum().backward()
        gradients.append([x.grad for x in leaves])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_only_empty_pieces(executor):
    """ATen makes what is empty."""
    x = values((3, 4))
    check(lambda x: torch.cat([x[:0], x[:0].double()], 0), x, strict=False)
    check(lambda x: torch.cat([torch.zeros(0), x[0, :0].long()], 0), x, strict=False)
    check(lambda x: (torch.cat([x[:0], x[:0, :2], x[:0, :0].double()], 1), x + 1), x, strict=False)


def test_sizes_are_zero_in_some_calls(executor):
    """Of what is computed, and of inputs (compiled once more for those)."""
    torch._dynamo.reset()
    body = lambda a, b: (torch.cat([a[3:], b * 2]), torch.cat([b[:, a.size(0) - 3 :], b.double()[:, :0], b], 1))
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=True)
    for rows, others in [(9, 5), (3, 4), (8, 2), (3, 7), (4, 6)]:
        a, b = values((rows, 40)), values((others, 40))
        torch.testing.assert_close(compiled(a, b), body(a, b), rtol=0, atol=0, check_stride=True)
    body = lambda a, b: torch.cat([a, b * 2], 1)
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=True)
    for left, right in [(5, 6), (0, 7), (3, 0), (9, 2), (0, 3)]:
        a, b = values((30, left)), values((30, right))
        torch.testing.assert_close(compiled(a, b), body(a, b), rtol=0, atol=0, check_stride=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_one_input_two_thousand_times(dim, executor):
    """More instructions than a program has, as pieces."""
    check(lambda x: torch.cat([x] * 2000, dim) + 1, values((3, 5)))
    check(lambda x: torch.cat([x.t()] * 2000, dim - 2), values((3, 5)))


@pytest.mark.parametrize("count", [17, 40, 300])
@pytest.mark.parametrize("dim", [0, 1])
def test_many_pieces(count, dim, executor):
    x = values((24, 40))
    check(lambda x: torch.cat([x] * count, dim), x)
    check(lambda x: torch.cat([x + i for i in range(count)], dim), x)
    parts = [values((24, 40)) for _ in range(count)]
    check(lambda *xs: torch.cat(xs, dim).relu(), *parts)
