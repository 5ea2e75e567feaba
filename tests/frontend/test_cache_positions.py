"""Decode attention whose keys are written into a cache from a position on, by indices of several kinds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import ark_torch  # noqa: F401  (registers the backend)
from tests.conftest import has_extension

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
POSITIONS, HEADS, DIM = 64, 2, 64
INDICES = {
    "counting": lambda a: a,
    "steps": lambda a: a * 5,
    "halved": lambda a: (a * 2) >> 1,
    "halved beyond a row": lambda a: (a * 128) >> 7,
    "masked": lambda a: (a * 3) & 7,
    "squares": lambda a: a * a,
    "masked by each other": lambda a: ((a * 3) & (a + 1)) + a * 4,
    "backward": lambda a: a.flip(0),
}


def step(index):
    def function(keys, values, q, k, v, position):
        rows = torch.arange(k.shape[2])
        keys.index_copy_(2, position + index(rows), k * 2)
        values.index_copy_(2, position + index(rows), v * 2)
        seen = torch.arange(POSITIONS)[None] <= (position + rows)[:, None]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None]) * 1

    return function


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("index", INDICES)
def test_indices(index, tokens):
    torch._dynamo.reset()
    torch.manual_seed(1)
    cache = [torch.randn(1, HEADS, POSITIONS, DIM).bfloat16() for _ in range(2)]
    new = [torch.randn(1, HEADS, tokens, DIM).bfloat16() for _ in range(3)]
    position, function = torch.tensor(40), step(INDICES[index])
    exact = function(*(t.double() for t in cache + new), position)
    eager = function(*(t.clone() for t in cache + new), position)
    with torch.no_grad():
        got = torch.compile(function, backend="ark", options={"strict": True})(
            *(t.clone() for t in cache + new), position
        )
    error = lambda x: (x.double() - exact).square().mean().sqrt().item()
    assert error(got) <= 1.5 * error(eager) + 1e-6
