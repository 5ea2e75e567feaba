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
    """Results, and every argument afterwards, are eager's."""
    torch._dynamo.reset()
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    compiled = torch.compile(body, backend=ark, options={"strict": strict}, dynamic=False)
    with torch.no_grad():
        actual, wanted = compiled(*mine), body(*theirs)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
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
        empty = rng.random() < 0.15
        own[dim] = 0 if empty else max(1, own[dim] + rng.randint(-5, 5))
        # torch.compile decomposes cat and forgets the type of what is empty
        dtype = rng.choice(TYPES) if rng.random() < 0.3 and not empty else torch.float32
        parts.append(layout(values(own, dtype), rng))
    return parts, dim - rng.choice([0, rank])


@pytest.mark.parametrize("seed", range(16))
def test_random(seed, executor):
    parts, dim = pieces(seed)
    strict = all(x.numel() > 0 for x in parts)  # ATen makes what is empty
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
