"""What ranks hear when a plan with collectives cannot run on all of them: plans or sizes that differ, ranks that
compile again, die, stay away, raise or leave. Every rank raises and names rank and op, nothing hangs, a new
group works."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import compiled
from tests.support.damaged_plans import silent
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

SECONDS = 3  # time-out of groups in which one rank does not come
SLACK = 5  # in these: others take the processor
SOON = 20  # in the others, whose time-out is 30: the first calls compile as well


def a_group(world: int, seconds: float = 30) -> dist.ProcessGroup:
    return dist.new_group(list(range(world)), backend="cpu:ark", timeout=timedelta(seconds=seconds))


def summed(group: dist.ProcessGroup, **options) -> Callable:
    return compiled(lambda x: funcol.all_reduce(x * 2, "sum", group) + 1, **options)


def raised(call: Callable, *arguments) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        call(*arguments)
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text, time.monotonic() - begin


def check_works(world: int) -> None:
    """A new group, and the default one, which nothing has happened to."""
    fresh = a_group(world)
    for group in (fresh, dist.group.WORLD):
        assert (summed(group)(torch.ones(4, 5)) == 2 * world + 1).all()
    dist.destroy_process_group(fresh)


def plans_differ(rank: int, world: int) -> None:
    """Another reduction is no other interface, another collective is."""
    group = a_group(world)
    functions = [
        lambda x: funcol.all_reduce(x * 2, "sum", group),
        lambda x: funcol.all_reduce(x * 2, "sum", group) + funcol.all_reduce(x, "max", group),
    ]
    text, seconds = raised(compiled(functions[rank == 1]), torch.ones(4, 5))
    assert "ranks disagree: " in text and "rank 0 has " in text and "rank 1 has " in text and seconds < SOON, text
    check_works(world)


def sizes_differ(rank: int, world: int) -> None:
    group = a_group(world)
    text, seconds = raised(summed(group), torch.ones(4 + (rank == world - 1), 5))
    assert "ranks disagree: rank 0 has " in text and f"rank {world - 1} has " in text, text
    assert "80 bytes" in text and "100 bytes" in text, text
    check_works(world)


def types_differ(rank: int, world: int) -> None:
    group = a_group(world)
    text, _ = raised(summed(group), torch.ones(4, 5, dtype=torch.int32 if rank == 1 else torch.float32))
    assert "ranks disagree" in text and "i32" in text and "f32" in text, text
    check_works(world)


def a_rank_compiles_again(rank: int, world: int) -> None:
    """It finds the memory that the others still use."""
    group = a_group(world)
    fast = summed(group)
    for launch in range(6):
        if rank == 1 and launch in (1, 3, 4):
            fast = summed(group)  # as a reset of Dynamo, or a failed guard, does
        x = torch.full((4, 5), float(launch + rank))
        assert torch.equal(fast(x), funcol.all_reduce(x * 2, "sum", group) + 1)
    dist.destroy_process_group(group)


def few_instances(rank: int, world: int) -> None:
    """One rank keeps one instance, the others all."""
    group = a_group(world)
    options = {"max_executables": 1} if rank == 0 else {}
    torch._dynamo.reset()
    fast = torch.compile(
        lambda x: funcol.all_reduce(x * 2, "sum", group),
        backend="ark",
        dynamic=True,
        options={"strict": True, **options},
    )
    for rows in (2, 5, 3, 2, 5, 3, 2):
        assert (fast(torch.ones(rows, 6)) == 2 * world).all()
    dist.destroy_process_group(group)


def a_rank_stays_away(rank: int, world: int) -> None:
    """From the first launch, then from a later one: the others wait for the time-out."""
    for launches in (0, 2):
        group = a_group(world, SECONDS)
        fast = summed(group)
        for _ in range(launches):
            fast(torch.ones(4, 5))
        dist.barrier()
        if rank == 1:
            time.sleep(SECONDS + 2)
        text, seconds = raised(fast, torch.ones(4, 5))
        dist.barrier()
        if rank != 1:
            assert SECONDS - 0.5 < seconds < SECONDS + SLACK, (text, seconds)
            assert "rank 1" in text and ("all_reduce" in text or "did not come" in text), text
        assert "no error" not in text and "rank" in text, text
        text, seconds = raised(fast, torch.ones(4, 5))
        assert "failed: " in text and seconds < SLACK, text
        dist.destroy_process_group(group)
        check_works(world)


def a_rank_sends_nothing(rank: int, world: int) -> None:
    """It runs the plan without the op that sends: the others name rank, op, tile and launch. It ends too: it waits for
    itself, and they give up before."""
    group = a_group(world, SECONDS)
    with silent() if rank == 1 else contextlib.nullcontext():
        text, seconds = raised(summed(group), torch.ones(4, 5))
    assert "launch 0 of '" in text and f" on rank {rank}: rank " in text and seconds < SOON + SLACK, (text, seconds)
    named = "rank 1 has not sent in " in text and " what op " in text and "all_reduce" in text and ", tile 0, " in text
    assert named if rank != 1 and world == 2 else named or "has given up" in text, text
    dist.barrier()
    check_works(world)


def a_rank_refuses(rank: int, world: int) -> None:
    """Its argument does not fit the plan: the others hear of it at once."""
    group = a_group(world)
    import ark_torch

    fast, callables = summed(group), []
    with ark_torch.backend.record_callables(callables):
        fast(torch.ones(4, 5))
    dist.barrier()
    text, seconds = raised(callables[0], [torch.ones(4, 5 + (rank == 1))])
    assert seconds < SOON, (text, seconds)
    assert ("expected f32 sizes [4, 5]" if rank == 1 else "rank 1 ") in text, text
    assert "expected f32" in text, text
    check_works(world)


def a_rank_leaves(rank: int, world: int) -> None:
    group = a_group(world)
    fast = summed(group)
    fast(torch.ones(4, 5))
    dist.barrier()
    if rank == 1:
        dist.destroy_process_group(group)
        text, seconds = raised(fast, torch.ones(4, 5))
        assert "which is not there" in text, text
    else:
        text, seconds = raised(fast, torch.ones(4, 5))
        assert "rank 1 has destroyed the group" in text and "all_reduce" in text and seconds < SOON, text
    dist.barrier()
    check_works(world)


def a_call_instead(rank: int, world: int) -> None:
    """One rank calls a collective of the group while the others run a plan."""
    group = a_group(world, SECONDS)
    fast = summed(group)
    fast(torch.ones(4, 5))
    text, seconds = raised(lambda: dist.barrier(group) if rank == 1 else fast(torch.ones(4, 5)))
    assert "no error" not in text and seconds < SECONDS + SLACK, (text, seconds)
    check_works(world)


FAULTS = [
    plans_differ,
    sizes_differ,
    types_differ,
    a_rank_compiles_again,
    few_instances,
    a_rank_stays_away,
    a_rank_sends_nothing,
    a_rank_refuses,
    a_rank_leaves,
    a_call_instead,
]


def faults(rank: int, world: int) -> dict:
    return run_each(FAULTS, rank, world)


@pytest.mark.parametrize("world", [2, 3])
def test_faults(world):
    for of_rank in values(run_ranks(faults, world, seconds=20)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"


def dies(rank: int, world: int) -> tuple[str, float]:
    """Rank 1 is killed while the others wait for it, then the others go on in a group of their own."""
    fast = summed(dist.group.WORLD)
    fast(torch.ones(4, 5))
    rest = dist.new_group([r for r in range(world) if r != 1], backend="cpu:ark")
    dist.barrier()
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    result = raised(fast, torch.ones(4, 5))
    assert (summed(rest)(torch.ones(4, 5)) == 2 * (world - 1) + 1).all()
    return result


def test_a_rank_dies():
    for text, seconds in values(run_ranks(dies, 3, seconds=20, expect_missing=1)):
        assert "rank 1 (process " in text and "has died" in text and "all_reduce" in text and seconds < SOON, text
