"""Sizes of 0: the values, types and errors of eager, whether the size is known when the graph is compiled or only when
it runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from ark_torch.records import recording

COLUMNS = 4


def _indices(y, *trailing):
    return torch.zeros(y.size(0), *trailing, dtype=torch.int64)


def _images(y):
    """Channels last."""
    return y.view(y.size(0), 1, 1, COLUMNS).expand(y.size(0), 1, 3, COLUMNS).contiguous().permute(0, 3, 1, 2)


BODIES = {
    "sum": lambda y: y.sum(),
    "sum of rows": lambda y: y.sum(0),
    "sum of columns": lambda y: y.sum(1),
    "sums": lambda y: (y.sum(), y.sum(0), y.sum(1), y * 2),
    "sum of integers": lambda y: (y * 10).to(torch.int32).sum(),
    "sum of halves": lambda y: y.to(torch.bfloat16).sum(),
    "sum used": lambda y: (y * 2 + 1).sum(0).softmax(0) @ torch.ones(COLUMNS, 3),
    "long sum": lambda y: y.repeat(1, 600).sum(0),
    "middle sum": lambda y: y.expand(20, y.size(0), COLUMNS).sum(1),
    "kept columns": lambda y: y.t().contiguous().view(2, 2, -1).sum(1),
    "mean": lambda y: y.mean(),
    "mean of rows": lambda y: y.mean(0),
    "prod": lambda y: y.prod(),
    "any": lambda y: (y > 0).any(),
    "all": lambda y: (y > 0).all(0),
    "amax of columns": lambda y: y.amax(1),
    "argmax of columns": lambda y: y.argmax(1),
    "softmax of rows": lambda y: y.softmax(0),
    "softmax of columns": lambda y: y.softmax(1),
    "var": lambda y: y.var(),
    "var of rows": lambda y: y.var(0),
    "cumsum": lambda y: (y.cumsum(0), y.cumsum(1)),
    "norm": lambda y: (y.norm(), y.norm(dim=0)),
    "layer norm": lambda y: F.layer_norm(y, (COLUMNS,)),
    "loss": lambda y: F.mse_loss(y, y * 2),
    "cross entropy": lambda y: F.cross_entropy(y, _indices(y)),
    "k": lambda y: y.t() @ y,
    "k of many": lambda y: y.repeat(1, 16).t() @ y.repeat(1, 32),
    "k with an epilogue": lambda y: F.linear(y.t(), y.t(), torch.ones(COLUMNS)).relu(),
    "m": lambda y: y @ torch.ones(COLUMNS, 8) + 1,
    "n": lambda y: torch.ones(3, COLUMNS) @ y.t(),
    "m and n": lambda y: y @ y.t(),
    "dot": lambda y: y[:, 0] @ y[:, 1],
    "queries and keys": lambda y: F.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None]),
    "queries": lambda y: F.scaled_dot_product_attention(y[None, None], torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4)),
    "keys": lambda y: F.scaled_dot_product_attention(torch.ones(1, 1, 3, 4), y[None, None], y[None, None]),
    "heads": lambda y: F.scaled_dot_product_attention(y[None, :, None], y[None, :, None], y[None, :, None]),
    "batches": lambda y: F.scaled_dot_product_attention(y[:, None, None], y[:, None, None], y[:, None, None]),
    "cat": lambda y: torch.cat([y, y]),
    "cat with others": lambda y: torch.cat([y, torch.ones(2, COLUMNS), y]),
    "cat with what is empty": lambda y: torch.cat([torch.ones(0), y, y[:0].double()]),
    "cat of images": lambda y: torch.cat([_images(y)[:, :0], _images(y)], 1),
    "cat of no images": lambda y: torch.cat([_images(y), torch.ones(0, COLUMNS, 1, 3), _images(y) * 2]),
    "sum of a cat": lambda y: torch.cat([y, y]).sum(),
    "sum of a stack": lambda y: torch.stack([y, y]).sum(0),
    "pad": lambda y: F.pad(y, (0, 0, 1, 2)).sum(1),
    "gather": lambda y: y.gather(1, _indices(y, 2)),
    "embedding": lambda y: F.embedding(_indices(y), torch.ones(5, 3)).sum(0),
    "index add": lambda y: torch.zeros(7, COLUMNS).index_add(0, _indices(y), y),
}
TRAINED = ("sum", "mean", "softmax of rows", "k", "m", "queries and keys", "keys", "cat with others")
# What has no value. Tracing raises before ark sees the graph, unless nobody knows the size yet.
ERRORS = {
    "amax": lambda y: y.amax(),
    "argmax": lambda y: y.argmax(),
    "max": lambda y: y.max(),
    "max of rows": lambda y: y.max(0),
}


def _sliced(body):
    return lambda x: body(x[::2][3:])


def _counted(body):
    """The number of rows is data."""

    def counted(x, rows):
        n = rows.item()
        torch._check(n >= 0)
        torch._check(n <= x.size(0))
        return body(x[:n])

    return counted


def _compare(compiled, body, *inputs):
    torch.testing.assert_close(compiled(*inputs), body(*inputs), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.fixture
def clean():
    """Nobody may meet an internal error."""
    with recording() as records:
        yield
    assert records
    assert [error for record in records for error in record.internal_errors] == []
    assert [cause for record in records for cause in record.runtime_fallbacks if "internal" in cause] == []


@pytest.fixture
def scalar_outputs():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.parametrize("name", BODIES)
def test_dynamic(name: str, clean):
    body = _sliced(BODIES[name])
    compiled = torch.compile(body, backend=ark, dynamic=True)
    for rows in (9, 11, 5, 6, 13):
        _compare(compiled, body, torch.randn(rows, COLUMNS))


@pytest.mark.parametrize("name", BODIES)
def test_static(name: str, clean):
    body = _sliced(BODIES[name])
    _compare(torch.compile(body, backend=ark, dynamic=False), body, torch.randn(5, COLUMNS))


@pytest.mark.parametrize("name", BODIES)
def test_known_when_it_runs(name: str, clean, scalar_outputs):
    body = _counted(BODIES[name])
    compiled = torch.compile(body, backend=ark, dynamic=True)
    for rows in (5, 0, 3):
        _compare(compiled, body, torch.randn(9, COLUMNS), torch.tensor(rows))


def test_rows_that_an_index_leaves(clean, scalar_outputs):
    def body(x):
        y = x[(x[:, 0] > 0).nonzero().squeeze(1)]
        return y.sum(), y.mean(0), (y > 1).any(), y.softmax(0), torch.cat([y, y]).sum(0)

    compiled = torch.compile(body, backend=ark, dynamic=True)
    x = torch.randn(9, COLUMNS).abs()
    for rows in (x, -x, x[:5], -x[:3]):
        _compare(compiled, body, rows)


@pytest.mark.parametrize("name", ERRORS)
def test_no_value(name: str, clean, scalar_outputs):
    body = _counted(ERRORS[name])
    compiled = torch.compile(body, backend=ark, dynamic=True)
    x = torch.randn(9, COLUMNS)
    _compare(compiled, body, x, torch.tensor(4))
    for call in (body, compiled):
        with pytest.raises((RuntimeError, IndexError)):
            call(x, torch.tensor(0))
    _compare(compiled, body, x, torch.tensor(2))


@pytest.mark.parametrize(
    "name", ["sum", "mean", "softmax of rows", "k", "m", "queries and keys", "keys", "cat with others"]
)
def test_gradients(name: str, clean):
    body = _sliced(BODIES[name])
    compiled = torch.compile(body, backend=ark, dynamic=True)
    for rows in (9, 11, 5, 13):
        x = torch.randn(rows, COLUMNS)
        gradients = []
        for call in (body, compiled):
            leaf = x.clone().requires_grad_()
            call(leaf).sum().backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_stays_native(clean):
    """One kernel's graph serves sizes of 0 too."""
    body = _sliced(lambda y: (y.sum(), y.sum(0), y.prod(), (y > 0).all(), y.t() @ y))
    compiled = torch.compile(body, backend=ark, dynamic=True, options={"strict": True})
    for rows in (9, 11, 5, 6):
        _compare(compiled, body, torch.randn(rows, COLUMNS))
