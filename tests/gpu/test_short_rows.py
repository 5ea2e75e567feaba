"""Rows that fewer threads than a warp share: values against fp64, no worse than eager; nothing beyond the last row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# The last rows end within a turn of the threads, within a warp and within a tile.
SHAPES = [(100000, 64), (30000, 320), (2364, 197), (30000, 321), (1001, 8), (4099, 40), (513, 128), (7, 64), (9, 600)]
SHAPES += [(4099, 65), (3001, 127), (2003, 257), (517, 513), (301, 769), (203, 1001), (1001, 9), (515, 13), (99, 3)]
SHAPES += [(9, 129), (40, 65)]  # few rows: more threads each


def compiled(body):
    torch._dynamo.reset()
    return torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).abs() / (1 + exact.abs())).max().item()


def assert_no_worse(mine: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """Than eager but for one rounding to the result's type."""
    rounding = 8 if mine.dtype == torch.float32 else 0.25  # of the result; fp32: of a few functions too
    allowed, found = 1.5 * error(theirs, exact) + rounding * torch.finfo(mine.dtype).eps, error(mine, exact)
    assert mine.dtype == theirs.dtype and found <= allowed, f"error {found}, allowed {allowed}"


def check(body, *inputs):
    exact = body(*[x.double() for x in inputs])
    with torch.no_grad():
        mine, theirs = compiled(body)(*inputs), body(*inputs)
    assert_no_worse(mine, theirs, exact)


def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)


BODIES = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log-softmax": lambda x: torch.log_softmax(x, -1),
    "log-sum-exp": log_sum_exp,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:], x[0], x[1]),
    "product and residual": lambda x: x * (x * x).mean(-1, keepdim=True).sigmoid() + x[:1],  # no sum that cancels
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_values(body, shape, dtype):
    torch.manual_seed(0)
    check(body, torch.randn(shape, device="cuda").to(dtype) * 2)


@pytest.mark.parametrize("shape", [(1001, 64), (2364, 197), (517, 321)], ids=str)
def test_in_place(shape):
    """Rows beyond the last one are computed from it, perhaps after it was overwritten: they must not be stored."""
    buffer = torch.randn(shape[0] + 8, shape[1], device="cuda", dtype=torch.bfloat16)
    mine, theirs = buffer.clone(), buffer.clone()

    def body(buffer):
        rows = buffer[: shape[0]]
        rows.copy_(torch.softmax(rows, -1))
        return rows.sum()

    compiled(body)(mine)
    body(theirs)
    torch.testing.assert_close(mine, theirs)
    assert torch.equal(mine[shape[0] :], buffer[shape[0] :])


@pytest.mark.parametrize("shape", [(4099, 64), (2364, 197), (777, 40)], ids=str)
def test_special_values(shape):
    """NaN wins maxima and minima; infinities; places of extremes."""
    x = torch.randn(shape, device="cuda")
    x[::3, shape[1] // 2], x[1::3, -1], x[2::7, 0] = float("nan"), float("inf"), -float("inf")
    body = lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.isnan().any(-1), torch.softmax(x, -1))
    for mine, theirs in zip(compiled(body)(x), body(x), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_strided_rows():
    """Padded rows, and rows of two outer dimensions in another order."""
    x = torch.randn(300, 40, 72, device="cuda", dtype=torch.bfloat16)
    check(lambda x: torch.softmax(x[:, :, :64], -1), x)
    check(lambda x: torch.softmax(x.transpose(0, 1), -1), x)
    check(lambda x: torch.softmax(x[:, :, 3:68], -1), x)


def test_same_values_again():
    x = torch.randn(20011, 64, device="cuda", dtype=torch.bfloat16)
    body = compiled(lambda x: torch.softmax(x, -1))
    first = body(x)
    assert all(torch.equal(first, body(x)) for _ in range(20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [33, 39, 65, 127, 129, 257, 320, 321])
@pytest.mark.parametrize("begin", [0, 1, 6])
def test_rows_that_begin_anywhere(begin, length, dtype):
    """Two results, one of them in place; weights that begin elsewhere; what lies between the rows stays as it was."""
    torch.manual_seed(0)
    shape, end = (1031, length + 8), begin + length
    x, y = torch.randn(shape, device="cuda").to(dtype), torch.randn(shape[0], length, device="cuda").to(dtype)
    weight, bias = torch.randn(2, length + 3, device="cuda").to(dtype)[:, 3:]

    def body(x, y, weight, bias):
        rows = x[:, begin:end]
        total = rows + y
        rows.copy_(F.layer_norm(total, (length,), weight, bias))
        return total, total.logsumexp(-1)

    exact_x, theirs_x, mine_x = x.double(), x.clone(), x.clone()
    exact = body(exact_x, y.double(), weight.double(), bias.double())
    theirs, mine = body(theirs_x, y, weight, bias), compiled(body)(mine_x, y, weight, bias)
    for m, t, e in zip(
        (mine_x[:, begin:end], *mine), (theirs_x[:, begin:end], *theirs), (exact_x[:, begin:end], *exact)
    ):
        assert_no_worse(m, t, e)
    between = torch.ones(shape, device="cuda", dtype=torch.bool)
    between[:, begin:end] = False
    assert torch.equal(mine_x[between], x[between])


@pytest.mark.parametrize("place", [0, 1, -1, -2, 8])
def test_infinities_at_the_ends(place):
    """Elements beside the vectors count once, and what stands in for those that a row has not counts in no row."""
    x = torch.randn(2003, 129, device="cuda")
    x[::3, place] = float("inf")
    x[1::3, place] = -float("inf")
    body = lambda x: (x.amax(-1), x.sum(-1), torch.logsumexp(x, -1), (x - x.amin(-1, keepdim=True)).isnan().sum(-1))
    for mine, theirs in zip(compiled(body)(x), body(x), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
