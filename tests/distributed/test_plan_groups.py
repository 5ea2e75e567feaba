"""Collectives of several process groups in one plan: groups of the same ranks, parts of the whole, a mesh of tensor and
data parallel ranks; forward and backward, against the groups' own calls. Ranks are processes; `strict` makes an ATen
step an error."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import ark_torch
from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import check_equal, compiled, gathered, ranks_values
from tests.distributed.test_plan_faults import SECONDS, SLACK, SOON, raised
from tests.support.distributed_worker import own_backend, own_device, run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def group_of(ranks: list[int], seconds: float = 30) -> dist.ProcessGroup:
    return dist.new_group(ranks, backend=own_backend(), timeout=timedelta(seconds=seconds))


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes, device=own_device())


def own_part(rank: int, parts: list[list[int]], seconds: float = 30) -> dist.ProcessGroup:
    """All ranks make all groups; the one that this rank is in."""
    return next(g for g, ranks in [(group_of(ranks, seconds), ranks) for ranks in parts] if rank in ranks)


def mesh_groups(rank: int, seconds: float = 30) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Rows and columns of 2 x 2 ranks."""
    return own_part(rank, [[0, 1], [2, 3]], seconds), own_part(rank, [[0, 2], [1, 3]], seconds)


def the_same_ranks(rank: int, world: int) -> None:
    first, second = group_of(list(range(world))), group_of(list(range(world)))

    def function(x):
        y = funcol.all_reduce(x * 2, "sum", first) + 1
        z = funcol.all_reduce(y, "max", second)
        both = funcol.all_reduce(z, "sum", second) * funcol.all_reduce(z, "min", first)
        return both, gathered(both - 1, first), funcol.reduce_scatter_tensor(gathered(y, second), "avg", 0, first)

    check_equal(function, ranks_values(rank, (6, 5), torch.float32, 1).round(), launches=6)
    same_value = lambda x: (funcol.all_reduce(x * 3, "sum", first), funcol.all_reduce(x * 3, "sum", second))
    check_equal(same_value, ranks_values(rank, (7, 3), torch.float32, 2))
    unread = lambda x: (funcol.all_reduce(x, "sum", first), funcol.broadcast(x * 2, 0, second) * 0 + x)
    check_equal(unread, ranks_values(rank, (7, 3), torch.int32, 2))


def many_in_turn(rank: int, world: int) -> None:
    """Boxes are taken over within each group."""
    first, second = group_of(list(range(world))), group_of(list(range(world)))

    def function(x, w):
        for layer in range(12):
            x = funcol.all_reduce(torch.remainder(x * 3, 17.0) @ w, "sum", (first, second)[layer % 2]) - x
        return x

    x, w = (ranks_values(rank, (160, 160), torch.float32, seed).round() for seed in (1, 2))
    check_equal(function, x, w, launches=2)
    explained = ark_torch.explain(function, x, w)
    assert len(explained.exchanges) == 12
    assert {e.group for e in explained.exchanges} == {first.group_name, second.group_name}
    assert explained.box_bytes <= 8 * 2 * world * 4 * x.numel()


