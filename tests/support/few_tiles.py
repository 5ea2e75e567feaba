"""Products of few tiles: functions that are compared with fp64, and whether their plan has small tiles."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ark_torch.backend import ark

SMALL = "tile 64 x 64 x 128"  # of a plan's text


def plain(product, x, w, bias, gate, more):
    return product(x, w)


def biased(product, x, w, bias, gate, more):
    return product(x, w) + bias


def gelu(product, x, w, bias, gate, more):
    y = product(x, w) + bias
    return y, F.gelu(y)


def gated(product, x, w, bias, gate, more):
    return torch.sigmoid(gate) * (product(x, w) + bias) + more


def residual(product, x, w, bias, gate, more):
    return product(x, w) + bias + more


def rotary(product, x, w, bias, gate, more):
    """Heads of 64: pairs of columns that lie 32 apart."""
    y = product(x, w)
    heads = y.view(*y.shape[:-1], -1, 64)
    low, high = heads.chunk(2, -1)
    angle = torch.arange(64, device=x.device) * 0.05
    turned = torch.cat([-high, low], -1)
    return heads * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def swiglu(product, x, w, w2, bias):
    return F.silu(product(x, w)) * product(x, w2)


def geglu(product, x, w, w2, bias):
    return (product(x, w2) + bias) * F.gelu(product(x, w) + bias, approximate="tanh")


def kept(product, x, w, w2, bias):
    """The first value is an output too."""
    y = F.silu(product(x, w))
    return y, y * product(x, w2) + bias


GATED = [swiglu, geglu, kept]
BODIES = [plain, biased, gelu, gated, residual, rotary]


def by_rows(x, w):
    """Weights n x k."""
    return x @ w.mT


def by_columns(x, w):
    """Weights k x n."""
    return x @ w


LAYOUTS = [by_rows, by_columns]


def inputs(product, m, n, k, dtype, device, batch=()):
    """x, w, bias, gate and what is added, of values about 1."""
    torch.manual_seed(m * 7 + n + k)

    def make(*shape, scale=1.0):
        return (torch.randn(shape, device=device) * scale).to(dtype)

    w = make(*batch, *((n, k) if product is by_rows else (k, n)), scale=k**-0.5)
    return make(*batch, m, k), w, make(n), make(*batch, m, n), make(*batch, m, n)


def gated_inputs(product, m, n, k, dtype, device):
    """x, two weights, bias."""
    x, w, bias, *_ = inputs(product, m, n, k, dtype, device)
    return x, w, torch.randn_like(w) * k**-0.5, bias


def worst(found, expected) -> float:
    """Root mean square error over that of the values."""
    found, expected = ((x if isinstance(x, tuple) else (x,)) for x in (found, expected))
    return max(((a.double() - b).square().mean() / b.square().mean()).sqrt().item() for a, b in zip(found, expected))


def check(monkeypatch, folder, body, arguments, product, small=True, calls=3, has=(), **options):
    """The values are as good as eager's, the same in every call; the plan has small tiles, or none, and what is in
    `has`."""
    torch._dynamo.reset()
    monkeypatch.setenv("ARK_DUMP", str(folder))

    def function(*args):
        return body(product, *args)

    compiled = torch.compile(function, backend=ark, options={"strict": True, **options}, dynamic=False)
    with torch.no_grad():
        exact = function(*(x.double() for x in arguments))
        results, eager = [compiled(*arguments) for _ in range(calls)], function(*arguments)
    plans = [file.read_text() for file in folder.rglob("plan.txt")]
    assert plans and any(SMALL in text for text in plans) == small, "\n".join(plans)
    assert all(any(part in text for text in plans) for part in has), "\n".join(plans)
    assert worst(results[0], exact) <= 1.25 * worst(eager, exact) + 1e-7
    for other in results[1:]:
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (results[0], other))):
            assert torch.equal(a, b)
