"""Python numbers that a tensor's type does not hold: they wrap, promote or raise as in eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark

TENSORS = {
    "u8": torch.tensor([0, 1, 200, 255], dtype=torch.uint8),
    "i8": torch.tensor([-128, -1, 3, 127], dtype=torch.int8),
    "i16": torch.tensor([0, 30000, -30000, 5], dtype=torch.int16),
    "i64": torch.tensor([2**62, -3, 0, 7]),
    "f16": torch.tensor([0.0, 1.0, -2.0, 60000.0], dtype=torch.float16),
}
BODIES = {
    "where": lambda x, n: torch.where(x > 1, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "clamp between": lambda x, n: x.clamp(-5, n),
    "full_like": torch.full_like,
    "new_full": lambda x, n: x.new_full((3,), n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "pad": lambda x, n: F.pad(x, (1, 2), value=n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "add": lambda x, n: x + n,
    "mul": lambda x, n: n * x,
    "remainder": lambda x, n: x % n,
    "maximum": lambda x, n: torch.maximum(x, torch.tensor(n)),
    "add alpha": lambda x, n: torch.add(x, x, alpha=n),
    "equal": lambda x, n: x == n,
    "less": lambda x, n: x < n,
}
NUMBERS = [300, -1, 2.5, math.inf]
# AOTAutograd's decompositions of these lose what eager refuses: they make an infinity
DECOMPOSED = {"masked_fill", "clamp", "clamp between", "threshold"}


def outcome(function, *inputs):
    try:
        return function(*inputs)
    except (RuntimeError, OverflowError, ValueError) as error:
        return error


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("what", BODIES)
def test_numbers(what, kind):
    x, body = TENSORS[kind], BODIES[what]
    numbers = NUMBERS + [1e6] * (kind == "f16" and what not in DECOMPOSED)
    for number in [n for n in numbers if not (what == "threshold" and n == math.inf)]:
        torch._dynamo.reset()
        expected = outcome(body, x.clone(), number)
        actual = outcome(torch.compile(lambda x, n=number: body(x, n), backend=ark), x.clone())
        if isinstance(expected, Exception):
            assert isinstance(actual, Exception), (number, expected, actual)
        else:
            torch.testing.assert_close(
                actual, expected, rtol=0, atol=0, equal_nan=True, msg=f"{number}: {actual} {expected}"
            )


FILLS = [
    (2**63 - 1, torch.int64),
    (2**53 + 1, torch.int64),
    (3.7, torch.int64),
    (-1, torch.uint8),
    (2, torch.bool),
    (0.1, torch.bfloat16),
    (0.1, torch.float16),
    (0.1, torch.float32),
]


@pytest.mark.parametrize(
    "what, number, dtype",
    [
        (what, *fill)
        for what in ("full", "slice", "pad", "masked_fill")
        for fill in FILLS
        if what != "pad" or fill[0] >= 0  # which eager refuses
    ],
    ids=str,
)
def test_constants_are_read_as_they_are_stored(executor, what, number, dtype):
    """Rounded, cut off and wrapped, also where no memory is in between."""
    x = torch.tensor([1, 0]).to(dtype)

    def body(x):
        if what == "pad":
            y = F.pad(x, (1, 1), value=number)
        elif what == "masked_fill":
            y = x.masked_fill(x == 0, number)
        else:
            y = torch.full((8,), number, dtype=dtype)
            if what == "slice":
                y[2:4] = x
        return y, y.double() * 2, y.int() + 1

    try:
        expected = body(x)
    except RuntimeError:  # F.pad of 2**63 - 1, from torch 2.15 on
        with pytest.raises(RuntimeError):
            torch.compile(body, backend=ark)(x)
        return
    for mine, wanted in zip(torch.compile(body, backend=ark)(x), expected):
        assert mine.dtype == wanted.dtype and torch.equal(mine, wanted), (mine, wanted)
