"""x[mask] = value: a choice where all chosen places get the same, so that no size depends on the mask."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.versions import minor
from tests.support.lowering_check import check, f32

MASK = torch.arange(6 * 7).reshape(6, 7) % 3 == 0
NUMBER, ROW = torch.tensor(2.5), torch.arange(8.0)


def written(x: torch.Tensor, mask, value) -> torch.Tensor:
    x = x.clone()
    x[mask] = value
    return x


def test_same_value_for_all_places(executor):
    x = f32(6, 7, 8)
    cases = [
        (MASK, NUMBER),
        (MASK, ROW),
        (MASK, ROW[None]),
        (MASK[:, 0], NUMBER),
        (x > 0, NUMBER),
        (x > 0, NUMBER[None]),
    ]
    for mask, value in cases:
        check(lambda x, m, v: torch.index_put(x, (m,), v), x, mask, value)
    check(lambda x, m: written(x, (slice(None), m), 2.5), f32(5, 6, 7), MASK)
    check(lambda x, m: written(x, m, 0), torch.arange(42).reshape(6, 7), MASK)
    if minor(torch.__version__) < (2, 15):  # from there on AOTAutograd makes the result contiguous, eager does not
        check(lambda x, m: written(x, m, -1.5), f32(7, 6).bfloat16().t(), MASK)
    check(lambda x, m: written(x, m, True), MASK.flip(0), MASK)


def test_sizes_that_vary(executor):
    body = lambda x, m, v: torch.index_put(x, (m,), v)
    fast = torch.compile(body, backend=ark, dynamic=True, options={"strict": True})
    for rows in (4, 6, 5):
        given = f32(rows, 7, 8), MASK[:rows], ROW
        assert torch.equal(fast(*given), body(*given))


@pytest.mark.parametrize("value", [torch.arange(14.0), torch.ones(14, 1)])
def test_a_value_for_each_place(executor, value):
    """ATen alone knows which is whose."""
    x = f32(6, 7) if value.ndim == 1 else f32(6, 7, 8)
    with pytest.raises(Exception, match="index_put of a mask with a value for each place.*torch.where"):
        torch.compile(lambda x, m, v: torch.index_put(x, (m,), v), backend=ark, options={"strict": True})(
            x, MASK, value
        )


def test_mask_and_index(executor):
    rows = torch.tensor([0, 1])
    body = lambda x, m, i: torch.index_put(x, (m, i), torch.tensor(1.0))
    with pytest.raises(Exception, match="index_put of a mask"):
        torch.compile(body, backend=ark, options={"strict": True})(f32(6, 7), torch.arange(6) < 2, rows)
