"""Products of few tiles on the tensor cores: 64 x 64 with steps of 128 k (device/matmul/tile.cuh)."""

from __future__ import annotations

import pytest
import torch

from tests.support.few_tiles import (
    BODIES,
    GATED,
    LAYOUTS,
    by_columns,
    by_rows,
    check,
    gated,
    gated_inputs,
    gelu,
    inputs,
    residual,
    rotary,
    swiglu,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROWS = pytest.mark.parametrize("product", LAYOUTS, ids=lambda f: f.__name__)


@ROWS
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_epilogues(monkeypatch, tmp_path, body, product, dtype):
    check(monkeypatch, tmp_path, body, inputs(product, 128, 1024, 1024, dtype, "cuda"), product)


@ROWS
@pytest.mark.parametrize("m", [17, 63, 64, 65, 100, 128, 200, 384, 512])
def test_rows(monkeypatch, tmp_path, m, product):
    check(monkeypatch, tmp_path, gelu, inputs(product, m, 1024, 768, torch.bfloat16, "cuda"), product)


@pytest.mark.parametrize("m", [1, 2, 8, 16])
def test_few_rows_by_columns(monkeypatch, tmp_path, m):
    """Fewer rows are matmul_rows, of weights k x n too."""
    arguments = inputs(by_columns, m, 1024, 768, torch.bfloat16, "cuda")
    check(monkeypatch, tmp_path, residual, arguments, by_columns, small=False, has=["matmul_rows"])


@pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 1021, 1022, 1032])
def test_columns(monkeypatch, tmp_path, n):
    check(monkeypatch, tmp_path, gated, inputs(by_rows, 100, n, 512, torch.bfloat16, "cuda"), by_rows)


@ROWS
@pytest.mark.parametrize("k", [64, 128, 192, 320, 768, 1472, 2048, 4096, 8192])
def test_lengths(monkeypatch, tmp_path, k, product):
    """Half a page at the end, more pages than the ring has, parts from 2048 on."""
    has = [".parts"] if k >= 2048 else []
    check(monkeypatch, tmp_path, residual, inputs(product, 128, 512, k, torch.bfloat16, "cuda"), product, has=has)


@ROWS
@pytest.mark.parametrize("k", [72, 200, 1000, 1032])
def test_other_lengths(monkeypatch, tmp_path, k, product):
    check(monkeypatch, tmp_path, gelu, inputs(product, 100, 512, k, torch.bfloat16, "cuda"), product, small=False)


@ROWS
@pytest.mark.parametrize("m, n", [(704, 768), (1000, 512)])
def test_most_tiles(monkeypatch, tmp_path, m, n, product):
    check(monkeypatch, tmp_path, rotary, inputs(product, m, n, 512, torch.bfloat16, "cuda"), product)
    (tmp_path / "more").mkdir()
    arguments = inputs(product, m + 64, n + 64, 512, torch.bfloat16, "cuda")
    check(monkeypatch, tmp_path / "more", rotary, arguments, product, small=False)


@ROWS
def test_batches(monkeypatch, tmp_path, product):
    arguments = inputs(product, 70, 136, 192, torch.bfloat16, "cuda", batch=(5,))
    check(monkeypatch, tmp_path, residual, arguments, product)


def chain(product, x, *weights):
    """Every product waits for the one before; those of 4096 columns have wide rows."""
    for w in weights:
        x = torch.nn.functional.gelu(product(x, w))
    return x


@ROWS
@pytest.mark.parametrize("workers", [132, 40, 33])
def test_chain(monkeypatch, tmp_path, workers, product):
    """As in a model: stores of a tile, copies of the next; a worker may have tiles of several products."""
    torch.manual_seed(0)
    widths = [1024, 1024, 4096, 1024, 1024, 512, 1024]
    shapes = list(zip(widths[1:], widths)) if product is by_rows else list(zip(widths, widths[1:]))
    weights = [(torch.randn(s, device="cuda") * 0.06).bfloat16() for s in shapes]
    x = torch.randn(128, 1024, device="cuda").bfloat16()
    check(monkeypatch, tmp_path, chain, [x, *weights], product, calls=20, workers=workers)


@ROWS
def test_beside_large_tiles(monkeypatch, tmp_path, product):
    """Tiles of all forms in one kernel, in turn on the same ring."""
    torch.manual_seed(0)
    widths = [512, 512, 16384, 512, 512]
    shapes = list(zip(widths[1:], widths)) if product is by_rows else list(zip(widths, widths[1:]))
    weights = [(torch.randn(s, device="cuda") * 0.05).bfloat16() for s in shapes]
    x = torch.randn(512, 512, device="cuda").bfloat16()
    check(monkeypatch, tmp_path, chain, [x, *weights], product, calls=20, has=["tile 128 x"])


@ROWS
@pytest.mark.parametrize("body", GATED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_two_weights(monkeypatch, tmp_path, body, product, dtype):
    check(monkeypatch, tmp_path, body, gated_inputs(product, 64, 8192, 2048, dtype, "cuda"), product, has=[", gated"])


@ROWS
@pytest.mark.parametrize(
    "m, n, k", [(17, 64, 64), (64, 1021, 320), (100, 1032, 1472), (128, 4096, 1024), (200, 130, 192)]
)
def test_two_weights_sizes(monkeypatch, tmp_path, m, n, k, product):
    """Rows and columns that end within tiles and vectors, fewer pages than the ring has and more."""
    if product is by_columns and n % 8 != 0:
        n = 1024
    check(
        monkeypatch, tmp_path, swiglu, gated_inputs(product, m, n, k, torch.bfloat16, "cuda"), product, has=[", gated"]
    )


def gated_chain(product, x, *weights):
    """Two layers of a gated feed-forward."""
    for gate, up, down in zip(weights[::3], weights[1::3], weights[2::3]):
        x = x + product(torch.nn.functional.silu(product(x, gate)) * product(x, up), down)
    return x


@ROWS
@pytest.mark.parametrize("workers", [132, 100])
def test_gated_chain(monkeypatch, tmp_path, workers, product):
    torch.manual_seed(0)
    shapes = [(3072, 1024), (3072, 1024), (1024, 3072)] * 3
    shapes = shapes if product is by_rows else [shape[::-1] for shape in shapes]
    weights = [(torch.randn(s, device="cuda") * 0.03).bfloat16() for s in shapes]
    x = torch.randn(64, 1024, device="cuda").bfloat16()
    check(monkeypatch, tmp_path, gated_chain, [x, *weights], product, calls=20, has=[", gated"], workers=workers)


@ROWS
def test_gated_beside_large_tiles(monkeypatch, tmp_path, product):
    """As in a decode step of many rows, whose last product has large tiles."""
    torch.manual_seed(0)
    shapes = [(2048, 512), (2048, 512), (512, 2048), (2048, 512), (2048, 512), (512, 2048), (32768, 512)]
    shapes = shapes if product is by_rows else [shape[::-1] for shape in shapes]
    weights = [(torch.randn(s, device="cuda") * 0.04).bfloat16() for s in shapes]

    def body(product, x, *weights):
        return product(gated_chain(product, x, *weights[:-1]), weights[-1])

    x = torch.randn(64, 512, device="cuda").bfloat16()
    check(monkeypatch, tmp_path, body, [x, *weights], product, calls=20, has=[", gated", "tile 128 x"])
