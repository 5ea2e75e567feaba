"""Attention's backward with fewer heads of keys than of queries: gradients that are compared with fp64, and into how
many parts the plan cuts the query heads that share a kv head (csrc/planner/tile/split_heads.h)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ark_torch.backend import ark

# (query heads, kv heads): the parts where tiles are few. As many as divide the query heads of a kv head, at most 8.
PARTS = {(8, 2): 4, (6, 2): 3, (12, 1): 6, (16, 2): 8}
MODES = ["whole", "causal", "mask"]


@dataclass(frozen=True)
class Attention:
    """Of q [batch, heads, queries, dim], k and v [batch, kv_heads, keys, dim]. A mask shows two keys of three, the
    first one always; with `rows` what is given is the transpose of [batch, queries, heads, dim]."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    mode: str = "whole"
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1
    rows: bool = False

    def tensor(self, heads: int, length: int, device: str) -> Tensor:
        if self.rows:
            return torch.randn(self.batch, length, heads, self.dim, device=device).to(self.dtype).transpose(1, 2)
        return torch.randn(self.batch, heads, length, self.dim, device=device).to(self.dtype)

    def inputs(self, device: str) -> tuple[list[Tensor], Tensor]:
        """q, k, v and perhaps the mask; the gradient of the result."""
        torch.manual_seed(self.queries + self.dim)
        q, gradient = (self.tensor(self.heads, self.queries, device) for _ in range(2))
        k, v = (self.tensor(self.kv_heads, self.keys, device) for _ in range(2))
        if self.mode != "mask":
            return [q, k, v], gradient
        mask = torch.rand(self.queries, self.keys, device=device) < 2 / 3
        mask[:, 0] = True
        return [q, k, v, mask], gradient

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        causal = self.mode == "causal"
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)


class Projected(nn.Module):
    """Heads made of rows by products, whose gradients are products with dq, dk and dv."""

    def __init__(self, attention: Attention, width: int, device: str):
        super().__init__()
        torch.manual_seed(1)
        self.attention = attention
        of_keys = attention.kv_heads * attention.dim
        widths = [attention.heads * attention.dim, of_keys, of_keys]
        self.layers = nn.ModuleList(nn.Linear(width, each, bias=False) for each in widths)
        self.to(device, attention.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, queries, width] -> [batch, heads, queries, dim]"""
        return self.attention(*(y(x).unflatten(-1, (-1, self.attention.dim)).transpose(1, 2) for y in self.layers))


def results(function: Callable, inputs: list[Tensor], gradient: Tensor, others=()) -> tuple[Tensor, ...]:
    """The result; its gradients with respect to all inputs of real numbers, then to `others`."""
    given = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = function(*given)
    return out.detach(), *torch.autograd.grad(out, [*(x for x in given if x.requires_grad), *others], gradient)


def in_double(inputs: list[Tensor]) -> list[Tensor]:
    return [x.double() if x.is_floating_point() else x for x in inputs]


def error(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def compiled(function: Callable, **options) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend=ark, dynamic=False, options={"strict": True, **options})


def check_errors(found, eager, exact) -> None:
    """No worse than eager but for a rounding. Some of eager's kernels add in fp32 what others round first."""
    names = ["out", "dq", "dk", "dv"] if len(exact) == 4 else range(len(exact))
    for name, mine, theirs, truth in zip(names, found, eager, exact, strict=True):
        own, allowed = error(mine, truth), 1.5 * error(theirs, truth) + torch.finfo(mine.dtype).eps / 4
        assert mine.dtype == theirs.dtype and own <= allowed, f"{name}: error {own:.2e} of {allowed:.2e}"


def parts_of(folder: Path, kv_heads: int) -> int:
    """Of the one plan below the folder that has attention's backward: tiles of its heads by kv head."""
    (text,) = (t for t in (f.read_text() for f in folder.rglob("plan.txt")) if " attention_backward grid" in t)
    ((heads, name),) = re.findall(r"op \d+ attention_backward grid \[\d+, (\d+), \d+\].*# (\S+)", text)
    parts, rest = divmod(int(heads), kv_heads)
    assert rest == 0 and name.endswith(".parts") == (parts > 1), text
    return parts


def check(monkeypatch, folder: Path, attention: Attention, device: str, parts: int, calls: int = 2, **options) -> None:
    """Values and gradients, the same in every call; the parts of the plan."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("ARK_DUMP", str(folder))
    inputs, gradient = attention.inputs(device)
    fast = compiled(attention, **options)
    first, *others = (results(fast, inputs, gradient) for _ in range(calls))
    assert parts_of(folder, attention.kv_heads) == parts
    with sdpa_kernel(SDPBackend.MATH):
        exact = results(attention, in_double(inputs), gradient.double())
    check_errors(first, results(attention, inputs, gradient), exact)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)), attention
