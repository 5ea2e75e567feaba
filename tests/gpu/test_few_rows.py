"""Products of 2 to 16 rows of 16 bits: strips of weight rows (device/matmul/few_rows_strips.cuh). And of one row that
is long: asked for at once, in windows, normed, or in words that carry their own flag."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def plain(x, w, *_):
    return F.linear(x, w)


def residual(x, w, v, bias, more):
    return F.linear(x, w, bias) + more


def gelu(x, w, v, bias, more):
    return F.gelu(F.linear(x, w, bias))


def gated(x, w, v, *_):
    x = F.rms_norm(x, x.shape[-1:], eps=1e-5)
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def normed(x, w, v, bias, more):
    y = F.layer_norm(x, x.shape[-1:])
    return F.linear(y, w) + more, F.linear(y, v, bias)


def pairs(x, w, *_):
    """Rotary: columns that lie half of n apart."""
    y = F.linear(x, w)
    a, b = y.chunk(2, -1)
    angle = torch.arange(a.shape[-1], device=x.device) * 0.01
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


BODIES = [plain, residual, gelu, gated, normed, pairs]


def inputs(m, k, n, dtype):
    torch.manual_seed(m * 7 + k + n)

    def make(*shape, scale=1.0):
        return (torch.randn(shape, device="cuda") * scale).to(dtype)

    return make(m, k), make(n, k, scale=k**-0.5), make(n, k, scale=k**-0.5), make(n), make(m, n)


def worst(found, expected) -> float:
    """Root mean square error over that of the values."""
    found, expected = ((x if isinstance(x, tuple) else (x,)) for x in (found, expected))
    return max(((a.double() - b).square().mean() / b.square().mean()).sqrt().item() for a, b in zip(found, expected))


def check(body, m, k, n, dtype=torch.bfloat16, **options):
    torch._dynamo.reset()
    args = inputs(m, k, n, dtype)
    compiled = torch.compile(body, backend=ark, options={"strict": True, **options}, dynamic=False)
    with torch.no_grad():
        exact = body(*(x.double() for x in args))
        first, again, eager = compiled(*args), compiled(*args), body(*args)
    assert worst(first, exact) <= 1.25 * worst(eager, exact)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (first, again))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("m", [2, 3, 5, 8, 9, 12, 16])
def test_rows_and_epilogues(body, m):
    check(body, m, 2048, 3072)


@pytest.mark.parametrize("k", [8, 40, 512, 520, 768, 1000, 1032, 2560, 4096, 8192, 14336])
@pytest.mark.parametrize("m", [2, 8, 16])
def test_lengths(m, k):
    check(residual, m, k, 1000)
    check(gated, m, k, 136)


def behind_another(x, w, v, bias, more):
    """The long row comes from a product, in words that carry their own flag."""
    y = F.silu(F.linear(x[:, :512], w[:, :512]))
    return F.linear(F.linear(y, v.reshape(-1, v.shape[0])), w, bias) + more


@pytest.mark.parametrize("k", [4096, 8200, 13824, 14080, 14088, 14336, 14344, 16384])
def test_one_long_row(k):
    check(residual, 1, k, 264)
    check(gated, 1, k, 136)
    check(behind_another, 1, 1024, k)


def pairs_of_heads(x, w, v, bias, more):
    """Rotary by heads of 64: a block of 32 pairs ends anywhere in a worker's rows."""
    a, b = F.linear(x, w).unflatten(1, (-1, 64)).chunk(2, -1)
    cosine, sine = bias[:32], bias[32:64]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(1)


def divided(x, w, v, bias, more):
    """As Llama's: rounded, then times a weight. The factor of a row is left to the epilogue."""
    y = x.float()
    y = v[0] * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return F.linear(y, w) + more


def above_one(x, w, v, bias, more):
    """As Gemma's: times 1 + weight, rounded once; read by two products."""
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    y = (y * (1 + v[0].float())).to(x.dtype)
    return F.gelu(F.linear(y, w)) * F.linear(y, v), F.linear(y, w, bias)


def over_largest(x, w, v, *_):
    """Divided by the row's largest, no norm."""
    return F.linear(x * x.abs().amax(-1, keepdim=True).reciprocal() * v[0], w)


@pytest.mark.parametrize("body", [divided, above_one, over_largest], ids=lambda body: body.__name__)
@pytest.mark.parametrize(
    "m, k", [(2, 2048), (8, 2048), (8, 4096), (5, 1000), (7, 520), (8, 3080), (16, 2048), (11, 776)]
)
def test_factors_of_rows(body, m, k):
    check(body, m, k, 328)


