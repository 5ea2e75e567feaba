"""What stands on torch.distributed and must not notice which backend it got: FSDP2, tensor parallelism with DTensor,
torch.distributed.checkpoint, DDP with gradient accumulation. Functions of (rank, world) for
tests.support.distributed_worker;
each checks itself against one process that has the whole batch and all parameters."""

from __future__ import annotations

import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.support.distributed_worker import run_each

STEPS, ROWS, WIDTH = 4, 4, 64


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).to(device())


def batches(world: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(world * ROWS, WIDTH, generator=generator).to(device()) for _ in range(STEPS)]


def own_rows(batch: torch.Tensor, rank: int) -> torch.Tensor:
    return batch[rank * ROWS : (rank + 1) * ROWS]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """With a state; not Adam, which makes steps of equal size out of gradients that are rounding errors. One tensor at
    a time: lists of DTensors and tensors do not mix."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def train(model: nn.Module, data: list[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    optimizer = optimizer_of(model)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean() * scale
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def mean_over_ranks(losses: list[torch.Tensor]) -> torch.Tensor:
    """Sums in float, so that nothing but the backend's all-reduce takes part."""
    total = torch.stack(losses)
    dist.all_reduce(total)
    return total / dist.get_world_size()


def expected(world: int) -> torch.Tensor:
    return torch.stack(train(build(), batches(world)))


def close(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6)


def shard(model: nn.Sequential, mesh: DeviceMesh, **options) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fully_sharded(rank: int, world: int) -> None:
    data = [own_rows(batch, rank) for batch in batches(world)]
    for reshard in (True, False):
        model = shard(build(), init_device_mesh(device(), (world,)), reshard_after_forward=reshard)
        close(mean_over_ranks(train(model, data)), expected(world))


def divided_gradients(rank: int, world: int) -> None:
    """FSDP2 with a divisor of the gradients other than the number of ranks: the sums have a factor."""
    data = [own_rows(batch, rank) for batch in batches(world)]
    model = shard(build(), init_device_mesh(device(), (world,)))
    for module in (*model, model):
        module.set_gradient_divide_factor(2.0 * world)
    close(mean_over_ranks(train(model, data, scale=2.0)) / 2, expected(world))


def hybrid_sharded(rank: int, world: int) -> None:
    """Replicas of shards: a mesh of two dimensions, groups of some of the ranks."""
    if world < 4 or world % 2:
        return
    mesh = init_device_mesh(device(), (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    data = [own_rows(batch, rank) for batch in batches(world)]
    close(mean_over_ranks(train(shard(build(), mesh), data)), expected(world))


def tensor_parallel(rank: int, world: int) -> None:
    """Column- and row-wise linears; then with the activations between them sharded by sequence (rows)."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    mesh = init_device_mesh(device(), (world,))
    data, wanted = batches(world), expected(world)
    by_columns = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = build()
    for block in model:
        parallelize_module(block, mesh, by_columns)
    close(torch.stack(train(model, data)), wanted)

    by_sequence = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    model = build()
    for block in model:
        parallelize_module(block, mesh, by_sequence)
    # A rank's loss is its part of the whole mean; gradients are summed on the way back.
    losses = train(model, [own_rows(batch, rank) for batch in data], scale=1 / world)
    close(mean_over_ranks(losses) * world, wanted)


def checkpoints(rank: int, world: int) -> None:
    """A sharded model and its optimizer are saved by all ranks and loaded into a model that was made anew, sharded
    and whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    mesh = init_device_mesh(device(), (world,))
    data = [own_rows(batch, rank) for batch in batches(world)]
    folder = [tempfile.mkdtemp(prefix="ark-checkpoint-")] if rank == 0 else [None]
    dist.broadcast_object_list(folder, src=0)
    model = shard(build(), mesh)
    optimizer = optimizer_of(model)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = [step(batch) for batch in data[:2]]
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])

    torch.manual_seed(5)
    model = shard(nn.Sequential(Block(), Block()).to(device()), mesh)
    optimizer = optimizer_of(model)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    close(mean_over_ranks(first + [step(batch) for batch in data[2:]]), expected(world))

    whole = build()  # resharded: the same checkpoint, read by a model that is not sharded
    state = whole.state_dict()
    dcp.load({"model": state}, checkpoint_id=folder[0])
    reference = build()
    train(reference, batches(world)[:2])
    for mine, wanted in zip(state.values(), reference.state_dict().values()):
        close(mine, wanted)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def accumulated(rank: int, world: int) -> None:
    """DDP: gradients accumulated over two micro-batches, the first without communication; buckets as views."""
    model = build()
    ids = [rank] if device() == "cuda" else None
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, bucket_cap_mb=1)
    optimizer = optimizer_of(parallel)
    losses = []
    for batch in batches(world):
        optimizer.zero_grad()
        halves = own_rows(batch, rank).chunk(2)
        for i, half in enumerate(halves):
            with parallel.no_sync() if i == 0 else contextlib.nullcontext():
                loss = parallel(half).square().mean() / 2
                loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    pairs = [a + b for a, b in zip(losses[::2], losses[1::2])]
    close(mean_over_ranks(pairs), expected(world))


USERS = (fully_sharded, divided_gradients, hybrid_sharded, tensor_parallel, checkpoints, accumulated)


def all_users(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(USERS, rank, world)
