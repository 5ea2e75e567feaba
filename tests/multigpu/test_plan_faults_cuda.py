"""What ranks hear when a plan with collectives cannot run on all GPUs: a rank that stays away, one that leaves its work
out, plans that differ, an index out of range, a group that is destroyed with a launch under way."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.distributed.test_plan_collectives import compiled
from tests.support.damaged_plans import silent
from tests.support.distributed_worker import room_for_ranks, run_each, run_gpus, values

ROOM = room_for_ranks()
pytestmark = pytest.mark.skipif(ROOM < 2, reason="needs two GPUs, or TESTS_RANKS_PER_GPU")
SECONDS = 3


def a_group(world: int, seconds: float = 30) -> dist.ProcessGroup:
    return dist.new_group(list(range(world)), backend="ark", timeout=timedelta(seconds=seconds))


def summed(group: dist.ProcessGroup):
    return compiled(lambda x: funcol.all_reduce(x * 2, "sum", group) + 1)


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes, device="cuda")


def raised(call, *arguments) -> str:
    """Errors of a launch come with the next one."""
    try:
        call(*arguments)
        torch.cuda.synchronize()
        call(*arguments)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def check_works(world: int) -> None:
    fresh = a_group(world)
    for group in (fresh, dist.group.WORLD):
        assert (summed(group)(ones(4, 5)) == 2 * world + 1).all()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group(fresh)


def a_rank_stays_away(rank: int, world: int) -> None:
    """From a later launch: the others wait for the time-out, outputs are NaN, and the late rank raises at once."""
    group = a_group(world, SECONDS)
    fast = summed(group)
    assert (fast(ones(4, 5)) == 2 * world + 1).all()
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(SECONDS + 3)
    begin = time.monotonic()
    text = raised(fast, ones(4, 5))
    seconds = time.monotonic() - begin
    if rank == 0:
        assert "launch 1 of '" in text and "rank 1 has not sent in time what op" in text and "all_reduce" in text, text
        assert SECONDS - 0.5 < seconds < SECONDS + 3, seconds
    else:
        assert "rank" in text and "no error" not in text and seconds < SECONDS, (text, seconds)
    check_works(world)


def a_rank_sends_nothing(rank: int, world: int) -> None:
    """It runs the plan without the op that sends: the other names rank, op, tile and launch. It ends too: it waits for
    itself, and the other gives up before."""
    group = a_group(world, SECONDS)
    begin = time.monotonic()
    with silent() if rank == 1 else contextlib.nullcontext():
        text = raised(summed(group), ones(4, 5))
    if rank == 0:
        assert "launch 0 of '" in text and " on rank 0: rank 1 has not sent in time what op " in text, text
        assert "all_reduce" in text and ", tile 0, " in text, text
    assert "rank" in text and "no error" not in text, text
    assert time.monotonic() - begin < 60  # with compilations
    dist.barrier()
    check_works(world)


def plans_differ(rank: int, world: int) -> None:
    group = a_group(world)
    functions = [
        lambda x: funcol.all_reduce(x * 2, "sum", group),
        lambda x: funcol.all_reduce(x * 2, "sum", group) + funcol.all_reduce(x, "max", group),
    ]
    text = raised(compiled(functions[rank == 1]), ones(4, 5))
    assert "ranks disagree: " in text and "rank 0 has " in text and "rank 1 has " in text, text
    check_works(world)


def destroyed_on_the_way(rank: int, world: int) -> None:
    """One rank destroys its group while its kernel waits for another that never launches: it ends."""
    group = a_group(world, 60)
    fast = summed(group)
    fast(ones(4, 5))
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.monotonic()
    if rank == 0:
        fast(ones(4, 5))
    dist.destroy_process_group(group)
    torch.cuda.synchronize()
    assert time.monotonic() - begin < 20
    check_works(world)


def an_index_out_of_range(rank: int, world: int) -> None:
    """Of one rank: the next launch, which it does not make, ends on the others long before the time-out."""
    group = a_group(world, 60)
    fast = compiled(lambda x, i: funcol.all_reduce(x.index_select(0, i) * 2, "sum", group))
    index = torch.arange(4, device="cuda")
    assert (fast(ones(4, 5), index) == 2 * world).all()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.monotonic()
    text = raised(fast, ones(4, 5), index + 3 * rank)
    if text == "no error":  # the launch that was cut short: the next one says so
        text = raised(fast, ones(4, 5), index)
    assert ("index" if rank == 1 else "rank") in text, text
    assert time.monotonic() - begin < 20
    check_works(world)


def destroyed_during_a_replay(rank: int, world: int) -> None:
    """The memory of its plans stays until the replay, in a stream that the group has not seen, has ended."""
    group = a_group(world, 60)
    fast, x = summed(group), ones(4, 5)
    fast(x)
    torch.cuda.synchronize()
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        got = fast(x)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(1)  # rank 0's launch waits
    with torch.cuda.stream(other):
        graph.replay()
    dist.destroy_process_group(group)
    torch.cuda.synchronize()
    assert (got == 2 * world + 1).all()
    check_works(world)


FAULTS = [
    a_rank_stays_away,
    a_rank_sends_nothing,
    plans_differ,
    destroyed_on_the_way,
    an_index_out_of_range,
    destroyed_during_a_replay,
]


def faults(rank: int, world: int) -> dict:
    return run_each(FAULTS, rank, world)


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return values(run_gpus(faults, 2, seconds=60))


@pytest.mark.parametrize("function", FAULTS, ids=lambda f: f.__name__)
def test_fault(ranks, function):
    values({rank: results[function.__name__] for rank, results in enumerate(ranks)})
