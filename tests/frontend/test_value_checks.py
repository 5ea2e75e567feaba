"""Values that eager refuses on the CPU: integers divided by zero, probabilities outside of [0, 1]. ark raises what
eager raises, and computes what eager computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.errors import IndexOutOfRange

A, ZERO = torch.tensor([7, -7, 5]), torch.tensor([2, 0, -3])
OUTSIDE, NAN = torch.tensor([0.5, 1.5]), torch.tensor([0.5, float("nan")])
TARGET = torch.tensor([0.0, 1.0])


def halves(a, b):
    a //= b
    return a + 1


BAD = {
    "//": (lambda a, b: a // b, A, ZERO),
    "%": (lambda a, b: a % b, A, ZERO),
    "fmod": (torch.fmod, A, ZERO),
    "trunc": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), A, ZERO),
    "floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), A, ZERO),
    "one divisor": (lambda a, b: a // b, A, torch.tensor(0)),
    "a number": (lambda a: a % 0, A),
    "a number divided": (lambda b: 7 % b, ZERO),
    "int32": (lambda a, b: a // b, A.int(), ZERO.int()),
    "uint8": (lambda a, b: a // b, A.abs().byte(), ZERO.abs().byte()),
    "wraps to 0": (lambda a, b: a // b, A.abs().byte(), torch.tensor(256)),
    "a number that wraps to 0": (lambda a: a % 256, A.abs().byte()),
    "in a sum": (lambda a, b: (a // b).sum(), A, ZERO),
    "computed divisor": (lambda a, b: (a * 3) % (b * 2), A, ZERO),
    "bce": (F.binary_cross_entropy, OUTSIDE, TARGET),
    "bce of less than 0": (F.binary_cross_entropy, -OUTSIDE, TARGET),
    "bce of NaN": (F.binary_cross_entropy, NAN, TARGET),
    "bce, weights": (lambda x, y: F.binary_cross_entropy(x, y, weight=y + 1, reduction="none"), OUTSIDE, TARGET),
    "bce of one value": (F.binary_cross_entropy, OUTSIDE[1], TARGET[1]),
    "bernoulli": (torch.bernoulli, OUTSIDE),
    "bernoulli of one value": (torch.bernoulli, OUTSIDE[1]),
    "bernoulli of less than 0": (torch.bernoulli, -OUTSIDE),
    "bernoulli of NaN": (torch.bernoulli, NAN),
}


@pytest.mark.parametrize("name", BAD)
def test_raises_as_eager(name):
    function, *arguments = BAD[name]
    with pytest.raises(RuntimeError) as eager:
        function(*arguments)
    with pytest.raises(RuntimeError) as compiled:
        torch.compile(function, backend="ark", fullgraph=True)(*arguments)
    assert type(compiled.value) is type(eager.value)
    assert str(eager.value).startswith(str(compiled.value))  # torch adds a request for better words to some


@pytest.mark.parametrize("strict", [False, True])
def test_where_an_argument_is_written(strict):
    """Nothing else can run the step again: the error is ark's own, of eager's type."""
    compiled = torch.compile(halves, backend="ark", options={"strict": strict})
    with pytest.raises(RuntimeError) as error:
        compiled(A.clone(), ZERO)
    assert isinstance(error.value, IndexOutOfRange)


def by_item(a, n):
    return a % n.item()


def by_size(a):
    return a // (a.shape[0] - 3)


def test_by_symbols():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        item = torch.compile(by_item, backend="ark", fullgraph=True)
        assert item(A, torch.tensor(4)).tolist() == by_item(A, torch.tensor(4)).tolist()
        with pytest.raises(IndexOutOfRange):
            item(A, torch.tensor(0))
    size = torch.compile(by_size, backend="ark", fullgraph=True, dynamic=True)
    for n in (5, 7):
        assert size(torch.arange(n)).tolist() == by_size(torch.arange(n)).tolist()
    with pytest.raises(RuntimeError):
        size(torch.arange(3))


GOOD = {
    "//": (lambda a, b: a // b, A, torch.tensor([2, -1, 3])),
    "%": (lambda a, b: a % b, A, torch.tensor([2, -5, 3])),
    "fmod": (torch.fmod, A, torch.tensor([2, -5, 3])),
    "number": (lambda a: (a // 2) % 3, A),
    "floats": (lambda a, b: a // b, A.float(), ZERO.float()),
    "bce": (F.binary_cross_entropy, torch.tensor([0.0, 1.0, 0.3]), torch.tensor([0.0, 1.0, 0.5])),
    "wraps": (lambda a, b: a // b, A.abs().byte(), torch.tensor(258)),
    "bce of one value": (F.binary_cross_entropy, torch.tensor(0.3), torch.tensor(1.0)),
    "bernoulli": (torch.bernoulli, torch.tensor([0.0, 1.0, 1.0])),
    "bernoulli of one value": (torch.bernoulli, torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", GOOD)
def test_computes_as_eager(name):
    function, *arguments = GOOD[name]
    compiled = torch.compile(function, backend="ark", fullgraph=True, options={"strict": True})
    torch.testing.assert_close(compiled(*arguments), function(*arguments), equal_nan=True)


def test_gradients_behind_the_check():
    def loss(x, y):
        return F.binary_cross_entropy(x.sigmoid(), y)

    x = torch.randn(7, requires_grad=True)
    y = torch.rand(7)
    (want,) = torch.autograd.grad(loss(x, y), x)
    compiled = torch.compile(loss, backend="ark", options={"strict": True})
    (got,) = torch.autograd.grad(compiled(x, y), x)
    torch.testing.assert_close(got, want)
