"""How plans with collectives are called: beside the group's own calls, from several threads, traced, in groups that are
made anew."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch
from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import compiled, ranks_values
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def layers(x, weights, group):
    for weight in weights:
        x = funcol.all_reduce(torch.relu(x @ weight), "avg", group)
    return x


def beside_calls(rank: int, world: int) -> None:
    """Calls of the group are under way while plans run: memory, counters and threads are not shared."""
    weights = [ranks_values(rank, (32, 32), torch.float32, i) / 6 for i in range(4)]
    fast = compiled(lambda x: layers(x, weights, dist.group.WORLD))
    for step in range(30):
        x, large = ranks_values(rank, (8, 32), torch.float32, step), torch.full((100_000,), float(step))
        work = dist.all_reduce(large, async_op=True)
        got = fast(x)
        dist.barrier()
        work.wait()
        assert (large == step * world).all()
        torch.testing.assert_close(got, layers(x, weights, dist.group.WORLD), rtol=1e-4, atol=1e-5)


def two_groups_in_two_threads(rank: int, world: int) -> None:
    """Each thread has a plan of a group of its own."""
    groups = [dist.new_group(backend="cpu:ark") for _ in range(2)]
    functions = [compiled(lambda x, g=g: funcol.all_reduce(x * 2, "sum", g) + 1) for g in groups]
    callables: list = []
    with ark_torch.backend.record_callables(callables):
        for function in functions:
            function(torch.ones(40, 50))
    wrong: list = []

    def run(call, first: float) -> None:
        try:
            for step in range(100):
                (got,) = call([torch.full((40, 50), first + step)])
                assert (got == 2 * (first + step) * world + 1).all()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(call, 10.0 * i)) for i, call in enumerate(callables)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(callables) == 2 and wrong == []
    for group in groups:
        dist.destroy_process_group(group)


def traced(rank: int, world: int) -> None:
    """Traced runs count the same launches as the others, also where one rank alone traces."""
    fast = compiled(lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1)
    x = torch.ones(4, 5)
    for step in range(4):
        if step % 2 == rank % 2:
            with ark_torch.profile() as profile:
                got = fast(x)
            assert "all_reduce" in profile.table()
        else:
            got = fast(x)
        assert (got == 2 * world + 1).all()


def made_anew(rank: int, world: int) -> None:
    """The compiled function goes on in a group of the same name; without one it is an error."""
    fast = compiled(lambda x: funcol.all_reduce(x * 2, "sum", "0") + 1)
    x = torch.ones(4, 5)
    store = dist.distributed_c10d._get_default_store()
    for life in range(3):
        for _ in range(3):
            assert (fast(x) == 2 * world + 1).all()
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises((RuntimeError, ValueError), match="process group"):
            fast(x)
        dist.init_process_group(
            "cpu:ark",
            store=dist.PrefixStore(f"life {life}", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=30),
        )


CALLERS = [beside_calls, two_groups_in_two_threads, traced, made_anew]


def callers(rank: int, world: int) -> dict:
    return run_each(CALLERS, rank, world)


@pytest.mark.parametrize("world", [2, 3])
def test_callers(world):
    for of_rank in values(run_ranks(callers, world, seconds=20)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
