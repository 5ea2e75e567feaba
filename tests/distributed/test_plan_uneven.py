"""all_to_all_single with uneven splits inside plans, against gloo's (on GPUs the group's own): random splits, zeros,
types, groups."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import DTYPES, check_equal, compiled, ranks_values
from tests.support.distributed_worker import own_device, run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def random_rows(choice: random.Random, world: int, most: int = 9) -> list[list[int]]:
    """rows[a][b] go from rank a to rank b: some none, some many, sometimes a rank without any."""
    rows = [[choice.choice([0, 1, choice.randint(0, most)]) for _ in range(world)] for _ in range(world)]
    if choice.random() < 0.3:
        rows[choice.randrange(world)] = [0] * world
    rows[choice.randrange(world)][choice.randrange(world)] += choice.randint(1, 2 * most)
    return rows if uneven_for_all(rows) else random_rows(choice, world, most)


def uneven_for_all(rows: list[list[int]]) -> bool:
    """A rank for which splits are even has another plan."""
    return all(len({*out, *sent}) > 1 or out[0] == 0 for out, sent in (splits_of(rows, r) for r in range(len(rows))))


def splits_of(rows: list[list[int]], rank: int) -> tuple[list[int], list[int]]:
    """Those of the output, those of the input."""
    return [row[rank] for row in rows], rows[rank]


def exchanged(x: torch.Tensor, rows: list[list[int]], group: dist.ProcessGroup | None = None) -> torch.Tensor:
    group = group or dist.group.WORLD
    return funcol.all_to_all_single(x, *splits_of(rows, dist.get_rank(group)), group)


def reference_group(members: list[int] | None = None) -> dist.ProcessGroup | None:
    """gloo; on GPUs, where it has no such calls, none: the group itself."""
    return dist.new_group(members, backend="gloo") if own_device() == "cpu" else None


def check_against(function, reference, *given: torch.Tensor, launches: int = 3) -> None:
    """`function(group, *tensors)`: the plan's results are those of eager calls of `reference`, bit by bit."""
    fast = compiled(lambda *tensors: function(None, *tensors))
    for launch in range(launches):
        tensors = [t if t.dtype == torch.bool else t + launch for t in given]
        want, got = function(reference, *tensors), fast(*tensors)
        for w, g in zip(want, got) if isinstance(want, tuple) else [(want, got)]:
            assert g.dtype == w.dtype and g.shape == w.shape and torch.equal(g, w), f"launch {launch}: {g} not {w}"


def alone(rank: int, world: int) -> None:
    choice, gloo = random.Random(11), reference_group()
    for dtype in DTYPES if world < 4 else DTYPES[::3]:
        rows = random_rows(choice, world)
        sizes = (sum(rows[rank]), *[choice.randint(1, 70) for _ in range(choice.randint(0, 2))])
        x = ranks_values(rank, sizes, dtype, choice.randint(0, 99))
        check_against(lambda group, x, rows=rows: exchanged(x, rows, group), gloo, x)


def fused(rank: int, world: int) -> None:
    """What is sent is computed here, what has come is computed with, there and back again."""
    choice, gloo = random.Random(12), reference_group()
    for most in (9, 9, 9, 300):
        rows = random_rows(choice, world, most)
        back = [list(column) for column in zip(*rows)]

        def function(group, x, w, rows=rows, back=back):
            come = exchanged(x * 2 + 1, rows, group)
            there = exchanged(torch.relu(come @ w), back, group)
            return there + x.sum(-1, keepdim=True), come

        x = ranks_values(rank, (sum(rows[rank]), 16), torch.float32, 5).round()
        w = ranks_values(0, (16, 16), torch.float32, 6).round()
        check_against(function, gloo, x, w)


def many(rank: int, world: int) -> None:
    """The same value twice in other splits, a view, and large parts."""
    choice, gloo = random.Random(13), reference_group()
    rows = random_rows(choice, world, 200)
    turned = rows[1:] + rows[:1]

    def function(group, x, y):
        first = exchanged(x, rows, group)
        return first, exchanged(x, rows, group) * 2, exchanged(y.t().contiguous(), turned, group)

    x = ranks_values(rank, (sum(rows[rank]), 130), torch.float32, 1)
    y = ranks_values(rank, (33, sum(turned[rank])), torch.float32, 2)
    check_against(function, gloo, x, y)


def in_place(rank: int, world: int) -> None:
    """dist.all_to_all_single, which Dynamo writes as a functional collective and a copy."""
    rows = random_rows(random.Random(14), world)
    to_here, from_here = splits_of(rows, rank)

    def function(x):
        got = torch.empty(sum(to_here), 3, device=x.device)
        dist.all_to_all_single(got, x * 3, to_here, from_here)
        return got - 1

    check_equal(function, ranks_values(rank, (sum(from_here), 3), torch.float32, 4))


def backward(rank: int, world: int) -> None:
    rows = random_rows(random.Random(15), world)
    out, sent = splits_of(rows, rank)

    def function(x, w):
        return (funcol.all_to_all_single_autograd(x * w, out, sent, dist.group.WORLD) ** 2).sum()

    results = []
    for run in (function, compiled(function)):
        x = ranks_values(rank, (sum(sent), 4), torch.float32, 7).round().requires_grad_()
        w = torch.full((4,), 3.0, device=own_device(), requires_grad=True)
        run(x, w).backward()
        results.append((x.grad, w.grad))
    for want, got in zip(*results):
        assert torch.equal(want, got), f"{got} instead of {want}"


def in_a_group(rank: int, world: int) -> None:
    """Of some ranks, in another order of numbers than those of the world."""
    members = list(range(world))[1:] if world > 2 else [0, 1]
    group, gloo = dist.new_group(members), reference_group(members)
    if rank not in members:
        return
    rows = random_rows(random.Random(16), len(members))
    x = ranks_values(rank, (sum(rows[dist.get_rank(group)]), 6), torch.float32, 9)
    check_against(lambda other, x: exchanged(x, rows, other or group), gloo, x)


def beside_others(rank: int, world: int) -> None:
    """Other collectives of the group in the same plan, of what is computed from the parts and for them."""
    choice, gloo = random.Random(17), reference_group()
    for _ in range(3):
        rows = random_rows(choice, world)

        def function(group, x, w, rows=rows):
            all_ranks = group or dist.group.WORLD
            y = funcol.all_reduce(x.sum(0) @ w, "sum", all_ranks)
            come = exchanged(x + y, rows, group)
            most = funcol.all_reduce(come.sum(0), "max", all_ranks)
            rows_of_all = funcol.all_gather_tensor(most * (rank + 1), 0, all_ranks)
            return come * most, funcol.reduce_scatter_tensor(rows_of_all, "sum", 0, all_ranks)

        x = ranks_values(rank, (sum(rows[rank]), 16), torch.float32, 5).round()
        check_against(function, gloo, x, torch.ones(16, 16, device=own_device()))


CASES = [alone, fused, many, in_place, backward, in_a_group, beside_others]


def cases(rank: int, world: int) -> dict:
    return run_each(CASES, rank, world)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_uneven(world):
    for of_rank in values(run_ranks(cases, world, seconds=30)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