@pytest.mark.parametrize("body", [divided, above_one, gated, pairs], ids=lambda body: body.__name__)
@pytest.mark.parametrize("m, k", [(8, 2048), (16, 2048), (7, 3080), (12, 8192)])
def test_rows_of_different_sizes(body, m, k):
    """Rows a thousand times as large as others, before a norm: every row's error by itself."""
    normed = body if body is not pairs else lambda x, w, v, *_: pairs(F.rms_norm(x, x.shape[-1:], v[0], 1e-5), w)
    torch._dynamo.reset()
    args = list(inputs(m, k, 328, torch.bfloat16))
    args[0] = (args[0] * torch.logspace(-3, 3, m, device="cuda")[:, None]).bfloat16()
    args[4].zero_()
    compiled = torch.compile(normed, backend=ark, options={"strict": True}, dynamic=False)
    rows_of = lambda x: x if isinstance(x, tuple) else (x,)
    with torch.no_grad():
        all_rows = zip(*(map(rows_of, (compiled(*args), normed(*args), normed(*(t.double() for t in args))))))
    for found, eager, exact in all_rows:
        # Relative errors, which all rows have alike; those of 328 products of two values differ by a half between rows.
        of_rows = [[worst(each[row], exact[row]) for row in range(m)] for each in (found, eager)]
        assert max(of_rows[0]) <= 1.25 * max(of_rows[1])


def of_columns(x, w, v, *_):
    """Weights that lie [k][n]."""
    y = F.rms_norm(x, x.shape[-1:], v[0], eps=1e-5)
    return y @ w


@pytest.mark.parametrize("m", [2, 8, 16])
def test_factors_of_rows_by_columns(m):
    torch.manual_seed(m)
    x, w, v = torch.randn(m, 1024), torch.randn(1024, 520) / 32, torch.randn(2, 1024)
    x, w, v = (t.cuda().bfloat16() for t in (x, w, v))
    torch._dynamo.reset()
    compiled = torch.compile(of_columns, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        exact = of_columns(x.double(), w.double(), v.double())
        assert worst(compiled(x, w, v), exact) <= 1.25 * worst(of_columns(x, w, v), exact)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e17])
def test_rows_of_any_size(scale):
    """Small and large rows beside ordinary ones: relative errors row by row as eager's."""
    torch.manual_seed(0)
    args = list(inputs(8, 2048, 328, torch.bfloat16))
    args[0][3] *= scale
    args[4].zero_()
    torch._dynamo.reset()
    compiled = torch.compile(divided, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        found, eager, exact = compiled(*args), divided(*args), divided(*(t.double() for t in args))
    for row in range(8):
        assert worst(found[row], exact[row]) <= 1.25 * worst(eager[row], exact[row])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_rows_that_are_no_numbers(bad):
    torch.manual_seed(0)
    args = list(inputs(8, 2048, 328, torch.bfloat16))
    args[0][3, 77] = bad
    torch._dynamo.reset()
    compiled = torch.compile(divided, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        found, eager = compiled(*args), divided(*args)
    assert torch.equal(found.isnan(), eager.isnan())
    assert found.isnan()[3].all() and found.isnan().sum() == found.shape[1]


@pytest.mark.parametrize("k, n", [(768, 640), (2048, 2560), (2560, 2560), (4096, 1280)])
def test_blocks_of_pairs(k, n):
    check(pairs_of_heads, 8, k, n)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 100, 2056, 50257])
def test_columns(n):
    check(residual, 6, 1024, n)
    check(normed, 13, 768, n)


@pytest.mark.parametrize("workers", [1, 7, 132])
def test_items_of_several_windows(workers):
    """Long rows and many columns a worker: sums are held from window to window, in items of 80 rows at most."""
    check(residual, 16, 14336, 640, workers=workers)
    check(gated, 9, 8192, 320, workers=workers)


@pytest.mark.parametrize("body", [plain, gated, pairs], ids=lambda body: body.__name__)
def test_half(body):
    check(body, 8, 2048, 1024, torch.float16)


def test_views():
    """Rows that lie apart, an activation of stride 0, weights that are slices."""

    def body(x, w):
        return F.linear(x.expand(4, -1), w[:, 8:1032]), F.linear(x.expand(4, -1) * 2, w[3:900:2, :1024])

    torch.manual_seed(0)
    x, w = torch.randn(1, 1024, device="cuda").bfloat16(), torch.randn(1500, 1048, device="cuda").bfloat16() / 32
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        assert worst(compiled(x, w), body(x.double(), w.double())) <= 1.25 * worst(
            body(x, w), body(x.double(), w.double())
        )
