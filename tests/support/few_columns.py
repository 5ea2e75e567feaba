"""Products of few rows with weights k x n: functions that are compared with fp64, and that their plan has strips."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ark_torch.backend import ark


def plain(x, w, *_):
    return x @ w


def residual(x, w, bias, more, *_):
    return torch.addmm(bias, x, w) + more


def gelu(x, w, bias, more, *_):
    return F.gelu(torch.addmm(bias, x, w), approximate="tanh")


def normed(x, w, bias, more, *_):
    y = F.layer_norm(x, x.shape[-1:])
    return y @ w + more, torch.addmm(bias, y, w)


def chain(x, w, bias, more, *_):
    """The second one reads what the first one hands on, normalized."""
    y = F.gelu(torch.addmm(bias, F.rms_norm(x, x.shape[-1:]), w))
    return x + F.layer_norm(y, y.shape[-1:]) @ w.mT.contiguous()


def gated(x, w, bias, more, v):
    y = F.rms_norm(x, x.shape[-1:], eps=1e-5)
    return F.silu(y @ w) * torch.addmm(bias, y, v)


def pairs(x, w, *_):
    """Rotary: columns that lie half of n apart."""
    a, b = (x @ w).chunk(2, -1)
    angle = torch.arange(a.shape[-1], device=x.device) * 0.01
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def heads(x, w, *_):
    """Rotary in heads of 16, two of three thirds of the columns."""
    q, k, v = (x @ w).split(w.shape[1] // 3, -1)
    angle = torch.arange(8, device=x.device) * 0.1
    cosine, sine = (torch.cat([f(angle)] * 2).to(x.dtype) for f in (torch.cos, torch.sin))

    def turned(y):
        y = y.view(y.shape[0], -1, 16)
        a, b = y.chunk(2, -1)
        return y * cosine + torch.cat([-b, a], -1) * sine

    return turned(q), turned(k), v * 2


def columns(x, w, bias, more, *_):
    """Query, key and value of one weight; the latter two are written into caches."""
    q, k, v = torch.addmm(bias, x, w).split(w.shape[1] // 3, -1)
    cache = more.new_zeros(2, 8, *k.shape)
    place = torch.tensor([3], device=x.device)
    keys, values = cache[0].index_copy(0, place, k[None]), cache[1].index_copy(0, place, v[None])
    return q * 2, keys, values


BODIES = [plain, residual, gelu, normed, chain, gated, pairs]


def inputs(m, k, n, dtype, device):
    """x, w, bias, what is added, a second weight."""
    torch.manual_seed(m * 7 + k + n)

    def make(*shape, scale=1.0):
        return (torch.randn(shape, device=device) * scale).to(dtype)

    return *(make(m, k), make(k, n, scale=k**-0.5), make(n), make(m, n)), make(k, n, scale=k**-0.5)


def worst(found, expected) -> float:
    """Root mean square error over that of the values."""
    found, expected = ((x if isinstance(x, tuple) else (x,)) for x in (found, expected))
    return max(((a.double() - b).square().mean() / b.square().mean()).sqrt().item() for a, b in zip(found, expected))


def check(body, arguments, **options):
    """As good as eager, and the same in every call."""
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True, **options}, dynamic=False)
    with torch.no_grad():
        exact = body(*(x.double() for x in arguments))
        first, again, eager = compiled(*arguments), compiled(*arguments), body(*arguments)
    assert worst(first, exact) <= 1.25 * worst(eager, exact)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (first, again))):
        assert torch.equal(a, b)
