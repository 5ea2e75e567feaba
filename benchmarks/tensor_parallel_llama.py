"""Llama's layers, a rank's part of them, without the weights of norms: functions of tensors.

Weights are [outputs, inputs], as nn.Linear has them; a rank has its heads and its columns of the MLP.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True, repr=False)
class Llama:
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head: int = 128

    def __repr__(self) -> str:
        return f"{self.name} of {self.layers} layers"


LLAMA_8B = Llama("Llama-3.1-8B", 4096, 32, 32, 8, 14336, 128256)
LLAMA_70B = Llama("Llama-3.1-70B", 8192, 80, 64, 8, 28672, 128256)
TINY = Llama("tiny Llama", 64, 2, 8, 4, 128, 256, 16)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), eps=1e-5)


def rotary_table(length: int, head: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = 500000.0 ** (-torch.arange(0, head, 2, device=device) / head)
    angle = torch.outer(torch.arange(length, device=device), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def layer_weights(draw, m: Llama, layer: int, r: int, world: int) -> list[torch.Tensor]:
    """The rank's of a layer: query-key-value, output, gate-up, down."""
    if m.kv_heads % world:
        raise ValueError(f"{m.name} has {m.kv_heads} key-value heads, which {world} ranks cannot share evenly")
    heads, kv, ffn = m.heads // world, m.kv_heads // world, m.ffn // world
    make = lambda what, out, wide, whole: draw.weight(f"{layer} {what}", r, out, wide, whole)
    return [
        make("qkv", (heads + 2 * kv) * m.head, m.hidden, m.hidden),
        make("o", m.hidden, heads * m.head, m.heads * m.head),
        make("gate-up", 2 * ffn, m.hidden, m.hidden),
        make("down", m.hidden, ffn, m.ffn),
    ]


def split_heads(x: torch.Tensor, m: Llama, world: int) -> tuple[torch.Tensor, ...]:
    """Of [batch, tokens, features]: query, key, value, each [batch, heads, tokens, head]."""
    sizes = [m.heads // world, m.kv_heads // world, m.kv_heads // world]
    return x.unflatten(-1, (-1, m.head)).transpose(1, 2).split(sizes, 1)


def attend_cached(m: Llama, world: int, x, qkv, keys, values, position, cos, sin) -> torch.Tensor:
    """The heads' output for one token of each sequence; its key and value are written into the cache."""
    q, k, v = split_heads(F.linear(x, qkv)[:, None], m, world)
    cos, sin = cos[position], sin[position]
    keys.index_copy_(2, position, rotated(k, cos, sin))
    values.index_copy_(2, position, v)
    repeat = lambda t: t[:, :, None].expand(-1, -1, m.heads // m.kv_heads, -1, -1).flatten(1, 2)
    mask = (torch.arange(keys.shape[2], device=x.device) <= position)[None, None, None]
    heads = F.scaled_dot_product_attention(rotated(q, cos, sin), repeat(keys), repeat(values), attn_mask=mask)
    return heads.transpose(1, 2).flatten(1)


def causal(m: Llama, world: int, x, qkv, cos, sin) -> torch.Tensor:
    """[tokens, hidden] -> [tokens, the rank's heads]"""
    q, k, v = split_heads(F.linear(x, qkv)[None], m, world)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m.heads != m.kv_heads)
    return heads.transpose(1, 2).flatten(2)[0]


def gated(x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.silu(gate) * up
