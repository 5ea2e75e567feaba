"""Norms of heads, their rotation and the write into a cache: no worse than eager against fp64."""

from __future__ import annotations

import pytest
import torch

import ark_torch
from tests.conftest import has_extension
from tests.support.head_norms import NORMS, POSITIONS, ROTATIONS, check, heads_of, inputs, kept

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_values(norm, rotation, dtype):
    for tokens, heads, dim in [(1, 8, 128), (5, 3, 40)]:
        check(heads_of(norm, rotation, heads), inputs(tokens, heads, dim, DTYPES[dtype], "cpu"))


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_into_a_cache(rotation):
    for tokens, heads, dim in [(1, 4, 64), (7, 2, 24)]:
        cache = torch.randn(1, heads, POSITIONS, dim).bfloat16()
        positions = torch.randperm(POSITIONS)[:tokens]
        args = [*inputs(tokens, heads, dim, torch.bfloat16, "cpu"), cache, positions]
        check(kept("rms", rotation, heads), args)


def test_norm_rotation_and_write_are_one_task():
    """The other task is what reads the cache afterwards."""
    args = [*inputs(1, 8, 128, torch.bfloat16, "cpu"), torch.randn(1, 8, POSITIONS, 128).bfloat16(), torch.tensor([3])]
    assert ark_torch.explain(kept("rms", "halves", 8), *args).tasks == {"row": 1, "pointwise": 1}


def test_rows_that_a_concatenation_joins():
    """A row's own sum is not that of the row before it, which a concatenation of rows would read."""

    def function(x):
        y = x / (x.square().sum(-1, keepdim=True) + 1)
        return torch.cat([-y[3:], y[:3]], 0) * x

    torch.manual_seed(0)
    check(function, [torch.randn(6, 64)])


def test_halves_that_others_read_too():
    def function(x, weight, cos, sin):
        y = NORMS["rms"](x.unflatten(-1, (4, -1)), weight).transpose(1, 2)
        first, second = y.chunk(2, -1)
        turned = -second
        return torch.cat([y * cos + torch.cat([turned, first], -1) * sin, turned.exp()], -1)

    check(function, inputs(3, 4, 32, torch.float32, "cpu"))
