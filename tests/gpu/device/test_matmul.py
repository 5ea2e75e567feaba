"""kMatmulTile, kMatmulFloat and kMatmulSimple against float64."""

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
import driver


def operand(batch, rows, columns, rows_contiguous, dtype):
    """(batch, rows, columns), the last dimension contiguous or the one before."""
    if rows_contiguous:
        return torch.randn(batch, columns, rows, device="cuda").to(dtype).transpose(1, 2)
    return torch.randn(batch, rows, columns, device="cuda").to(dtype)


def error(value, reference):
    assert not value.isnan().any()
    return ((value.double() - reference).norm() / reference.norm()).item()


def check(batch, m, n, k, a_mn, b_mn, tile_n, dtype=torch.bfloat16, b_immutable=False, chunk=1):
    a, b = operand(batch, m, k, a_mn, dtype), operand(batch, k, n, not b_mn, dtype)
    out = torch.full((batch, m, n), float("nan"), device="cuda", dtype=dtype)
    job = driver.matmul(
        a, b, out, tile_n=tile_n, program=int(dtype == torch.float16), b_immutable=b_immutable, chunk=chunk
    )
    job.run()
    reference = a.double() @ b.double()
    assert error(out, reference) < 4e-3
    first = out.clone()
    for _ in range(3):
        out.fill_(float("nan"))
        job.run()
        assert torch.equal(out, first)


