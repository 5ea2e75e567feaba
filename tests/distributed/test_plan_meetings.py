"""Uneven all-to-alls in plans where ranks do not come with plans that fit: splits that change between other ranks,
ranks that compile anew, or call the group themselves, or disagree. Results are gloo's, errors the group's own."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch
from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import ranks_values
from tests.distributed.test_plan_uneven import random_rows, splits_of
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def there_and_back(x: torch.Tensor, out: list[int], sent: list[int], group=None) -> tuple[torch.Tensor, torch.Tensor]:
    group = group or dist.group.WORLD
    come = funcol.all_to_all_single(x * 2 + 1, out, sent, group)
    return come, funcol.all_to_all_single(torch.relu(come) - 3, sent, out, group) + x


class Ways:
    """To call it: by a plan for these splits alone, by plans of one function, whose splits become symbols where they
    change, or without any."""

    def __init__(self, function=there_and_back, **options):
        torch._dynamo.reset()
        self.function, self.options, self.known = function, options, {}
        self.any_splits = torch.compile(lambda x, out, sent: function(x, out, sent), backend="ark")
        self.eager = function

    def of_splits(self, x, out, sent):
        key = (tuple(out), tuple(sent))
        if key not in self.known:
            function = self.function
            graph = lambda x, out=list(out), sent=list(sent): function(x, out, sent)
            code = graph.__code__.replace(co_name=f"of_splits_{len(self.known)}")
            graph = type(graph)(code, graph.__globals__, code.co_name, graph.__defaults__, graph.__closure__)
            self.known[key] = torch.compile(graph, backend="ark", fullgraph=True, options=self.options)
        return self.known[key](x)


def check_round(way, gloo, rows: list[list[int]], rank: int, number: int, function=there_and_back) -> None:
    out, sent = splits_of(rows, rank)
    x = ranks_values(rank, (sum(sent), 5), torch.float32, number).round()
    want, got = function(x, out, sent, gloo), way(x, out, sent)
    for w, g in zip(want, got):
        assert torch.equal(w, g), f"round {number}, rows {rows}: {g} instead of {w}"


def run_time_fallbacks() -> int:
    return sum(sum(graph.runtime_fallbacks.values()) for graph in ark_torch.records.REGISTRY.graphs)


def others_change(rank: int, world: int) -> None:
    """Rank 0 sends and receives what it did before, ranks 1 and 2 do not; every launch is a plan's (`strict`)."""
    gloo, ways = dist.new_group(backend="gloo"), Ways(strict=True)
    rows = [[[1, 2, 3], [4, a, b], [0, c, d]] for a, b, c, d in ((1, 2, 3, 4), (5, 0, 2, 0), (0, 9, 40, 1))]
    for number, which in enumerate((0, 1, 0, 2, 1, 1, 0, 2)):
        check_round(ways.of_splits, gloo, rows[which], rank, number)
    assert len(ways.known) == (1 if rank == 0 else 3) and run_time_fallbacks() == 0


def others_compile(rank: int, world: int) -> None:
    """The same of one function: where splits have changed they are symbols, which no plan takes. Rank 0 follows."""
    gloo, ways = dist.new_group(backend="gloo"), Ways()
    rows = [[[1, 2, 3], [4, a, b], [0, c, d]] for a, b, c, d in ((1, 2, 3, 4), (5, 6, 2, 7), (8, 9, 40, 3))]
    for number, which in enumerate((0, 0, 1, 2, 0, 1)):
        check_round(ways.any_splits, gloo, rows[which], rank, number)
        assert rank != 0 or (run_time_fallbacks() > 0) == (number >= 2)


def one_changes_first(rank: int, world: int) -> None:
    """Rank 2 has nothing to send or to get, then something."""
    gloo, ways = dist.new_group(backend="gloo"), Ways()
    for number, more in enumerate((0, 0, 3, 0, 7)):
        check_round(ways.of_splits, gloo, [[2, 3, 0], [1, 4, more], [0, more, 0]], rank, number)


def even_on_some(rank: int, world: int) -> None:
    """Rank 0 cannot know that others have uneven splits: its plan is another one."""
    gloo, ways = dist.new_group(backend="gloo"), Ways()
    rows = [[2 if 0 in (a, b) else 2 + a + b for b in range(world)] for a in range(world)]
    twos = [[2] * world for _ in range(world)]
    for number in range(3):
        check_round(ways.of_splits, gloo, rows, rank, number)
    assert run_time_fallbacks() == 3
    check_round(Ways().of_splits, gloo, twos, rank, 3)


