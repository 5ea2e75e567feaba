"""Attention's backward with the query heads of a kv head in parts: gradients against fp64, no worse than eager's."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.support.split_heads import (
    MODES,
    PARTS,
    Attention,
    Projected,
    check,
    check_errors,
    compiled,
    in_double,
    parts_of,
    results,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LENGTHS = [256, 1000, 2048]  # of one kernel
HALF, BRAIN = torch.float16, torch.bfloat16
TYPES = [pytest.param(BRAIN, heads, id=f"bf16-{heads[0]}-{heads[1]}") for heads in PARTS]
TYPES += [pytest.param(HALF, heads, id=f"f16-{heads[0]}-{heads[1]}") for heads in [(8, 2), (12, 1)]]


@pytest.mark.parametrize("dtype, heads", TYPES)
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("mode", MODES)
def test_gradients(monkeypatch, tmp_path, mode, dim, dtype, heads):
    for length in LENGTHS:
        attention = Attention(*heads, length, length, dim, mode, dtype)
        check(monkeypatch, tmp_path / str(length), attention, "cuda", PARTS[heads])


@pytest.mark.parametrize("rows", [False, True], ids=["heads", "rows"])
@pytest.mark.parametrize("mode", ["whole", "mask"])
def test_layouts(monkeypatch, tmp_path, mode, rows):
    """Batches of heads that lie as a projection's rows; more keys than queries, and fewer."""
    for queries, keys in [(2000, 130), (129, 1000), (1000, 777)]:
        attention = Attention(8, 2, queries, keys, 64, mode, batch=2, rows=rows)
        check(monkeypatch, tmp_path / f"{queries} {keys}", attention, "cuda", 4)


@pytest.mark.parametrize(
    "attention",
    [
        Attention(8, 2, 256, 2048, 64, batch=16),  # 512 tiles
        Attention(8, 8, 1000, 1000, 64, "causal"),  # a kv head for each query head
    ],
    ids=["many tiles", "no groups"],
)
def test_whole_heads(monkeypatch, tmp_path, attention):
    check(monkeypatch, tmp_path, attention, "cuda", 1)


@pytest.mark.parametrize("workers, parts", [(132, 8), (16, 4), (10, 2), (7, 1)])
def test_same_values_again(monkeypatch, tmp_path, workers, parts):
    """Tiles of attention and of the sum in turn on a worker; fewer workers cut the heads into fewer parts, or none."""
    attention = Attention(16, 2, 512, 512, 128, "causal")
    check(monkeypatch, tmp_path, attention, "cuda", parts, calls=30, workers=workers)


def test_projections(monkeypatch, tmp_path):
    """Products read the sums of the parts."""
    model = Projected(Attention(8, 2, 1000, 1000, 128, "causal"), 512, "cuda")
    x = torch.randn(1, 1000, 512, device="cuda").bfloat16()
    gradient = torch.randn(1, 8, 1000, 128, device="cuda").bfloat16()
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    own = lambda model: list(model.parameters())
    fast = compiled(model)
    mine, again = (results(fast, [x], gradient, own(model)) for _ in range(2))
    assert parts_of(tmp_path, 2) == 4
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))
    double = copy.deepcopy(model).double()
    exact = results(double, in_double([x]), gradient.double(), own(double))
    check_errors(mine, results(model, [x], gradient, own(model)), exact)
