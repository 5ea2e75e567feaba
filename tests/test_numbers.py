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
