"""Uneven all-to-alls and other collectives in one plan: ranks meet before each launch of such a graph, whatever their
own splits are. Results are gloo's; who has no plan that fits is followed, call by call."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch
from tests.conftest import has_extension
from tests.distributed.test_plan_meetings import Ways, check_round, raised, run_time_fallbacks
from tests.distributed.test_plan_uneven import random_rows, splits_of
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def among_others(x: torch.Tensor, out: list[int], sent: list[int], group=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of whole numbers, so that sums are exact."""
    group = group or dist.group.WORLD
    total = funcol.all_reduce(x.sum(0), "sum", group)
    come = funcol.all_to_all_single(x - total, out, sent, group)
    most = funcol.all_reduce(come.sum(0) * 2, "max", group)
    back = funcol.all_to_all_single(torch.remainder(come + most, 8), sent, out, group)
    return most, back + funcol.all_gather_tensor(total, 0, group)[:5]


def check_rounds(rank: int, rounds: list[list[list[int]]], **options) -> Ways:
    gloo, ways = dist.new_group(backend="gloo"), Ways(among_others, **options)
    for number, rows in enumerate(rounds):
        check_round(ways.of_splits, gloo, rows, rank, number, among_others)
    return ways


def native(rank: int, world: int) -> None:
    """Splits that change from call to call, on all ranks or on some; every launch is a plan's (`strict`)."""
    choice = random.Random(31)
    pool = [random_rows(choice, world) for _ in range(3)]
    some = [[[1, 2], [4, 7]], [[1, 2], [4, 0]]] if world == 2 else [[[1, 2, 3], [4, a, 9], [0, 7, a]] for a in (5, 0)]
    ways = check_rounds(rank, [pool[i] for i in (0, 1, 0, 2, 2, 1)] + [some[i] for i in (0, 1, 1, 0)], strict=True)
    assert run_time_fallbacks() == 0 and len(ways.known) > 3


def no_rows(rank: int, world: int) -> None:
    """The last rank sends nothing, then gets nothing either, then nobody sends anything."""
    rows = [[1 + r, *range(2, world + 1)] for r in range(world - 1)]
    silent, alone, nobody = [*rows, [0] * world], [[*r[:-1], 0] for r in rows] + [[0] * world], [[0] * world] * world
    check_rounds(rank, [silent, alone, silent, nobody, alone, silent], strict=True)
    assert run_time_fallbacks() == 0


def even_on_some(rank: int, world: int) -> None:
    """Splits are even for all, then on rank 0 alone, which has the plan that it had."""
    even = [[2] * world for _ in range(world)]
    on_some = [[2 if 0 in (a, b) else 1 + a + b for b in range(world)] for a in range(world)]
    check_rounds(rank, [even, on_some, even, on_some, even])
    assert run_time_fallbacks() == 2


def without_numbers(rank: int, world: int) -> None:
    """Where splits have changed they are symbols of one function: the all-to-alls are ATen steps, the other collectives
    stay in plans. Rank 0 has plans for all of them, and the ranks follow each other."""
    gloo, ways = dist.new_group(backend="gloo"), Ways(among_others)
    choice = random.Random(32)
    pool = [random_rows(choice, world) for _ in range(6)]
    for number, rows in enumerate((*pool, *pool)):
        way = ways.of_splits if rank == 0 else ways.any_splits
        check_round(way, gloo, rows, rank, number, among_others)
    if rank > 0:
        found = " ".join(ark_torch.report().fallbacks)
        assert "uneven splits of sizes that are symbols (native: splits that are numbers" in found, found


def symbols_on_all(rank: int, world: int) -> None:
    """Splits are symbols on every rank: all launch the plans of what stands between the all-to-alls."""
    gloo = dist.new_group(backend="gloo")
    torch._dynamo.reset()
    way = torch.compile(lambda x, out, sent: among_others(x, out, sent), backend="ark", dynamic=True)
    for number in range(4):
        rows = [[2 + number + a * world + b for b in range(world)] for a in range(world)]
        check_round(way, gloo, rows, rank, number, among_others)
    graph = ark_torch.records.REGISTRY.graphs[-1]
    assert sum(graph.fallbacks.values()) == 4 and not graph.runtime_fallbacks, graph  # with their waits
    native = [node["op"] for segment in graph.segments for node in segment.lowered.graph["nodes"]]
    assert len(graph.segments) == 3 and native.count("exchange") == 3, native


def random_ways(rank: int, world: int) -> None:
    """Every rank chooses its way anew for every launch."""
    gloo, ways = dist.new_group(backend="gloo"), Ways(among_others)
    choice, own = random.Random(33), random.Random(100 + rank)
    pool = [random_rows(choice, world) for _ in range(8)]
    pool.append([[2] * world for _ in range(world)])
    for number in range(40):
        fixed = number % 5 < 2
        way = ways.of_splits if fixed else own.choice([ways.of_splits, ways.any_splits, ways.eager])
        check_round(way, gloo, choice.choice(pool), rank, number, among_others)


def in_one_of_two_groups(rank: int, world: int) -> None:
    """Collectives of another group in a graph with an all-to-all are ATen steps between the plans' launches."""
    second, gloo = dist.new_group(), dist.new_group(backend="gloo")

    def function(x, out, sent, group=None):
        first, other = group or dist.group.WORLD, group or second
        total = funcol.all_reduce(x.sum(0), "sum", first)
        come = funcol.all_to_all_single(x - funcol.all_reduce(total, "max", other), out, sent, first)
        return come, funcol.all_reduce(come.sum(0), "sum", other) + funcol.all_reduce(come.sum(0), "max", first)

    ways, choice = Ways(function), random.Random(34)
    pool = [random_rows(choice, world) for _ in range(4)]
    for number in range(8):
        way = ways.any_splits if rank == 1 and number % 3 == 2 else ways.of_splits
        check_round(way, gloo, choice.choice(pool), rank, number, function)


def wrong_splits(rank: int, world: int) -> None:
    """Rank 1 sends rank 0 more than it expects, or nothing; at first, or when all have plans. A new group works."""
    right = [[1 + (a + 2 * b) % 4 for b in range(world)] for a in range(world)]
    for wrong, before in ((9, 0), (0, 0), (9, 2)):
        group = dist.new_group(timeout=timedelta(seconds=60))
        ways = Ways(lambda x, out, sent, group=group: among_others(x, out, sent, group))
        out, sent = splits_of(right, rank)
        for _ in range(before):
            assert raised(ways.of_splits, torch.ones(sum(sent), 5), out, sent) == "nothing"
        if rank == 1:
            sent = [wrong, *sent[1:]]
        text = raised(ways.of_splits, torch.ones(sum(sent), 5), out, sent)
        assert f"rank 1 sends {wrong * 20} bytes to rank 0, which expects {right[1][0] * 20}" in text, text
        check_rounds(rank, [right, right], strict=True)


CASES = [
    native,
    no_rows,
    even_on_some,
    without_numbers,
    symbols_on_all,
    random_ways,
    in_one_of_two_groups,
    wrong_splits,
]


def cases(rank: int, world: int) -> dict:
    return run_each(CASES, rank, world)


@pytest.mark.parametrize("world", [2, 3])
def test_beside(world):
    for of_rank in values(run_ranks(cases, world, seconds=60)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
