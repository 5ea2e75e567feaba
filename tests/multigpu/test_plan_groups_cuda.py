"""Collectives of several process groups inside the loop kernels of several GPUs: the functions of
`tests/distributed/test_plan_groups.py`, replays, streams, products of all kinds, and what ranks hear of each other. Two
GPUs run two groups of the same ranks, four a mesh."""

from __future__ import annotations

import functools
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch.groups
from tests.distributed import test_plan_groups as groups
from tests.distributed.test_plan_collectives import compiled, gathered, ranks_values
from tests.distributed.test_plan_groups import group_of, mesh_groups, ones, summed
from tests.support.distributed_worker import room_for_ranks, run_each, run_gpus, shared_run, values

ROOM = room_for_ranks()
pytestmark = pytest.mark.skipif(ROOM < 2, reason="needs two GPUs, or TESTS_RANKS_PER_GPU")
SECONDS = 3


def two_groups(world: int, seconds: float = 30) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    return group_of(list(range(world)), seconds), group_of(list(range(world)), seconds)


def layers(first: dist.ProcessGroup, second: dist.ProcessGroup):
    """Two layers of a product, whose sums are of one group, and of a norm; what they give is gathered in the other."""

    def function(x, *weights):
        for w, group in zip(weights, (first, second)):
            x = x + funcol.all_reduce(torch.relu(x) @ w.t(), "sum", group)
            x = torch.nn.functional.rms_norm(x, (x.shape[-1],))
        return x, gathered(x, second)

    return function


def weights(rank: int, width: int) -> list[torch.Tensor]:
    return [ranks_values(rank, (width, width), torch.bfloat16, seed) / 16 for seed in (1, 2)]


def rows_of_all_kinds(rank: int, world: int) -> None:
    """One row, few rows, tiles on the tensor cores, whose operands are read from boxes by tensor maps."""
    first, second = two_groups(world)
    function, given = layers(first, second), weights(rank, 256)
    for rows in (1, 6, 130):
        fast = compiled(function)
        for launch in range(3):
            x = ranks_values(0, (rows, 256), torch.bfloat16, launch)
            for want, got in zip(function(x, *given), fast(x, *given)):
                torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    through_maps = lambda x, w: gathered(funcol.all_reduce(x, "sum", first), second) @ w.t()
    x = (ranks_values(rank, (128, 256), torch.bfloat16, 5)).round()
    w = ranks_values(0, (256, 256), torch.bfloat16, 6).round()
    groups.check_equal(through_maps, x, w)


