"""Rows whose functions are long code: a thread's chunks go through it in turn, rows stay whole."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def functions(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.log(torch.special.erf(x).abs() + 1.5) + torch.expm1(-x * x).abs())


def less_its_mean(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two walks over the row, and results of it."""
    y = functions(x.float())
    return (y - y.mean(-1, keepdim=True)).to(x.dtype), y.amax(-1), y.sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (1, 1120),
        (3, 8016),
        (3, 8013),
        (150, 4096),
        (150, 4099),
        (3000, 640),
        (3000, 643),
        (3000, 96),
        (40, 131),
        (1, 5),
    ],
)
def test_rows(rows, length, dtype):
    torch.manual_seed(rows + length)
    x = torch.randn(rows, length, device="cuda").to(dtype)
    with torch.no_grad():
        actual = torch.compile(less_its_mean, backend="ark", options={"strict": True})(x)
        y = functions(x.double())
        wanted = y - y.mean(-1, keepdim=True), y.amax(-1), y.sum(-1)
        eager = less_its_mean(x)
    for ours, exact, theirs in zip(actual, wanted, eager):
        assert ours.dtype == theirs.dtype
        error, allowed = (ours.double() - exact).abs().max(), (theirs.double() - exact).abs().max()
        assert error <= 2 * allowed + 1e-6 * exact.abs().max(), (error, allowed)


def test_drawn_rows_do_not_depend_on_their_chunks():
    """The numbers of an element are the same whether one worker has its row or many share it."""
    x = torch.zeros(2, 40000, device="cuda")

    def noise(x):
        return (torch.log1p(-torch.rand_like(x)) + x).argmax(-1)

    found = []
    for workers in (1, 7, 132):
        torch.manual_seed(3)
        with torch.no_grad():
            run = torch.compile(noise, backend="ark", options={"strict": True, "workers": workers})
            found.append(run(x))
        torch.compiler.reset()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
