"""Graphs of many nodes and tensors: unrolled loops stay native, in several segments where one plan cannot hold them."""

from __future__ import annotations

import time

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.records import recording


def compiled(body, inputs, **kwargs):
    """(results, records)."""
    with recording() as records:
        results = torch.compile(body, backend=ark, **kwargs)(*inputs)
    return results, records


def test_many_tensors():
    """4000 addresses, more than a launch carries."""
    inputs = [torch.randn(8) for _ in range(2000)]
    results, (record,) = compiled(lambda *xs: [x + 1 for x in xs], inputs)
    torch.testing.assert_close(results, [x + 1 for x in inputs])
    assert not record.fallbacks and len(record.segments) == 2


def test_gradients_of_many_softmaxes_of_one_tensor():
    """Reductions that share what they read: an op takes as many as it has operands for."""
    x = torch.randn(64, 128, requires_grad=True)

    def loss(x):
        return sum((torch.softmax(x[:, i : i + 50], -1) ** 2).sum() for i in range(50))

    start = time.perf_counter()
    with recording() as records:
        (actual,) = torch.autograd.grad(torch.compile(loss, backend=ark)(x), x)
    assert time.perf_counter() - start < 30  # they took minutes
    torch.testing.assert_close(actual, torch.autograd.grad(loss(x), x)[0], rtol=1e-4, atol=1e-4)
    assert not any(r.fallbacks or r.internal_errors for r in records)


@pytest.mark.parametrize("num_writes", [50, 700])
def test_many_writes_to_one_tensor(num_writes):
    def body(x):
        y = x.clone()
        for i in range(num_writes):
            y[:, i % 64] = y[:, (i + 5) % 64] * 0.5 + 1
        return y

    x = torch.randn(10, 64)
    actual, (record,) = compiled(body, [x])
    torch.testing.assert_close(actual, body(x))
    assert not record.fallbacks and not record.internal_errors
