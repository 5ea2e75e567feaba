"""Attention's backward with the query heads of a kv head in parts, on the host: as many workers as a GPU has."""

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

WORKERS = 132


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype, dim, length", [(torch.bfloat16, 80, 200), (torch.float16, 128, 130)], ids=str)
def test_gradients(monkeypatch, tmp_path, dtype, dim, length, mode):
    """All groups of heads in turn; lengths that end within a tile."""
    heads = list(PARTS)[(MODES.index(mode) + length) % len(PARTS)]
    attention = Attention(*heads, length, length, dim, mode, dtype)
    check(monkeypatch, tmp_path, attention, "cpu", PARTS[heads], workers=WORKERS)


@pytest.mark.parametrize("queries, keys, rows", [(700, 130, True), (130, 500, False)])
def test_layouts(monkeypatch, tmp_path, queries, keys, rows):
    """Batches of heads that lie as a projection's rows; other numbers of keys."""
    attention = Attention(8, 2, queries, keys, 64, batch=2, rows=rows)
    check(monkeypatch, tmp_path, attention, "cpu", 4, workers=WORKERS)


@pytest.mark.parametrize(
    "attention, workers",
    [
        (Attention(8, 2, 300, 600, 64), 4),  # ten tiles
        (Attention(4, 4, 300, 300, 64, "causal"), WORKERS),  # a kv head for each query head
    ],
    ids=["many tiles", "no groups"],
)
def test_whole_heads(monkeypatch, tmp_path, attention, workers):
    check(monkeypatch, tmp_path, attention, "cpu", 1, workers=workers)


def test_orders(monkeypatch, tmp_path):
    """The order in which tiles run has no influence, nor how many run at once."""
    attention = Attention(8, 2, 300, 200, 64, "causal")
    inputs, gradient = attention.inputs("cpu")
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    first = results(compiled(attention, workers=WORKERS), inputs, gradient)
    assert parts_of(tmp_path, 2) == 4
    for seed, threads in [(1, 1), (2, 2), (3, 4)]:
        other = results(compiled(attention, workers=WORKERS, seed=seed, threads=threads), inputs, gradient)
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)), (seed, threads)


def test_projections(monkeypatch, tmp_path):
    """Products read the sums of the parts."""
    model = Projected(Attention(8, 2, 200, 200, 64, "causal"), 96, "cpu")
    x = torch.randn(1, 200, 96).bfloat16()
    gradient = torch.randn(1, 8, 200, 64).bfloat16()
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    own = lambda model: list(model.parameters())
    mine = results(compiled(model, workers=WORKERS), [x], gradient, own(model))
    assert parts_of(tmp_path, 2) == 4
    double = copy.deepcopy(model).double()
    exact = results(double, in_double([x]), gradient.double(), own(double))
    check_errors(mine, results(model, [x], gradient, own(model)), exact)
