"""Norms of heads, their rotation and the write into a cache: no worse than eager against fp64."""

from __future__ import annotations

import pytest
import torch

from tests.support.head_norms import NORMS, POSITIONS, ROTATIONS, check, heads_of, inputs, kept

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(1, 16, 128), (5, 3, 40), (300, 4, 64), (33, 2, 256)]


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_values(norm, rotation):
    for tokens, heads, dim in SHAPES:
        check(heads_of(norm, rotation, heads), inputs(tokens, heads, dim, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_into_a_cache(rotation):
    for tokens, heads, dim in [(1, 8, 128), (7, 2, 24)]:
        cache = torch.randn(1, heads, POSITIONS, dim, device="cuda").bfloat16()
        positions = torch.randperm(POSITIONS, device="cuda")[:tokens]
        check(kept("rms", rotation, heads), [*inputs(tokens, heads, dim, torch.bfloat16, "cuda"), cache, positions])
