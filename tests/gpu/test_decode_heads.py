"""Decode attention of every head size on the GPU: no worse than eager against fp64."""

from __future__ import annotations

import pytest
import torch

from tests.support.decode_heads import HEAD_SIZES, MASKS, check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_few_rows(dim):
    """One query of up to four heads that share a kv head; caches of a page, of a part and of several."""
    for heads in ((4, 1), (6, 2), (2, 2)):
        for keys, position in ((8, 5), (100, 0), (300, 200), (1500, 1499), (4000, 3000)):
            check(dim, "cuda", heads=heads, keys=keys, position=position)


@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_many_rows(dim):
    for heads, queries in (((16, 1), 1), ((10, 2), 3), ((4, 1), 4), ((2, 2), 7)):
        for keys, position in ((100, 40), (700, 600)):
            check(dim, "cuda", heads=heads, queries=queries, keys=keys, position=position)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_masks(dim, dtype, mask):
    for heads in ((4, 2), (14, 2)):
        check(dim, "cuda", dtype, heads=heads, keys=1000, position=777, mask=mask)


@pytest.mark.parametrize("mask", ["bool", "added"])
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_more_tiles_than_workers(dim, mask, monkeypatch, tmp_path):
    """Two tiles at once; an odd number of them, too."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    cases = ((71, (6, 3), 1), (100, (4, 2), 1), (151, (16, 1), 1), (100, (4, 2), 3))
    for batch, heads, queries in cases:
        check(dim, "cuda", batch=batch, heads=heads, queries=queries, keys=200, position=131, mask=mask)
    plans = [file.read_text() for file in tmp_path.rglob("plan.txt")]
    assert len(plans) == len(cases) and all(", 2 tiles at once" in text for text in plans), "\n".join(plans)
