"""What collectives must give, computed by every rank for itself, bit for bit.

Of a number and NaN, minimum and maximum give the number, as NCCL's do; of NaN alone, NaN.
"""

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
            total = torch.fmax(total, part)
        elif op == dist.ReduceOp.MIN:
            total = torch.fmin(total, part)
        else:
            total = total + part
    if op == dist.ReduceOp.AVG:
        world = len(parts)
        total = total / world if wide.is_floating_point else torch.div(total, world, rounding_mode="trunc")
    return total.to(dtype)


def reference(base: torch.Tensor, world: int, op) -> torch.Tensor:
    """Of ranks that hold base + rank."""
    return reduced([base + r for r in range(world)], op)


def check_not_numbers(rank: int, world: int, device: str, sizes: tuple[int, ...]) -> None:
    """NaN of one rank, of all of them, of all ones; zeros of either sign: every rank gets the same bits."""
    ops = (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM, dist.ReduceOp.AVG)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for size in sizes:
            parts = [(torch.arange(size, device=device) % 5 - 2).to(dtype) + r for r in range(world)]
            for r, part in enumerate(parts):
                part[3 * r :: 17] = float("nan")
                part[2::19] = float("nan")
                part[4::23] = -0.0 if r % 2 else 0.0
                part.view(torch.uint8).view(-1, dtype.itemsize)[5 + r :: 29] = 0xFF
                part.view(torch.uint8).view(-1, dtype.itemsize)[6::31] = 0xFF
            for op in ops:
                out = parts[rank].clone()
                dist.all_reduce(out, op=op)
                wanted = reduced(parts, op)
                assert torch.allclose(out, wanted, rtol=0, atol=0, equal_nan=True), (dtype, size, op)
                bits = out.view(torch.uint8)
                every = [torch.empty_like(bits) for _ in range(world)]
                dist.all_gather(every, bits)
                assert all(torch.equal(bits, other) for other in every), (dtype, size, op)


def check_factors(rank: int, world: int, device: str) -> None:
    """Sums that multiply what they add by a factor (FSDP2's, if a gradient's divisor is set): a number or a tensor.
    Inputs stay as they are, also on ranks that get no result."""
    size = 1003
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for factor in (0.3, torch.tensor([0.3], dtype=dtype, device=device)):
            op = dist._make_nccl_premul_sum(factor)
            held = [(torch.arange(size * world, device=device) % 7 + r).to(dtype) for r in range(world)]
            wanted = reduced([h * factor for h in held], dist.ReduceOp.SUM)
            own = wanted.chunk(world)[rank]
            everything, strided = held[rank].clone(), torch.zeros(size * world, 2, dtype=dtype, device=device)[:, 0]
            strided.copy_(held[rank])
            works = [dist.all_reduce(x, op=op, async_op=True) for x in (everything, strided)]
            for work in works:
                work.wait()
            assert torch.equal(everything, wanted) and torch.equal(strided, wanted), (dtype, factor)
            for x in (held[rank].clone(), strided.copy_(held[rank])):
                dist.reduce(x, dst=1, op=op)
                assert torch.equal(x, wanted if rank == 1 else held[rank]), (dtype, factor)
            mine, part = held[rank].clone(), torch.empty_like(own)
            dist.reduce_scatter_tensor(part, mine, op=op)
            assert torch.equal(part, own) and torch.equal(mine, held[rank]), (dtype, factor)
            dist.reduce_scatter(part.zero_(), list(mine.chunk(world)), op=op)
            assert torch.equal(part, own) and torch.equal(mine, held[rank]), (dtype, factor)
    several = [torch.full((5,), float(rank), device=device), torch.ones(2, 3, device=device)]
    dist.all_reduce_coalesced(several, op=dist._make_nccl_premul_sum(0.5))
    assert (several[0] == sum(range(world)) / 2).all() and (several[1] == world / 2).all()