def a_captured_launch(rank: int, world: int) -> None:
    """Replays take turns with the boxes of both groups as launches do, and may follow them."""
    function, given = layers(*two_groups(world)), weights(rank, 128)
    fast, x = compiled(function), ranks_values(0, (4, 128), torch.bfloat16, 1)
    fast(x, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = fast(x, *given)
    for turn in range(7):
        x.copy_(ranks_values(0, (4, 128), torch.bfloat16, turn))
        graph.replay()
        if turn % 3 == 1:
            continue  # two replays in turn
        for mine, other in zip(got, fast(x, *given)):
            assert torch.equal(mine, other), turn
    torch.cuda.synchronize()
    dist.barrier()


def other_streams(rank: int, world: int) -> None:
    """Plans that name the groups in one order and in the other, in two streams; asynchronous calls of both groups
    between them."""
    first, second = two_groups(world)
    given, x = weights(rank, 128), ranks_values(0, (8, 128), torch.bfloat16, 1)
    fast = [compiled(layers(*order)) for order in ((first, second), (second, first))]
    want = [f(x, *given) for f in fast]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for turn in range(20):
        y = torch.full((1 << 18,), float(rank + turn), device="cuda")
        works = [dist.all_reduce(y.clone() if g is first else y, group=g, async_op=True) for g in (first, second)]
        with torch.cuda.stream(streams[turn % 2]):
            here = fast[turn % 2](x, *given)
        with torch.cuda.stream(streams[1 - turn % 2]):
            there = fast[1 - turn % 2](x, *given)
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        assert (y == world * turn + sum(range(world))).all()
        for got, wanted in ((here, want[turn % 2]), (there, want[1 - turn % 2])):
            assert all(torch.equal(g, w) for g, w in zip(got, wanted)), turn


def many_launches(rank: int, world: int) -> None:
    """Ranks that are not in step: one of them is late now and then."""
    first, second = two_groups(world)
    fast = compiled(lambda x: funcol.all_reduce(funcol.all_reduce(x * 2, "sum", first) + x, "max", second))
    base = torch.arange(4096, device="cuda", dtype=torch.float32)
    for turn in range(300):
        if turn % 37 == 5 * rank:
            torch.cuda._sleep(2_000_000)
        got = fast(base + rank + turn)
        if turn % 50 == 0:
            each = base + turn
            assert torch.equal(got, 2 * (world * each + sum(range(world))) + each + world - 1), turn
    torch.cuda.synchronize()


def beside_groups_of_one(rank: int, world: int) -> None:
    """Ranks have other graphs: what is of one rank alone sends nothing."""
    alone = groups.own_part(rank, [[r] for r in range(world)])

    def function(x):
        y = funcol.all_reduce(x * 3, "sum", alone) + 1
        return gathered(funcol.all_reduce(y, "sum", dist.group.WORLD), alone) - rank

    groups.check_equal(function, ranks_values(rank, (6, 5), torch.float32, 1).round(), launches=4)
    if rank == 0:  # two graphs, one of which has a group that only rank 0 names
        groups.check_equal(lambda x: funcol.all_reduce(x, "max", alone), ones(3, 3))


def explained(rank: int, world: int) -> None:
    """They are in the plan: no ATen step."""
    first, second = two_groups(world)
    given, x = weights(rank, 128), ranks_values(0, (2, 128), torch.bfloat16, 1)
    found = ark_torch.explain(layers(first, second), x, *given)
    assert not found.fallbacks and len(found.exchanges) == 3, found
    assert {e.group for e in found.exchanges} == {first.group_name, second.group_name}


# ---- what ranks hear ----


def raised(call, *arguments) -> tuple[str, float]:
    """Errors of a launch come with the next one."""
    begin = time.monotonic()
    try:
        for _ in range(2):
            call(*arguments)
            torch.cuda.synchronize()
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text, time.monotonic() - begin


def check_works(world: int) -> None:
    first, second = two_groups(world)
    assert (summed(first, second)(ones(4, 5)) == (2 * world + 1) * world).all()
    torch.cuda.synchronize()
    dist.barrier()
    for group in (first, second):
        dist.destroy_process_group(group)


def a_rank_stays_away(rank: int, world: int) -> None:
    """The message names the group; afterwards both groups have failed."""
    first, second = two_groups(world, SECONDS)
    fast = summed(first, second)
    fast(ones(4, 5))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(SECONDS + 3)
    text, seconds = raised(fast, ones(4, 5))
    if rank == 0:
        assert f"rank 1 of group '{first.group_name}' has not sent in time what op" in text, text
        assert SECONDS - 0.5 < seconds < SECONDS + 3, seconds
    else:
        assert "rank" in text and "no error" not in text and seconds < SECONDS, (text, seconds)
    for group in (first, second):
        alone = summed(group, group)
        compiling, _ = raised(alone, ones(4, 5))  # seconds, where other processes compile too
        text, seconds = raised(alone, ones(4, 5))
        assert "no error" not in compiling + text and seconds < SECONDS, (compiling, text, seconds)
    check_works(world)


def the_other_order(rank: int, world: int) -> None:
    """Each rank waits for what the other sends later: at the time-out all raise."""
    first, second = two_groups(world, SECONDS)
    fast = summed(*((first, second) if rank > 0 else (second, first)))
    text, seconds = raised(fast, ones(4, 5))
    assert "rank" in text and "no error" not in text and seconds < 4 * SECONDS, (text, seconds)
    check_works(world)


def one_is_destroyed(rank: int, world: int) -> None:
    """With a launch under way that waits for another rank: it ends, of whichever group it is."""
    first, second = two_groups(world, 60)
    fast = summed(first, second)
    fast(ones(4, 5))
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.monotonic()
    if rank == 0:
        fast(ones(4, 5))
    dist.destroy_process_group(second)
    torch.cuda.synchronize()
    text, _ = raised(fast, ones(4, 5))
    assert "no error" not in text, text
    assert time.monotonic() - begin < 30
    check_works(world)


def heard_from_afar(rank: int, world: int) -> None:
    """Of a mesh whose last rank stays away, rank 0, which is in no group with it, hears through the others."""
    rows, columns = mesh_groups(rank, SECONDS)
    fast = summed(rows, columns)
    want = fast(ones(4, 5))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 3:
        time.sleep(SECONDS + 4)
    got = fast(ones(4, 5))
    torch.cuda.synchronize()
    if rank < 3:
        assert not torch.equal(got, want)
    text, seconds = raised(fast, ones(4, 5))
    assert "rank" in text and "no error" not in text and seconds < SECONDS, (text, seconds)
    check_works(world)


SAME_RANKS = [
    groups.the_same_ranks,
    groups.many_in_turn,
    groups.compiled_again,
    groups.a_group_made_anew,
    rows_of_all_kinds,
    a_captured_launch,
    other_streams,
    many_launches,
    beside_groups_of_one,
    explained,
]
FAULTS = [a_rank_stays_away, the_other_order, one_is_destroyed]
MESH = [*groups.OF_FOUR, heard_from_afar]
CASES = {"same_ranks": (SAME_RANKS, 2), "faults": (FAULTS, 2), "mesh": (MESH, 4)}


def run_functions(rank: int, world: int, functions: tuple) -> dict:
    ark_torch.groups.groups_on_gpus = ark_torch.groups.MOST_GROUPS  # of this process
    return run_each(functions, rank, world)


@functools.cache
def results(functions: tuple, world: int) -> list[dict]:
    """Of one set of processes."""
    return values(run_gpus(functools.partial(run_functions, functions=functions), world, seconds=60))


@pytest.mark.parametrize(
    ("case", "function"), [pytest.param(c, f, id=f"{c}-{f.__name__}") for c in CASES for f in CASES[c][0]]
)
def test_groups(case, function):
    functions, world = CASES[case]
    if ROOM < world:
        pytest.skip(f"needs {world} GPUs, or TESTS_RANKS_PER_GPU")
    of_ranks = results(tuple(shared_run(functions, function)), world)
    values({rank: of_rank[function.__name__] for rank, of_rank in enumerate(of_ranks)})
