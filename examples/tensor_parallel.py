"""A tensor-parallel transformer block: two processes, each with half of the heads and of the MLP. Its all-reduces are
part of the plan that ark makes of it. Says whether the result is a single process's, and what is in the plan.

python examples/tensor_parallel.py, or torchrun --nproc-per-node=2 examples/tensor_parallel.py
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import ark_torch

WIDTH, HEAD, INNER, ROWS = 256, 32, 768, 32
# Whose rows (Colwise) and whose columns (Rowwise) of a weight the ranks share; after a Rowwise one comes an all-reduce.
SHARING = {
    **{name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")},
    **{name: RowwiseParallel() for name in ("output", "down")},
}


def rotary(x: torch.Tensor) -> torch.Tensor:
    """Positions as rotations of pairs; x: heads, rows, head."""
    rows, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.outer(torch.arange(rows, device=x.device), 1e-4 ** (torch.arange(half, device=x.device) / half))
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def split(x: torch.Tensor) -> torch.Tensor:
    """In heads: heads, rows, head."""
    return x.unflatten(-1, (-1, HEAD)).transpose(0, 1)


class Block(nn.Module):
    """Attention and a gated MLP as Llama has them."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        query, key, value = (split(part(y)) for part in (self.query, self.key, self.value))
        heads = F.scaled_dot_product_attention(rotary(query), rotary(key), value, is_causal=True)
        x = x + self.output(heads.transpose(0, 1).flatten(1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def check(rank: int, world: int, device: torch.device) -> None:
    torch.manual_seed(0)  # all ranks begin with the same weights
    whole, shared = Block().to(device), Block().to(device)
    shared.load_state_dict(whole.state_dict())
    parallelize_module(shared, init_device_mesh(device.type, (world,)), SHARING)
    x = torch.randn(ROWS, WIDTH, device=device)
    with torch.no_grad():
        want = whole(x)  # what a single process computes
        got = torch.compile(shared, backend="ark")(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    everybody = [torch.empty_like(got) for _ in range(world)]
    dist.all_gather(everybody, got.contiguous())
    assert all(torch.equal(other, got) for other in everybody)
    if rank == 0:
        print(f"{world} ranks on {device.type}: equal to a single process up to {(got - want).abs().max():.1e},")
        print(f"to each other bit by bit; a rank has {shared.up.weight.to_local().shape[0]} of {INNER} inner columns.")
        print(ark_torch.report())


def run(rank: int, world: int, path: str | None = None) -> None:
    on_gpus = torch.cuda.device_count() >= world
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    store = dist.FileStore(path, world) if path else None  # under torchrun: as its variables say
    dist.init_process_group("ark", store=store, rank=rank, world_size=world)
    check(rank, world, device)
    dist.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:
        return run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(2, os.path.join(folder, "store")), nprocs=2)


if __name__ == "__main__":
    main()
