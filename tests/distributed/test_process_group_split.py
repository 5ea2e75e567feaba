"""Groups that are split off others, and two-dimensional meshes made when a device is bound (init_process_group's
device_id), on the host: torch refuses to bind a CPU, so the accelerator that it looks for is put in its place."""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from collections.abc import Iterator
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.conftest import has_extension
from tests.support.distributed_users import batches, build, close, expected, mean_over_ranks, own_rows, shard, train
from tests.support.distributed_worker import run_ranks, values

CUDA_ONLY = 'torch.device("cuda")' in inspect.getsource(dist.split_group)  # torch 2.11
pytestmark = [
    pytest.mark.skipif(not has_extension(), reason="the extension is not built"),
    pytest.mark.skipif(CUDA_ONLY, reason="this torch splits groups of CUDA devices only"),
]


@contextlib.contextmanager
def bound_device() -> Iterator[None]:
    """As if the default group had been made with device_id and the accelerator were the CPU."""
    default = dist.distributed_c10d._get_default_group()
    cpu = torch.device("cpu")
    before = default.bound_device_id
    default.bound_device_id = torch.device("cpu", 0)
    try:
        with (
            mock.patch.object(torch.accelerator, "is_available", lambda: True),
            mock.patch.object(torch.accelerator, "current_accelerator", lambda *_, **__: cpu),
        ):
            yield
    finally:
        default.bound_device_id = before


def split(rank: int, world: int) -> None:
    """Halves of the ranks, twice with the same ranks; the parent goes on beside them; ranks that are left out."""
    import ark_torch.distributed as ark

    with bound_device():
        half = world // 2
        halves = [list(range(half)), list(range(half, world))]
        mine = halves[rank >= half]
        groups = [dist.split_group(split_ranks=halves, group_desc=f"halves {i}") for i in range(2)]
        for i, group in enumerate(groups):
            assert dist.get_process_group_ranks(group) == mine
            x = torch.tensor([float(rank + i)])
            dist.all_reduce(x, group=group)
            assert x.item() == sum(r + i for r in mine)
        first = dist.split_group(split_ranks=[[0]])
        assert (first not in (None, dist.GroupMember.NON_GROUP_MEMBER)) == (rank == 0)  # torch 2.15: not None
        if rank == 0:
            dist.all_reduce(x, group=first)
            dist.destroy_process_group(first)
        backend = ark.backend_of()
        assert backend.supports_splitting
        backend.perform_nocolor_split(torch.device("cpu"))  # what new_group calls on ranks that it leaves out
        dist.destroy_process_group(groups[0])
        dist.all_reduce(x)


def options(rank: int, world: int) -> None:
    from ark_torch.distributed import backend_of

    given = backend_of().options
    copied = copy.deepcopy(given)
    assert copied.backend == "ark" and copied._timeout == given._timeout
    child = dist.distributed_c10d._get_default_group().split_group(list(range(world)), opts=copied, group_name="child")
    x = torch.ones(3)
    child.allreduce(x).wait()
    assert (x == world).all()


def sharded_and_parallel(rank: int, world: int) -> None:
    """FSDP2 over one dimension of a mesh, tensor parallelism over the other."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with bound_device():
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        data_mesh, tensor_mesh = mesh["data"], mesh["tensor"]
    model = build()
    for block in model:
        parallelize_module(block, tensor_mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    shard(model, data_mesh)
    data = [own_rows(batch, rank // 2) for batch in batches(world // 2)]
    close(mean_over_ranks(train(model, data)), expected(world // 2))


def ranks_in_groups_of_their_own(rank: int, world: int) -> None:
    """Torch names a split group by the number of groups that the rank is in: one more on the first two ranks."""
    some = dist.new_group([0, 1])
    with bound_device():
        group = dist.split_group(split_ranks=[[0, 2], [1, 3]], timeout=timedelta(seconds=20))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=group)
    assert x.item() == (2 if rank % 2 == 0 else 4)
    dist.destroy_process_group(group)
    if rank < 2:
        dist.destroy_process_group(some)


FUNCTIONS = (split, options, sharded_and_parallel, ranks_in_groups_of_their_own)


def together(rank: int, world: int) -> dict[str, tuple[str, object]]:
    results = {}
    for function in FUNCTIONS:
        try:
            results[function.__name__] = ("ok", function(rank, world))
        except Exception:
            results[function.__name__] = ("error", traceback.format_exc())
    return results


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return values(run_ranks(together, 4, seconds=60))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_function(ranks, function):
    values({rank: results[function.__name__] for rank, results in enumerate(ranks)})
