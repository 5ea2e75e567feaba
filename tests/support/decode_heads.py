"""Attention of few queries over a cache, into which rows are written first: no worse than eager against fp64."""

from __future__ import annotations

from collections import Counter

import torch
from torch.nn import functional as F

from ark_torch.records import recording

HEAD_SIZES = [64, 80, 96, 112, 128, 160, 192, 256]
MASKS = ["bool", "added", "none"]


def step(keys, values, q, k, v, position, mask):
    rows = position + torch.arange(k.shape[2], device=k.device)
    keys.index_copy_(2, rows, k)
    values.index_copy_(2, rows, v)
    group = q.shape[1] // keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=group > 1) * 1


def mask_of(kind: str, queries: int, keys: int, position: int, dtype: torch.dtype, where) -> torch.Tensor | None:
    """Query i sees the keys up to position + i, but the first three; of none, all of them."""
    if kind == "none":
        return None
    at = torch.arange(keys, device=where)
    seen = (at[None] <= position + torch.arange(queries, device=where)[:, None]) & (at >= min(3, position))[None]
    if kind == "bool":
        return seen[None, None]
    return torch.where(seen, torch.linspace(-1, 0, keys, device=where), -torch.inf).to(dtype)[None, None]


def check(dim, where, dtype=torch.bfloat16, batch=2, heads=(4, 2), queries=1, keys=300, position=200, mask="bool"):
    torch._dynamo.reset()
    torch.manual_seed(dim + keys)
    make = lambda heads, rows: torch.randn(batch, heads, rows, dim, device=where).to(dtype)
    tensors = [make(heads[1], keys), make(heads[1], keys), make(heads[0], queries)]
    tensors += [make(heads[1], queries), make(heads[1], queries)]
    shown = mask_of(mask, queries, keys, position, dtype, where)
    if mask != "none":  # nobody looks at the rows beyond the last one
        for cache in tensors[:2]:
            cache[:, :, position + queries :] = 100
    at = torch.tensor(position, device=where)
    wide = shown.double() if shown is not None and shown.is_floating_point() else shown
    exact = step(*(t.double() for t in tensors), at, wide)
    eager = step(*(t.clone() for t in tensors), at, shown)
    with torch.no_grad():
        compiled = torch.compile(step, backend="ark", options={"strict": True})
        with recording() as records:
            got = compiled(*(t.clone() for t in tensors), at, shown)
    tasks = Counter()
    for segment in (s for record in records for s in record.segments):
        tasks.update(segment.executable.stats()["tasks"])
    assert tasks["attention_decode"] == 1, tasks
    error = lambda x: ((x.double() - exact).norm() / exact.norm()).item()
    assert error(got) <= 1.5 * error(eager) + 1e-6, (error(got), error(eager))
