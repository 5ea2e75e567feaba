"""Assertions on sizes and numbers that only a call knows hold at every call: eager's error, or eager's result."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.records import recording


@pytest.fixture(autouse=True)
def unknown_sizes():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def ones(count: int, length: int = 12) -> torch.Tensor:
    """`count` elements of 1, then as many of -1 as fit among 8, then zeros."""
    x = torch.zeros(length)
    x[:8] = -1
    x[:count] = 1
    return x


def outcome(body, *inputs):
    """The result, or the error's type and text."""
    try:
        return body(*inputs)
    except Exception as error:
        return type(error), str(error)


def check(body, *calls, dynamic=None, graphs=1):
    """Every call, in order, ends as in eager, out of one compilation. One of them at least has to fail."""
    failed = 0
    with recording() as records:
        compiled = torch.compile(body, backend=ark, fullgraph=True, dynamic=dynamic)
        for inputs in calls:
            wanted, actual = outcome(body, *inputs), outcome(compiled, *inputs)
            failed += isinstance(wanted, tuple) and isinstance(wanted[0], type)
            if isinstance(wanted, torch.Tensor):
                assert isinstance(actual, torch.Tensor), actual
                torch.testing.assert_close(actual, wanted)
            else:
                assert actual == wanted
    assert failed and len(records) == graphs


CONDITIONS = {
    "equal": lambda n: n == 4,
    "equal_from_the_left": lambda n: 4 == n,
    "most": lambda n: n <= 4,
    "less": lambda n: n < 5,
    "multiple": lambda n: n % 4 == 0,
    "product": lambda n: 2 * n == 8,
    "other": lambda n: n != 7,
}
SOURCES = {
    "nonzero": lambda x: (x > 0).nonzero().float(),
    "mask": lambda x: x[x > 0],
    "view": lambda x: (x[x > 0] * 2 + 1).unsqueeze(0).transpose(0, 1),
}


@pytest.mark.parametrize("message", [None, "not so many"])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_size(executor, source, condition, message):
    def body(x):
        z = SOURCES[source](x)
        n = z.size(0)
        if message is None:
            torch._check(CONDITIONS[condition](n))
        else:
            torch._check(CONDITIONS[condition](n), lambda: "not so many")
        return z * 2 + 1

    check(body, (ones(4),), (ones(7),), (ones(4),))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_number(executor, condition):
    def body(x):
        n = (x > 0).sum().item()
        torch._check(CONDITIONS[condition](n), lambda: "not this number")
        return x * n

    check(body, (ones(4),), (ones(7),), (ones(4),))


def test_two_sizes(executor):
    def body(x, y):
        z, w = x[x > 0], y[y > 0]
        torch._check(z.size(0) == w.size(0), lambda: "unlike")
        return z * 2 + w

    check(body, (ones(4), ones(4)), (ones(7), ones(4)), (ones(3), ones(5)), (ones(5), ones(5)))


def test_twice_another_size(executor):
    def body(x, y):
        z, w = x[x > 0], y[y > 0]
        torch._check(z.size(0) == 2 * w.size(0), lambda: "not twice")
        return z.view(-1, 2).sum(1) + w

    check(body, (ones(4), ones(2)), (ones(4), ones(4)), (ones(6), ones(3)))


def test_the_size_of_an_argument(executor):
    def body(x, y):
        z = x[x > 0]
        torch._check(z.size(0) == y.size(0), lambda: "not as many as y has")
        return z * 2 + y

    check(body, (ones(4), ones(4, 8)[:4]), (ones(7), ones(4, 8)[:4]), (ones(6), ones(6, 8)[:6]), dynamic=True)


def test_of_several_the_first_that_fails(executor):
    def body(x):
        z = x[x > 0]
        torch._check(z.size(0) <= 9, lambda: "more than nine")
        torch._check(z.size(0) <= 6, lambda: "more than six")
        torch._check(z.size(0) == 4, lambda: "not four")
        return z.exp()

    check(body, (ones(4),), (ones(5),), (ones(8),), (ones(11),), (ones(4),))


def test_of_an_op_with_several_results(executor):
    def body(x):
        values, counts = torch.unique(x, return_counts=True)
        torch._check(values.size(0) == 3, lambda: "not three values")
        return values * 2 + counts

    check(body, (ones(4),), (ones(4) * ones(4),), (ones(3),))


def test_before_an_argument_is_written(executor):
    """The call that fails leaves its argument alone."""

    def body(x, y):
        z = x[x > 0]
        torch._check(z.size(0) == 4, lambda: "not four")
        y.add_(1)
        return z.sum() + y

    compiled = torch.compile(body, backend=ark, fullgraph=True)
    y = torch.zeros(3)
    compiled(ones(4), y)
    with pytest.raises(RuntimeError, match="^not four$"):
        compiled(ones(7), y)
    assert torch.equal(y, torch.ones(3))


def test_with_gradients(executor):
    def body(x):
        z = x[x > 0]
        torch._check(z.size(0) == 4, lambda: "not four")
        return z.exp().sum()

    compiled = torch.compile(body, backend=ark, fullgraph=True)
    for count in (4, 7, 4):
        x = ones(count).requires_grad_()
        if count == 7:
            with pytest.raises(RuntimeError, match="^not four$"):
                compiled(x)
        else:
            compiled(x).backward()
            torch.testing.assert_close(x.grad, torch.where(x > 0, x.exp(), 0.0).detach())


@pytest.mark.parametrize("message", [(), ("negative",)])
def test_a_tensor(executor, message):
    def body(x):
        torch._assert_async(x.sum() > 0, *message)
        return x * 2

    check(body, (torch.ones(4),), (-torch.ones(4),), (torch.ones(4),))