def uneven_later(rank: int, world: int) -> None:
    """Splits are even for all at first. Then others have uneven ones, and rank 0 the plan that it had; and even ones
    again, for which all have plans."""
    gloo, ways = dist.new_group(backend="gloo"), Ways()
    twos = [[2] * world for _ in range(world)]
    rows = [[2 if 0 in (a, b) else 2 + a + b for b in range(world)] for a in range(world)]
    for number, (which, fall_backs) in enumerate(((twos, 0), (twos, 0), (rows, 1), (twos, 1), (rows, 2))):
        check_round(ways.of_splits, gloo, which, rank, number)
        assert run_time_fallbacks() == fall_backs


def random_ways(rank: int, world: int) -> None:
    """Every rank chooses its way anew for every launch, and often the splits are those of an earlier one."""
    gloo, ways = dist.new_group(backend="gloo"), Ways()
    choice, own = random.Random(21), random.Random(100 + rank)
    pool = [random_rows(choice, world) for _ in range(12)]
    pool.append([[2 + r, 0, 1] if r != 1 else [0] * 3 for r in range(world)])  # rank 1 sends nothing
    launched = 0
    for number in range(50):
        fixed = number % 5 < 2
        which = [ways.of_splits] if fixed else [ways.of_splits, ways.of_splits, ways.any_splits, ways.eager]
        before = run_time_fallbacks()
        check_round(own.choice(which), gloo, choice.choice(pool), rank, number)
        launched += fixed and run_time_fallbacks() == before
    assert launched == 20  # all of those in which every rank has a plan


def random_splits(rank: int, world: int) -> None:
    """50 rounds of splits that none had before, in one function: Dynamo gives up to compile it at some point."""
    gloo, ways, choice = dist.new_group(backend="gloo"), Ways(), random.Random(22)
    for number in range(50):
        check_round(ways.any_splits, gloo, random_rows(choice, world), rank, number)


def raised(function, *arguments) -> str:
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def wrong_splits(rank: int, world: int) -> dict[str, str]:
    """Rank 1 sends rank 0 more than it expects, or nothing where something is expected; at first or later, when rank 0
    has its plan."""
    texts = {}
    right = [[1 + (a + b) % 4 for b in range(world)] for a in range(world)]
    for name, wrong, before in (("more", 9, 0), ("none", 0, 0), ("later", 9, 2)):
        group = dist.new_group(timeout=timedelta(seconds=20))
        ways = Ways(lambda x, out, sent, group=group: funcol.all_to_all_single(x, out, sent, group) + 1)
        out, sent = splits_of(right, rank)
        for _ in range(before):
            assert raised(ways.of_splits, torch.ones(sum(sent), 5), out, sent) == "nothing"
        if rank == 1:
            sent = [wrong, *sent[1:]]
        texts[name] = raised(ways.of_splits, torch.ones(sum(sent), 5), out, sent)
    return texts


def not_a_sum(rank: int, world: int) -> str:
    """Rank 0's splits are of another number of rows than it has."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    to = [1 + (rank + r) % 3 for r in range(world)]
    ways = Ways(lambda x, out, sent: funcol.all_to_all_single(x, out, sent, group) + 1)
    return raised(ways.of_splits, torch.ones(sum(to) + (rank == 0), 2), to, to)


def absent(rank: int, world: int) -> str:
    """Rank 1 never comes."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    out, sent = splits_of([[1, 2, 3], [4, 5, 6], [0, 3, 2]], rank)
    ways = Ways(lambda x, out, sent: funcol.all_to_all_single(x, out, sent, group) + 1)
    return raised(ways.of_splits, torch.ones(sum(sent), 2), out, sent) if rank != 1 else "nothing"


def cases(rank: int, world: int) -> dict:
    changes = [others_change, others_compile, one_changes_first, even_on_some, uneven_later]
    return run_each([*changes, random_ways, random_splits], rank, world)


def bad_cases(rank: int, world: int) -> dict:
    return run_each([wrong_splits, not_a_sum, absent], rank, world)


def test_ranks_with_other_plans():
    for of_rank in values(run_ranks(cases, 3, seconds=30)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"


def test_splits_that_do_not_fit():
    for rank, of_rank in enumerate(values(run_ranks(bad_cases, 3, seconds=60))):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
        for name, text in of_rank["wrong_splits"][1].items():
            assert f"rank 1 sends {0 if name == 'none' else 180} bytes to rank 0, which expects 40" in text, text
        assert "sum to 7" in of_rank["not_a_sum"][1] or "rank 0 refused" in of_rank["not_a_sum"][1]
        assert rank == 1 or "rank 1" in of_rank["absent"][1]
