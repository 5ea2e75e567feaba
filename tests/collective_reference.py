"""What collectives must give, computed by every rank for itself, bit for bit."""

from __future__ import annotations

import torch
import torch.distributed as dist


def reduced(parts: list[torch.Tensor], op) -> torch.Tensor:
    """In rank order, in fp32 for 16-bit floats: the same bits."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = parts[0].to(wide)
    for part in (p.to(wide) for p in parts[1:]):
        if op == dist.ReduceOp.PRODUCT:
            total = total * part
        elif op == dist.ReduceOp.MAX:
            total = torch.maximum(total, part)
        elif op == dist.ReduceOp.MIN:
            total = torch.minimum(total, part)
        else:
            total = total + part
    if op == dist.ReduceOp.AVG:
        world = len(parts)
        total = total / world if wide.is_floating_point else torch.div(total, world, rounding_mode="trunc")
    return total.to(dtype)


def reference(base: torch.Tensor, world: int, op) -> torch.Tensor:
    """Of ranks that hold base + rank."""
    return reduced([base + r for r in range(world)], op)