@pytest.mark.parametrize("tile_n", [64, 128, 256])
@pytest.mark.parametrize("a_mn", [False, True])
@pytest.mark.parametrize("b_mn", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_transpositions(tile_n, a_mn, b_mn, dtype):
    check(1, 384, 512, 448, a_mn, b_mn, tile_n, dtype)


@pytest.mark.parametrize("tile_n", [128, 256])
@pytest.mark.parametrize(
    "size", [(1, 8, 8, 8), (1, 136, 264, 72), (3, 200, 520, 200), (2, 1000, 1000, 1000), (1, 64, 40, 4096)]
)
def test_ragged(size, tile_n):
    for a_mn, b_mn in [(False, False), (False, True), (True, True)]:
        check(*size, a_mn, b_mn, tile_n)


@pytest.mark.parametrize(
    "size", [(1, 8, 8, 64), (1, 136, 264, 128), (3, 200, 520, 192), (2, 1000, 1000, 960), (1, 64, 40, 4096)]
)
def test_ragged_small_tiles(size):
    for a_mn, b_mn in [(False, False), (False, True), (True, False), (True, True)]:
        check(*size, a_mn, b_mn, 64)


@pytest.mark.parametrize("tile_n", [64, 128, 256])
def test_immutable_weights_and_ranges(tile_n):
    check(1, 3840, 1024, 1024, False, False, tile_n, b_immutable=True, chunk=3)
    check(5, 640, 768, 320, False, True, tile_n, b_immutable=True, chunk=2)


@pytest.mark.parametrize("tile_n", [64, 256])
@pytest.mark.parametrize("columns", [301, 302])
def test_odd_columns(columns, tile_n):
    a, b = operand(1, 200, 64, False, torch.bfloat16), operand(1, 64, 304, True, torch.bfloat16)[:, :, :columns]
    out = torch.full((1, 200, columns), float("nan"), device="cuda", dtype=torch.bfloat16)
    driver.matmul(a, b, out, tile_n=tile_n).run()
    assert error(out, a.double() @ b.double()) < 4e-3


@pytest.mark.parametrize("tile_n", [64, 128, 256])
def test_bias_gelu_residual(tile_n):
    a, b = operand(1, 500, 512, False, torch.bfloat16), operand(1, 512, 768, True, torch.bfloat16)
    out = torch.full((1, 500, 768), float("nan"), device="cuda", dtype=torch.bfloat16)
    bias, residual = torch.randn(768, device="cuda").bfloat16(), torch.randn(1, 500, 768, device="cuda").bfloat16()
    driver.matmul(a / 16, b, out, bias, residual, tile_n=tile_n, program=2).run()
    product = (a / 16).double() @ b.double() + bias.double()
    assert error(out, torch.nn.functional.gelu(product, approximate="tanh") + residual.double()) < 4e-3


@pytest.mark.parametrize(
    "distance, tile_n", [(1, 256), (4, 256), (32, 256), (64, 256), (1, 64), (4, 64), (16, 64), (32, 64)]
)
def test_pairs(distance, tile_n):
    a, b = operand(1, 300, 128, False, torch.bfloat16), operand(1, 128, 512, True, torch.bfloat16)
    out = torch.full((1, 300, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    factor = torch.randn(512, device="cuda").bfloat16()
    driver.matmul(a, b, out, factor, tile_n=tile_n, program=3, pair_distance=distance).run()
    product = a.double() @ b.double()
    low = (torch.arange(512, device="cuda") // distance) % 2 == 0
    other = torch.where(low, product.roll(-distance, 2), -product.roll(distance, 2))
    assert error(out, product * factor.double() + other) < 4e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_simple(dtype):
    for batch, m, n, k in [(1, 64, 64, 64), (3, 70, 101, 33), (2, 200, 128, 1), (1, 1, 300, 257)]:
        a, b = (torch.randn(*s, device="cuda") * 8 for s in [(batch, k, m), (batch, k, n + 3)])
        a, b = a.to(dtype).transpose(1, 2), b.to(dtype)[:, :, :n]
        out = torch.zeros(batch, n, m, device="cuda", dtype=dtype).transpose(1, 2)
        driver.matmul_simple(a, b, out, chunk=2).run()
        reference = a.double() @ b.double()
        limit = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}.get(dtype, 1e-12)
        assert error(out, reference) < limit


FLOAT_TILES = [(128, 128), (128, 64), (64, 128), (64, 64)]


def float_operands(batch, m, n, k, layout):
    """fp32, in the layout of BLAS: "nt" is a [m, k] and b [n, k]; rows begin at multiples of 16 bytes."""

    def rows_of(rows, columns):
        return torch.randn(batch, rows, (columns + 3) // 4 * 4, device="cuda")[:, :, :columns]

    a = rows_of(m, k) if layout[0] == "n" else rows_of(k, m).transpose(1, 2)
    b = rows_of(k, n) if layout[1] == "n" else rows_of(n, k).transpose(1, 2)
    return a, b


def check_float(value, reference, eager, k):
    """No further from fp64 than twice what eager's fp32 is, or than adding up k products one after the other errs
    (cuBLAS adds a long k of few tiles in parts)."""
    assert error(value, reference) < max(2 * error(eager, reference), 2**-24 * math.sqrt(k))


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("tile", FLOAT_TILES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "size",
    [
        (1, 384, 512, 448),
        (1, 8, 8, 8),
        (3, 200, 520, 201),
        (2, 1000, 1001, 1000),
        (1, 63, 41, 2048),
        (2, 129, 65, 33),
    ],
)
def test_float(size, layout, tile):
    batch, m, n, k = size
    a, b = float_operands(batch, m, n, k, layout)
    out = torch.full((batch, m, n), float("nan"), device="cuda")
    job = driver.matmul_float(a, b, out, tile=tile)
    job.run()
    check_float(out, a.double() @ b.double(), a @ b, a.shape[2])
    first = out.clone()
    for _ in range(2):
        out.fill_(float("nan"))
        job.run()
        assert torch.equal(out, first)


@pytest.mark.parametrize("tile", FLOAT_TILES)
@pytest.mark.parametrize("immutable", [(False, True), (True, False), (True, True)])
def test_float_items_of_several_tiles(tile, immutable):
    for layout, size in [("nt", (1, 3840, 1024, 256)), ("nn", (5, 640, 768, 320)), ("tn", (3, 300, 516, 96))]:
        a, b = float_operands(*size, layout)
        out = torch.full((size[0], size[1], size[2]), float("nan"), device="cuda")
        driver.matmul_float(a, b, out, tile=tile, immutable=immutable, chunk=3).run()
        check_float(out, a.double() @ b.double(), a @ b, a.shape[2])


@pytest.mark.parametrize("tile", FLOAT_TILES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_float_bias_gelu_residual(layout, tile):
    a, b = float_operands(1, 500, 772, 512, layout)
    a, out = a / 16, torch.full((1, 500, 772), float("nan"), device="cuda")
    bias, residual = torch.randn(772, device="cuda"), torch.randn(1, 500, 772, device="cuda")
    driver.matmul_float(a, b, out, bias, residual, tile=tile, program=2).run()
    product = a.double() @ b.double() + bias.double()
    # tanh.approx.f32 in the program: 2^-11
    assert error(out, torch.nn.functional.gelu(product, approximate="tanh") + residual.double()) < 5e-4


@pytest.mark.parametrize("tile", FLOAT_TILES)
@pytest.mark.parametrize("distance", [1, 4, 32])
def test_float_pairs(distance, tile):
    a, b = float_operands(1, 300, 512, 128, "nt")
    out = torch.full((1, 300, 512), float("nan"), device="cuda")
    factor = torch.randn(512, device="cuda")
    driver.matmul_float(a, b, out, factor, tile=tile, program=3, pair_distance=distance).run()
    low = (torch.arange(512, device="cuda") // distance) % 2 == 0

    def rotated(product):
        other = torch.where(low, product.roll(-distance, 2), -product.roll(distance, 2))
        return product * factor.to(product.dtype) + other

    check_float(out, rotated(a.double() @ b.double()), rotated(a @ b), 128)


def test_float_strided_output():
    a, b = float_operands(2, 130, 70, 100, "nt")
    out = torch.full((2, 70, 130), float("nan"), device="cuda").transpose(1, 2)
    driver.matmul_float(a, b, out, tile=(128, 64)).run()
    check_float(out, a.double() @ b.double(), a @ b, a.shape[2])
