"""Plans of products with small tiles, run on the host: as many workers as a GPU has."""

from __future__ import annotations

import pytest
import torch

from tests.support.few_tiles import BODIES, GATED, LAYOUTS, by_rows, check, gated_inputs, gelu, inputs, residual

PRODUCTS = pytest.mark.parametrize("product", LAYOUTS, ids=lambda f: f.__name__)


@PRODUCTS
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_epilogues(monkeypatch, tmp_path, body, product, dtype):
    arguments = inputs(product, 100, 192, 192, dtype, "cpu")
    check(monkeypatch, tmp_path, body, arguments, product, workers=132)


@pytest.mark.parametrize("m, n, k", [(17, 1, 64), (65, 127, 320), (130, 260, 2048), (64, 63, 4096)])
def test_sizes(monkeypatch, tmp_path, m, n, k):
    check(monkeypatch, tmp_path, gelu, inputs(by_rows, m, n, k, torch.bfloat16, "cpu"), by_rows, workers=132)


def test_more_tiles_than_workers(monkeypatch, tmp_path):
    arguments = inputs(by_rows, 130, 260, 192, torch.bfloat16, "cpu")
    check(monkeypatch, tmp_path, residual, arguments, by_rows, small=False, workers=14)


@PRODUCTS
def test_batches(monkeypatch, tmp_path, product):
    arguments = inputs(product, 70, 136, 192, torch.bfloat16, "cpu", batch=(5,))
    check(monkeypatch, tmp_path, residual, arguments, product, workers=132)


@PRODUCTS
@pytest.mark.parametrize("body", GATED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("m, n, k", [(64, 256, 192), (37, 136, 320)])
def test_two_weights(monkeypatch, tmp_path, body, product, m, n, k):
    """One product, whose epilogue has the sums of both."""
    arguments = gated_inputs(product, m, n, k, torch.bfloat16, "cpu")
    check(monkeypatch, tmp_path, body, arguments, product, has=[", gated"], workers=132)
