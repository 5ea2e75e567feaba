"""Compiled functions that wait for an asynchronous collective and use the tensor, not what waiting returns: what they
read comes after the wait, what they write over comes after who still reads it."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from ark_torch.backend import ark
from tests.conftest import has_extension
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

SIZE = 1 << 16
LATE = 0.3  # seconds that the last rank lets the others wait: who reads too early does so long before the sum is there


def functional():
    return torch.ops._c10d_functional


def group_name() -> str:
    return dist.group.WORLD.group_name


def sum_of_ranks(rank: int, world: int) -> torch.Tensor:
    """The tensor of an all-reduce that is under way."""
    if rank == world - 1:
        time.sleep(LATE)
    return functional().all_reduce(torch.full((SIZE,), rank + 1.0), "sum", group_name())


def compile_with_waits(body, rank: int, world: int):
    """The body compiled, by a call on a tensor that nobody has to wait for."""
    compiled = torch.compile(body, backend=ark, fullgraph=True)
    with torch.no_grad():
        compiled(torch.ones(SIZE))
    dist.barrier()
    return compiled


def expect(body, wanted, rank: int, world: int) -> None:
    compiled, total = compile_with_waits(body, rank, world), world * (world + 1) / 2
    for _ in range(2):
        with torch.no_grad():
            actual = compiled(sum_of_ranks(rank, world))
        torch.testing.assert_close(actual, torch.full_like(actual, wanted(total)))


def read_after_a_wait(rank: int, world: int) -> None:
    def body(y):
        functional().wait_tensor(y)
        return y * y

    expect(body, lambda total: total * total, rank, world)


def a_view_made_before_the_wait(rank: int, world: int) -> None:
    def body(y):
        half = y.view(2, -1)[1]
        functional().wait_tensor(y)
        return half * 3 + 1

    expect(body, lambda total: 3 * total + 1, rank, world)


def a_wait_for_a_view(rank: int, world: int) -> None:
    def body(y):
        functional().wait_tensor(y.view(-1))
        return y * 2

    compiled, total = torch.compile(body, backend=ark, fullgraph=True), world * (world + 1) / 2
    y = functional().all_reduce(torch.full((SIZE,), rank + 1.0), "sum", group_name())
    torch.testing.assert_close(compiled(y), torch.full((SIZE,), 2 * total))
    functional().wait_tensor(y)


def written_after_a_wait(rank: int, world: int) -> None:
    def body(y):
        functional().wait_tensor(y)
        y.add_(1)
        return y * 2

    expect(body, lambda total: 2 * total + 2, rank, world)


def started_inside(rank: int, world: int) -> None:
    """The collective is the graph's own; its input is written after the wait, before that it is being read."""

    def body(x):
        y = functional().all_reduce(x * 2, "sum", group_name())
        z = functional().all_gather_into_tensor(x, world, group_name())
        functional().wait_tensor(y)
        functional().wait_tensor(z)
        x.add_(1)
        return y * y + z.view(world, -1).sum(0) * 3 + x

    compiled = torch.compile(body, backend=ark, fullgraph=True)
    mine, theirs = (torch.full((SIZE,), rank + 1.0) for _ in range(2))
    for _ in range(3):
        if rank == world - 1:
            time.sleep(LATE)
        with torch.no_grad():
            torch.testing.assert_close(compiled(mine), body(theirs))
        torch.testing.assert_close(mine, theirs)


BODIES = [read_after_a_wait, a_view_made_before_the_wait, a_wait_for_a_view, written_after_a_wait, started_inside]


def bodies(rank: int, world: int) -> dict:
    return run_each(BODIES, rank, world)


@pytest.mark.parametrize("backend", ["gloo", "cpu:ark"])
def test_reads_and_writes_after_waits(backend):
    for rank, results in enumerate(values(run_ranks(bodies, 2, backend))):
        failed = {name: error for name, (status, error) in results.items() if status != "ok"}
        assert not failed, f"rank {rank}: {failed}"
