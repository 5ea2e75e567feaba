"""Heads that are normalised and rotated before attention, as in models that norm queries and keys."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import ark_torch  # noqa: F401  (registers the backend)

POSITIONS = 48


def rms(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


NORMS = {
    "rms": rms,
    "rms of floats": lambda x, weight: F.rms_norm(x.float(), x.shape[-1:], weight.float(), 1e-6).to(x.dtype),
    "layer norm": lambda x, weight: F.layer_norm(x, x.shape[-1:], weight, None, 1e-5),
    "unit": lambda x, weight: x / (x.norm(dim=-1, keepdim=True) + 1e-3) * weight,
}


def halves(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def products_of_halves(x, cos, sin):
    (first, second), c, s = x.chunk(2, -1), cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]
    return torch.cat([first * c - second * s, second * c + first * s], -1)


def part(x, cos, sin):
    """The first half of a head alone is rotated."""
    n = x.shape[-1] // 2
    return torch.cat([halves(x[..., :n], cos[..., :n], sin[..., :n]), x[..., n:]], -1)


ROTATIONS = {"halves": halves, "products of halves": products_of_halves, "part": part}


def tables(tokens: int, dim: int, where) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(tokens, device=where)[:, None] / 100 ** (torch.arange(dim // 2, device=where) / dim * 2)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def inputs(tokens: int, heads: int, dim: int, dtype: torch.dtype, where) -> list[torch.Tensor]:
    torch.manual_seed(tokens * dim)
    make = lambda *sizes: torch.randn(*sizes, device=where)
    x, weight = make(1, tokens, heads * dim) * 3, make(dim)
    return [x.to(dtype), weight.to(dtype), *(t.to(dtype) for t in tables(tokens, dim, where))]


def heads_of(norm: str, rotation: str, heads: int):
    """(1, tokens, heads * dim) -> (1, heads, tokens, dim)"""

    def function(x, weight, cos, sin):
        split = x.unflatten(-1, (heads, -1))
        return ROTATIONS[rotation](NORMS[norm](split, weight).transpose(1, 2), cos, sin)

    return function


def kept(norm: str, rotation: str, heads: int):
    """The same, written to the rows of a cache that positions name."""
    make = heads_of(norm, rotation, heads)

    def function(x, weight, cos, sin, cache, positions):
        cache.index_copy_(2, positions, make(x, weight, cos, sin))
        return cache * 1

    return function


def rms_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return ((got.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


def check(function, args: list[torch.Tensor]) -> None:
    """No worse than eager against fp64."""
    torch._dynamo.reset()
    fresh = lambda dtype=None: [a.clone() if dtype is None or not a.is_floating_point() else a.to(dtype) for a in args]
    with torch.no_grad():
        exact, eager = function(*fresh(torch.float64)), function(*fresh())
        got = torch.compile(function, backend="ark", options={"strict": True})(*fresh())
    assert got.shape == eager.shape and got.stride() == eager.stride() and got.dtype == eager.dtype
    assert rms_error(got, exact) <= 1.1 * rms_error(eager, exact) + 1e-7
