"""DDP and FSDP2 around and inside a compiled model. Functions of (rank, world) for tests.support.distributed_worker;
each checks its losses against those of one process that has the whole batch and all parameters."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from ark_torch.backend import ark
from ark_torch.records import recording
from tests.support.distributed_users import Block, batches, close, expected, mean_over_ranks, own_rows, shard, train
from tests.support.distributed_users import build as sequential
from tests.support.distributed_worker import run_each

compiled = functools.partial(torch.compile, backend=ark, options={"threads": 1})


class Model(nn.Module):
    """Not an nn.Sequential: Dynamo skips frames of torch's own containers below DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(sequential())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def check(rank: int, world: int, call: nn.Module, graphs: int) -> None:
    """Trains through `call`; it has compiled at least that many graphs, all of them without an ATen step."""
    torch._dynamo.reset()
    data = [own_rows(batch, rank) for batch in batches(world)]
    with recording() as records:
        losses = train(call, data)
    close(mean_over_ranks(losses), expected(world))
    check_native(records, graphs)


def check_native(records: list, graphs: int) -> None:
    causes = [cause for r in records for cause in (*r.fallbacks, *r.runtime_fallbacks, *r.internal_errors)]
    assert causes == [], causes
    kinds = [r.kind for r in records]
    assert len(kinds) >= graphs and {"forward", "backward"} <= set(kinds), kinds


def compiled_around_ddp(rank: int, world: int) -> None:
    check(rank, world, compiled(DistributedDataParallel(Model())), 2)  # of more buckets: test_ddp.py


def compiled_around_static_ddp(rank: int, world: int) -> None:
    check(rank, world, compiled(DistributedDataParallel(Model(), static_graph=True, gradient_as_bucket_view=True)), 2)


def compiled_around_accumulating_ddp(rank: int, world: int) -> None:
    """Gradients of two batches under no_sync, then exchanged as halves by a hook; a parameter that nothing reads."""
    torch._dynamo.reset()
    found = []
    for wrap in (lambda model: model, compiled):
        model = Model()
        model.unused = nn.Linear(2, 2)
        parallel = DistributedDataParallel(model, find_unused_parameters=True)
        parallel.register_comm_hook(None, fp16_compress_hook)
        call = wrap(parallel)
        with recording() as records:
            for i, batch in enumerate(batches(world)):
                with contextlib.nullcontext() if i % 2 else parallel.no_sync():
                    call(own_rows(batch, rank)[: 4 - i // 2]).square().mean().backward()
        found.append([p.grad for p in model.blocks.parameters()])
    check_native(records, 4)  # of two sizes
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def compiled_inside_ddp(rank: int, world: int) -> None:
    check(rank, world, DistributedDataParallel(compiled(Model())), 2)


def compiled_in_place_inside_ddp(rank: int, world: int) -> None:
    model = Model()
    model.compile(backend=ark, options={"threads": 1})
    check(rank, world, DistributedDataParallel(model), 2)


def compiled_around_fsdp(rank: int, world: int) -> None:
    check(rank, world, compiled(shard(sequential(), init_device_mesh("cpu", (world,)))), 2)


def compiled_inside_fsdp(rank: int, world: int) -> None:
    """As torch recommends it: each block is compiled in place, then sharded."""
    model = sequential()
    for block in model:
        block.compile(backend=ark, options={"threads": 1})
    check(rank, world, shard(model, init_device_mesh("cpu", (world,))), 2)


def compiled_around_fsdp_of_checkpoints(rank: int, world: int) -> None:
    model = sequential()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    check(rank, world, compiled(shard(model, init_device_mesh("cpu", (world,)))), 2)


USERS = (
    compiled_around_ddp,
    compiled_around_static_ddp,
    compiled_around_accumulating_ddp,
    compiled_inside_ddp,
    compiled_in_place_inside_ddp,
    compiled_around_fsdp,
    compiled_inside_fsdp,
    compiled_around_fsdp_of_checkpoints,
)


def all_users(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(USERS, rank, world)
