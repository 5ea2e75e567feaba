"""Sizes as symbols: one compilation serves many sizes, 0 and 1 included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ark_torch.backend import ark
from ark_torch.records import recording
from ark_torch.segment import NativeSegment


def sweep(body, make, sizes, limit=1, **options):
    """Runs every size through one dynamic compilation and compares with eager; at most `limit` graphs may be
    compiled."""
    with recording() as records:
        compiled = torch.compile(body, backend=ark, dynamic=True, options=options)
        for size in sizes:
            inputs = make(size)
            torch.testing.assert_close(compiled(*inputs), body(*inputs), rtol=1e-4, atol=1e-5)
    assert len(records) <= limit, [r.name for r in records]
    return records


def test_sizes_change_without_compiling(executor):
    records = sweep(lambda x: (x * 2 + 1).sum(1), lambda n: (torch.randn(n, 7),), [5, 9, 2, 130], strict=True)
    assert records[0].segments[0].lowered.symbols


def test_zero_and_one(executor):
    """Dynamo specialises on 0 and 1: three graphs at most."""
    sweep(lambda x: x * 2 + 1, lambda n: (torch.randn(n, 7),), [5, 0, 1, 9], limit=3)


def test_marked_dynamic_with_size_zero(executor):
    def body(x):
        return x.sum(1) + 1, torch.cat([x, x])

    compiled = torch.compile(body, backend=ark)
    for n in (6, 3, 0):
        x = torch.randn(n, 4)
        if n:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), body(x))


def test_static_zero(executor):
    def body(x):
        return x + 1, x.sum(), torch.cat([x, torch.ones(2, 4)]), x @ torch.ones(4, 3)

    x = torch.zeros(0, 4)
    torch.testing.assert_close(torch.compile(body, backend=ark)(x), body(x))


def test_size_as_data(executor):
    def body(x):
        n, m = x.shape
        return x * n, x / (n * m), x + m // 2, torch.full((n,), m), torch.arange(n) * m, x.mean()

    sweep(body, lambda n: (torch.randn(n, n + 3),), [4, 7, 12], strict=True)


def test_expressions(executor):
    def body(x):
        y = F.pad(x, (0, 3))
        return torch.cat([x, y], 1), x.reshape(-1, 2), x[:, : x.shape[1] // 2], y.flatten()

    sweep(body, lambda n: (torch.randn(4, 2 * n),), [3, 5, 8], strict=True)


def test_matmul_and_attention(executor):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.proj(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    model = Model()
    with torch.no_grad():
        sweep(model, lambda n: (torch.randn(2, n, 16),), [4, 9, 33], strict=True)


def test_training(executor):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compiled = torch.compile(model, backend=ark, dynamic=True)
    with recording() as records:
        for n in (3, 6, 11):
            x, target = torch.randn(n, 8), torch.randint(0, 4, (n,))
            model.zero_grad()
            F.cross_entropy(compiled(x), target).backward()
            actual = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            torch.testing.assert_close(actual, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)
    assert len(records) == 2


def test_integers_from_the_host(executor):
    with recording() as records:
        compiled = torch.compile(lambda x, n: x * n + n, backend=ark, dynamic=True)
        for n in (3, 5, 100, 2**40):
            x = torch.arange(6)
            assert torch.equal(compiled(x, n), x * n + n)
    assert len(records) <= 2


def test_floats_from_the_host(executor):
    compiled = torch.compile(lambda x, s: x * s + s, backend=ark, dynamic=True)
    for s in (0.5, 2.25, -3.0):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, s), x * s + s)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_size_from_data(executor):
    def body(x, n):
        k = n.item()
        torch._check(k >= 2)
        torch._check(k <= x.shape[0])
        return x[:k] * 2, torch.zeros(k) + 1

    compiled = torch.compile(body, backend=ark, fullgraph=True)
    for k in (3, 5):
        x = torch.randn(8)
        torch.testing.assert_close(compiled(x, torch.tensor(k)), body(x, torch.tensor(k)))


LENGTHS = {
    "arange": lambda n, x: torch.arange(n) * 2.0,
    "mask": lambda n, x: torch.arange(n)[None] < x[:, None],
    "more": lambda n, x: torch.zeros(3, n + 1) + x.sum(),
    "narrow": lambda n, x: x.narrow(0, n - 1, 2) * 2,
}


@pytest.mark.parametrize("what", LENGTHS)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_sizes_worked_out_from_data(executor, what):
    def body(n, x):
        k = n.item()
        torch._check(k >= 1)
        torch._check(k <= 5)
        return LENGTHS[what](k, x)

    compiled = torch.compile(body, backend=ark, fullgraph=True)
    for k in (3, 5):
        n, x = torch.tensor(k), torch.arange(6.0)
        torch.testing.assert_close(compiled(n, x), body(n, x))


@pytest.mark.parametrize("dim", [0, 1])
def test_marked_unbacked_free(executor, dim):
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, dim)
    compiled = torch.compile(lambda x: F.softmax(x, dim), backend=ark, options={"strict": True})
    torch.testing.assert_close(compiled(x), F.softmax(x, dim))


NUMBERS_OF_THE_GRAPH = {
    "size": (lambda x: x[: int((x > 0).sum())] * 2, torch.linspace(-1, 3, 9)),
    "sizes": (lambda n: [part * 2 for part in torch.ones(7, 2).split(n.tolist())], torch.tensor([3, 4])),
    "float": (lambda x: x.masked_fill(x > 0, x.sum().item()), torch.linspace(-1, 3, 9)),
    "bool": (lambda x: x * bool((x > 0).any().item()), torch.linspace(-1, 3, 9)),
    "returned": (lambda x: (x.sum().item(), x * 2), torch.arange(4.0)),
}


@pytest.mark.parametrize("what", NUMBERS_OF_THE_GRAPH)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_numbers_from_what_the_graph_computes(executor, what):
    """`item` reads what a native segment makes."""
    body, x = NUMBERS_OF_THE_GRAPH[what]
    compiled = torch.compile(body, backend=ark, fullgraph=True)
    for y in (x, x + x, x):
        y = x if what == "sizes" else y
        torch.testing.assert_close(compiled(y), body(y))


def test_equal_sizes_that_look_different(executor):
    """n and 2 * ((n + 1) // 2), which guards say are the same."""

    def body(x, y, i):
        z = torch.stack([x[..., ::2], y[..., 1::2]], -1).flatten(-2)
        z[i] = y[i] * 2
        return z, z + y

    compiled = torch.compile(body, backend=ark, dynamic=True)
    for rows, width in ((3, 24), (5, 6)):
        inputs = torch.randn(rows, 2, width), torch.randn(rows, 2, width), torch.randperm(rows)
        torch.testing.assert_close(compiled(*inputs), body(*inputs))


def test_declined_sizes_run_through_aten(executor, monkeypatch):
    """The stand-in of a segment gets the symbols; arguments that are sizes themselves are among what its nodes read."""
    monkeypatch.setattr(NativeSegment, "__call__", NativeSegment._run_fallback)
    compiled = torch.compile(lambda x, n: x.exp().view(2, n, -1) + n, backend=ark, dynamic=True)
    for n in (3, 5):
        x = torch.randn(2 * n, 7)
        torch.testing.assert_close(compiled(x, n), x.exp().view(2, n, -1) + n)


def test_slices_of_all_rows_are_written_natively(executor):
    def body(x):
        z = x * 1
        z[:, 2].add_(1)
        return z

    compiled = torch.compile(body, backend=ark, dynamic=True, options={"strict": True})
    for rows in (3, 5):
        x = torch.randn(rows, 4, rows + 3)
        torch.testing.assert_close(compiled(x), body(x))
    x = torch.randn(3, 4, 6, requires_grad=True)
    torch.compile(lambda x: x[:, :].exp(), backend=ark, dynamic=True, options={"strict": True})(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


def write_caches(x, weights, position, *caches):
    """A layer per pair of caches [batch, heads, keys, size] and [heads, keys, batch, size]: keys and values go to their
    places in caches of any lengths, the next layer reads what stands before them."""
    for k, v in zip(caches[::2], caches[1::2]):
        h = F.rms_norm(x, x.shape[-1:])
        key, value = ((h @ w).unflatten(-1, (2, -1)).transpose(1, 2) for w in weights)
        k.index_copy_(2, position, key)
        v.permute(2, 0, 1, 3)[:, :, (position * 2 + 1) % v.shape[1]] = value
        x = x + (k[:, :, position] * v[:, :1].permute(2, 0, 1, 3)).transpose(1, 2).flatten(2)
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
def test_caches_of_different_lengths(executor, rows, dtype):
    """The lengths are factors of places: every op's record has its own."""
    weights = [(torch.randn(64, 64) / 8).to(dtype) for _ in range(2)]
    compiled = torch.compile(write_caches, backend=ark, fullgraph=True, options={"strict": True})
    for batch, lengths in ((2, (9, 17, 9, 31)), (3, (40, 7, 11, 7)), (2, (300, 9, 8, 131))):
        x, position = torch.randn(batch, rows, 64).to(dtype), torch.arange(rows) + 1
        caches = [
            torch.randn((batch, 2, n, 32) if at % 2 == 0 else (2, n, batch, 32)).to(dtype)
            for at, n in enumerate(lengths)
        ]
        mine, exact = [t.clone() for t in caches], [t.double() for t in caches]
        for at, cache in enumerate(mine):
            torch._dynamo.maybe_mark_dynamic(cache, 2 - at % 2)
        with torch.no_grad():
            eager = [write_caches(x, weights, position, *caches), *caches]
            right = [write_caches(x.double(), [w.double() for w in weights], position, *exact), *exact]
            actual = [compiled(x, weights, position, *mine), *mine]
        for a, e, r in zip(actual, eager, right, strict=True):
            scale = r.abs().max()
            assert (a - r).abs().max() <= 2 * (e - r).abs().max() + 1e-6 * scale
