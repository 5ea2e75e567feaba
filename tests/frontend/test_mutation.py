"""Arguments that the model writes: whole, through views, overlapping, several times, beside reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ark_torch.backend import ark
from ark_torch.records import recording


def check(body, *inputs, strict=False):
    """Results, and every argument afterwards, are eager's."""
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with recording() as records:
        compiled = torch.compile(body, backend=ark, options={"strict": strict})
        for _ in range(2):
            with torch.no_grad():
                actual, wanted = compiled(*mine), body(*theirs)
            torch.testing.assert_close(actual, wanted)
            torch.testing.assert_close(mine, theirs)
    return records


def test_whole(executor):
    def body(x, y):
        x.add_(y)
        y.mul_(x)
        return x + y

    check(body, torch.randn(4, 5), torch.randn(4, 5), strict=True)


def test_slice(executor):
    def body(x, y):
        x[1:3, ::2] = y
        x[0].fill_(7)
        return x.sum()

    check(body, torch.randn(4, 6), torch.randn(2, 3))


def test_read_before_and_after(executor):
    def body(x):
        before = x * 2
        x.add_(1)
        after = x * 2
        x.mul_(3)
        return before, after, x.sum()

    check(body, torch.randn(9), strict=True)


def test_view_argument(executor):
    """The argument is a view of something larger, at an offset that no vector load likes."""
    body = torch.compile(lambda x: x.mul_(2), backend=ark)
    mine, theirs = torch.arange(40.0), torch.arange(40.0)
    body(mine[3:17])
    theirs[3:17].mul_(2)
    assert torch.equal(mine, theirs)
    body(mine[1::2])
    theirs[1::2].mul_(2)
    assert torch.equal(mine, theirs)


def test_overlapping_arguments(executor):
    def body(a, b):
        a.add_(1)
        return b * 2

    mine, theirs = torch.arange(10.0), torch.arange(10.0)
    with torch.no_grad():
        actual = torch.compile(body, backend=ark)(mine[:6], mine[4:])
    wanted = body(theirs[:6], theirs[4:])
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(mine, theirs)


def test_transposed(executor):
    def body(x, y):
        x.t().add_(y)
        return x @ y

    check(body, torch.randn(5, 5), torch.randn(5, 5), strict=True)


@pytest.mark.parametrize("rows", [1, 3])
def test_cache_append(executor, rows):
    """The StaticCache pattern: index_copy_ at a position that is data, then a read of the whole cache, then the
    position moves."""

    def body(cache, position, new):
        cache.index_copy_(2, torch.arange(rows) + position, new)
        position.add_(rows)
        return (cache * 2).sum(-1)

    check(body, torch.zeros(1, 2, 16, 4), torch.tensor(2), torch.randn(1, 2, rows, 4), strict=True)


def test_cache_returned(executor):
    def body(cache, position, new):
        cache.index_copy_(0, position, new)
        return cache, cache + 1

    check(body, torch.zeros(8, 4), torch.tensor([3]), torch.randn(1, 4))


def test_dtype_of_the_written(executor):
    def body(x, y):
        x.copy_(y)
        return x + 1

    check(body, torch.zeros(4, dtype=torch.bfloat16), torch.randn(4), strict=True)


def test_write_between_fallbacks(executor):
    """An ATen step reads the old contents, another the new."""

    def body(x):
        old = torch.sort(x)[0]
        x.mul_(-1)
        new = torch.sort(x)[0]
        return old + new, x

    check(body, torch.randn(9))


@pytest.mark.parametrize("view", ["slice", "unbind", "dtype"])
def test_view_made_before_a_fallback(executor, view):
    """The write has no other order to the read than that both touch one argument."""

    def body(x, weight):
        first = torch.sort(weight)[0]
        part = {"slice": lambda: x[1:], "unbind": lambda: x.view(2, -1, 8).unbind(0)[1], "dtype": lambda: x}[view]()
        last = first
        for _ in range(4):
            last = torch.softmax(last @ weight, -1)
        if view == "dtype":
            read = x.view(torch.int32)[1:] * last[:1]
        else:
            read = part * last[: part.shape[0]]
        x.add_(first[0, 0])
        return read, part.sum()

    check(body, torch.randn(8, 8), torch.randn(8, 8))


def test_batch_norm_statistics(executor):
    model, twin = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    compiled = torch.compile(model, backend=ark)
    for _ in range(3):
        x = torch.randn(10, 6)
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)


def test_optimizer_step(executor):
    mine, theirs = (nn.Linear(6, 5) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, foreach=True) for m in (mine, theirs)]
    compiled = torch.compile(optimizers[0].step, backend=ark)
    for _ in range(3):
        gradient = [torch.randn_like(p) for p in mine.parameters()]
        for model in (mine, theirs):
            for p, g in zip(model.parameters(), gradient):
                p.grad = g.clone()
        with recording() as records:
            compiled()
        assert all(not r.fallbacks for r in records), [r.fallbacks for r in records]
        optimizers[1].step()
        torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("view", [lambda a, k: a[1:].view_as(a[1:]), lambda a, k: a[k]], ids=["rows", "row"])
def test_a_view_of_a_written_argument_is_one(executor, view):
    """Of sizes that vary, and with a storage offset: at the place of the argument's own memory."""

    def body(a, k):
        v = view(a, k)
        a[0] = 2.0
        return v

    compiled = torch.compile(body, backend=ark, dynamic=True)
    mine, wanted = (torch.arange(56.0).view(8, 7)[::2, 1:] for _ in range(2))
    result, expected = compiled(mine, 2), body(wanted, 2)
    assert torch.equal(result, expected) and torch.equal(mine, wanted)
    assert result.data_ptr() - mine.data_ptr() == expected.data_ptr() - wanted.data_ptr()