def a_part_beside_the_whole(rank: int, world: int) -> None:
    half = own_part(rank, [list(range(world // 2)), list(range(world // 2, world))])

    def function(x, w):
        y = funcol.all_reduce(x @ w, "sum", half)
        z = funcol.all_reduce(torch.relu(y), "sum", dist.group.WORLD)
        return gathered(z, half) - 1, funcol.reduce_scatter_tensor(y, "sum", 0, dist.group.WORLD)

    x, w = ranks_values(rank, (8, 6), torch.float32, 1), ranks_values(0, (6, 5), torch.float32, 2)
    check_equal(function, x.round(), w.round())


def overlapping(rank: int, world: int) -> None:
    """Rank 1 is in both groups, others in one; the graphs of ranks differ."""
    first, second = group_of([0, 1]), group_of([1, *range(2, world)])

    def function(x):
        if rank in (0, 1):
            x = funcol.all_reduce(x * 2, "sum", first)
        if rank >= 1:
            x = funcol.all_reduce(x + 1, "sum", second)
        return x

    check_equal(function, ranks_values(rank, (4, 5), torch.float32, 1), launches=6)
    dist.barrier()


def programs(rank: int, world: int) -> None:
    """Random ones, over rows, columns, the whole and a second whole."""
    rows, columns = mesh_groups(rank)
    groups = [rows, columns, dist.group.WORLD, group_of(list(range(world)))]

    kinds = ["sum", "max", "avg", "gather", "scatter", "broadcast", "mix", "product"]

    def program(seed: int) -> Callable:
        choice = random.Random(seed)
        steps = [
            (choice.choice(kinds), choice.choice(groups), choice.randint(1, 3), choice.randrange(2))
            for _ in range(choice.randint(3, 9))
        ]

        def function(x, y):
            known = [x, x, y]
            for kind, group, back, source in steps:
                of = known[-back]
                if kind == "gather":
                    made = gathered(of, group).narrow(0, of.shape[0] // 2, of.shape[0])
                elif kind == "scatter":
                    made = funcol.reduce_scatter_tensor(torch.cat([of] * group.size()), "sum", 0, group)
                elif kind == "broadcast":
                    made = funcol.broadcast(of, source, group)
                elif kind == "mix":
                    made = known[-1] - 2 * known[-3]
                elif kind == "product":
                    made = torch.remainder(of @ known[0].t(), 5.0) @ known[-1]
                else:
                    made = funcol.all_reduce(of, kind, group)
                known.append(torch.remainder(made, 11.0))
            return tuple(known[-3:])

        return function

    whole = lambda sizes, seed: (ranks_values(rank, sizes, torch.float32, seed) * 3).round()
    for seed in range(12 if own_device() == "cpu" else 4):  # a kernel each
        sizes = (8, random.Random(seed).randint(1, 40))
        check_equal(program(seed), whole(sizes, seed), whole(sizes, seed + 50), launches=2)


class Summed(torch.autograd.Function):
    """The sum over tensor parallel ranks; its gradient is each rank's own."""

    @staticmethod
    def forward(ctx, x, group):
        return funcol.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Used(torch.autograd.Function):
    """A value that ranks share; its gradients are joined by `op`: summed where tensor parallel ranks read it, averaged
    where it is a parameter of data parallel ones."""

    @staticmethod
    def forward(ctx, x, op, group):
        ctx.op, ctx.group = op, group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_reduce(gradient, ctx.op, ctx.group), None, None


class MeshMlp(nn.Module):
    """Layers of a column-wise and a row-wise product, over `tensor`; gradients averaged over `data`."""

    def __init__(self, weights: list, tensor, data):
        super().__init__()
        share = lambda i, w: w.chunk(tensor.size(), dim=i % 2)[tensor.rank()].clone()
        self.weights = nn.ParameterList(share(i, w) for i, w in enumerate(weights))
        self.tensor, self.data = tensor, data

    def forward(self, x):
        for into, out in zip(self.weights[::2], self.weights[1::2]):
            into, out = Used.apply(into, "avg", self.data), Used.apply(out, "avg", self.data)
            y = torch.tanh(Used.apply(x, "sum", self.tensor) @ into.t())
            x = x + Summed.apply(y @ out.t(), self.tensor)
        return x


def tensor_and_data_parallel(rank: int, world: int) -> None:
    """Against a single process with the whole batch."""
    mesh = init_device_mesh(own_device(), (2, 2), mesh_dim_names=("data", "tensor"))
    tensor, data = mesh.get_group("tensor"), mesh.get_group("data")
    whole = [ranks_values(0, (16, 16), torch.float32, i) / 4 for i in range(4)]
    model = MeshMlp(whole, tensor, data)
    torch._dynamo.reset()
    with ark_torch.records.recording() as records:
        fast = torch.compile(model, backend="ark", fullgraph=True, options={"strict": True})
        alone = [w.clone().requires_grad_() for w in whole]
        for step in range(3):
            batch = ranks_values(0, (8, 16), torch.float32, 100 + step)
            fast(batch.chunk(2)[data.rank()]).square().mean().backward()
            x = batch
            for into, out in zip(alone[::2], alone[1::2]):
                x = x + torch.tanh(x @ into.t()) @ out.t()
            x.square().mean().backward()
            for i, (own, w) in enumerate(zip(model.weights, alone)):
                torch.testing.assert_close(own.grad, w.grad.chunk(2, dim=i % 2)[tensor.rank()])
                with torch.no_grad():
                    own -= 0.1 * own.grad
                    w -= 0.1 * w.grad
                own.grad = w.grad = None
    assert not any(record.fallbacks for record in records)


def sharded_over_a_mesh(rank: int, world: int) -> None:
    """DTensors on both dimensions of a mesh, redistributed within the graph."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh(own_device(), (2, 2), mesh_dim_names=("data", "tensor"))
    x, w = ranks_values(0, (8, 12), torch.float32, 1), ranks_values(0, (12, 6), torch.float32, 2)
    rows = x.chunk(2)[mesh.get_local_rank("data")].chunk(2, dim=1)[mesh.get_local_rank("tensor")].contiguous()
    shard = w.chunk(2)[mesh.get_local_rank("tensor")].contiguous()

    def function(rows, shard):
        a = DTensor.from_local(rows, mesh, [Shard(0), Shard(1)])
        b = DTensor.from_local(shard, mesh, [Replicate(), Shard(0)])
        y = (a @ b).redistribute(mesh, [Shard(0), Replicate()])  # a sum over `tensor`
        whole = y.redistribute(mesh, [Replicate(), Replicate()])  # gathered over `data`
        return whole.to_local(grad_placements=[Partial(), Replicate()])

    fast = compiled(function)
    for given in (rows, rows * 2):
        given = given.clone().requires_grad_()
        got = fast(given, shard)
        torch.testing.assert_close(got, function(given, shard))
        (gradient,) = torch.autograd.grad(got.square().sum(), given)
        (want,) = torch.autograd.grad(function(given, shard).square().sum(), given)
        torch.testing.assert_close(gradient, want)


# ---- what ranks hear ----


def summed(first, second) -> Callable:
    return compiled(lambda x: funcol.all_reduce(funcol.all_reduce(x * 2, "sum", first) + 1, "sum", second))


def the_other_order(rank: int, world: int) -> None:
    """Each rank waits for what the other sends later: at the time-out both raise."""
    first, second = group_of(list(range(world)), SECONDS), group_of(list(range(world)), SECONDS)
    order = (first, second) if rank > 0 else (second, first)
    text, seconds = raised(summed(*order), ones(4, 5))
    assert "rank" in text and "no error" not in text and seconds < 2 * SECONDS + SLACK, (text, seconds)
    for group in (first, second):
        text, seconds = raised(summed(group, group), ones(4, 5))
        assert "failed: " in text and seconds < SLACK, text
    dist.barrier()


def plans_differ(rank: int, world: int) -> None:
    """Rank 3 sends more in the rows: its row sees the difference, the others hear that theirs cannot run."""
    rows, columns = mesh_groups(rank)
    functions = [
        lambda x: funcol.all_reduce(funcol.all_reduce(x * 2, "sum", rows), "sum", columns),
        lambda x: funcol.all_reduce(gathered(funcol.all_reduce(x * 2, "sum", rows), rows)[:4], "sum", columns),
    ]
    text, seconds = raised(compiled(functions[rank == 3]), ones(4, 5))
    assert "ranks disagree: " in text or rank < 2, text
    assert "no error" not in text and seconds < SOON, (text, seconds)
    dist.barrier()


def a_rank_refuses(rank: int, world: int) -> None:
    """Ranks of both of its groups hear of it at once, and ranks of theirs from them."""
    rows, columns = mesh_groups(rank)
    fast, callables = summed(rows, columns), []
    with ark_torch.backend.record_callables(callables):
        fast(ones(4, 5))
    dist.barrier()
    text, seconds = raised(callables[0], [ones(4, 5 + (rank == 3))])
    assert "no error" not in text and seconds < SOON, (text, seconds)
    assert "expected f32" in text, text
    dist.barrier()


def a_rank_leaves_one(rank: int, world: int) -> None:
    rows, columns = mesh_groups(rank)
    fast = summed(rows, columns)
    fast(ones(4, 5))
    dist.barrier()
    if rank == 3:
        dist.destroy_process_group(columns)
    text, seconds = raised(fast, ones(4, 5))
    assert "no error" not in text and seconds < SOON, (text, seconds)
    assert "which is not there" in text or rank < 3, text
    dist.barrier()


def a_group_made_anew(rank: int, world: int) -> None:
    """Launches are counted for the groups together: one that is new begins with new memory in the other too."""
    first = group_of(list(range(world)))
    for launches in (1, 2):
        second = group_of(list(range(world)))
        fast = summed(first, second)
        for _ in range(launches):
            assert (fast(ones(4, 5)) == (2 * world + 1) * world).all()
        dist.destroy_process_group(second)


def time_outs_differ(rank: int, world: int) -> None:
    """Who may come late in one group is waited for, whatever the time-out of the other."""
    short, long = group_of([0, 1], SECONDS), group_of([1, *range(2, world)])

    def function(x):
        if rank in (0, 1):
            x = funcol.all_reduce(x, "sum", short)
        if rank >= 1:
            x = funcol.all_reduce(x + 1, "sum", long)
        return x

    fast = compiled(function)
    want = fast(ones(4, 5))
    dist.barrier()
    if rank == 2:
        time.sleep(SECONDS + 1)
    assert (fast(ones(4, 5)) == want).all()
    dist.barrier()


def compiled_again(rank: int, world: int) -> None:
    """A rank finds the memory of all groups that the others still use."""
    first, second = group_of(list(range(world))), group_of(list(range(world)))
    fast = summed(first, second)
    for launch in range(5):
        if rank == 1 and launch in (1, 3):
            fast = summed(first, second)
        assert (fast(ones(4, 5) * launch) == (2 * launch * world + 1) * world).all()


OF_ANY = [the_same_ranks, many_in_turn, compiled_again, a_group_made_anew, the_other_order]
OF_FOUR = [a_part_beside_the_whole, overlapping, programs, tensor_and_data_parallel, sharded_over_a_mesh]
FAULTS_OF_FOUR = [time_outs_differ, plans_differ, a_rank_refuses, a_rank_leaves_one]


def of_any(rank: int, world: int) -> dict:
    return run_each(OF_ANY, rank, world)


def of_four(rank: int, world: int) -> dict:
    return run_each(OF_FOUR, rank, world)


def faults_of_four(rank: int, world: int) -> dict:
    return run_each(FAULTS_OF_FOUR, rank, world)


@pytest.mark.parametrize("function, world", [(of_any, 2), (of_any, 3), (of_four, 4), (faults_of_four, 4)])
def test_groups(function, world):
    for of_rank in values(run_ranks(function, world, seconds=30)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
