"""Decode attention of every head size on the CPU: no worse than eager against fp64."""

from __future__ import annotations

import pytest

from tests.conftest import has_extension
from tests.support.decode_heads import HEAD_SIZES, MASKS, check

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_head_sizes(dim):
    check(dim, "cpu", heads=(4, 1), keys=8, position=5)
    check(dim, "cpu", heads=(6, 2), queries=3)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask):
    check(256, "cpu", heads=(4, 1), keys=1000, position=777, mask=mask)
