"""Collectives inside plans of models: tensor parallel layers forward and backward, DTensor, groups of some ranks, what
stays an ATen step, what `explain` says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

import ark_torch
from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import check_equal, compiled, gathered, ranks_values
from tests.support.distributed_worker import own_backend, own_device, run_each, run_ranks, values
from tests.support.explained_exchanges import EXPLAINED
from tests.support.scattered_products import SCATTERED

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


@pytest.fixture(autouse=True)
def ranks_hash_differently(monkeypatch):
    """Ranks of other tests are forked from one process and have its hashes and addresses; these are forked from two in
    turns: what depends on the order of a set differs over them."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")


class FromColumns(torch.autograd.Function):
    """Whole on every rank; its gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_reduce(gradient, "sum", dist.group.WORLD)


class ToRows(torch.autograd.Function):
    """Summed over the ranks; its gradient is whole on every rank."""

    @staticmethod
    def forward(ctx, x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ParallelMlp(nn.Module):
    """Of a whole MLP, the rank's columns of the first weight and rows of the second; residual and norm around them."""

    def __init__(self, width: int, inner: int, rank: int, world: int, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.norm = (
            nn.Linear(width, inner),
            nn.Linear(inner, width, bias=False),
            nn.LayerNorm(width),
        )
        part = slice(rank * inner // world, (rank + 1) * inner // world)
        self.up.weight = nn.Parameter(self.up.weight[part].detach().clone())
        self.up.bias = nn.Parameter(self.up.bias[part].detach().clone())
        self.down.weight = nn.Parameter(self.down.weight[:, part].detach().clone())

    def forward(self, x):
        y = torch.nn.functional.gelu(self.up(FromColumns.apply(x)))
        return self.norm(x + ToRows.apply(self.down(y)))


def fused(rank: int, world: int) -> None:
    """What reads a sum, and what computes what is sent, shares its op."""
    x, w = ranks_values(rank, (24, 48), torch.float32, 1), ranks_values(rank, (48, 64), torch.float32, 2)

    def function(x, w):
        y = funcol.all_reduce(torch.relu(x @ w), "sum", dist.group.WORLD)
        return torch.softmax(y, -1), y.sum(0)

    fast = compiled(function)
    for launch in range(3):
        for want, got in zip(function(x + launch, w), fast(x + launch, w)):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def residuals(rank: int, world: int) -> None:
    """Gated layers of few rows and of many with a residual through all of them: the bits are those of other ranks."""
    cases = ((torch.float32, 1, 9, 1e-5), (torch.bfloat16, 4, 6, 4e-2), (torch.bfloat16, 24, 3, 2e-2))
    for dtype, rows, layers, tolerance in cases:
        x = ranks_values(0, (rows, 64), dtype, 1)
        scale = torch.ones(64, dtype=dtype, device=own_device())
        up, gate = (ranks_values(rank, (48, 64), dtype, seed) / 8 for seed in (2, 3))
        down = ranks_values(rank, (64, 48), dtype, 4) / 8

        def function(x, scale, up, gate, down, layers=layers):
            for _ in range(layers):
                y = torch.nn.functional.rms_norm(x, (64,), scale)
                y = torch.nn.functional.silu(y @ gate.t()) * (y @ up.t())
                x = x + funcol.all_reduce(y @ down.t(), "sum", dist.group.WORLD)
            return x

        fast = compiled(function)
        for launch in range(3):
            got = fast(x + launch, scale, up, gate, down)
            want = function(x + launch, scale, up, gate, down)
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * want.abs().max().item())
            everybody = gathered(got, dist.group.WORLD).view(world, rows, 64)
            assert all(torch.equal(other, got) for other in everybody)


def training(rank: int, world: int) -> None:
    """Losses and parameters of ten steps; the whole model on one rank says the same."""
    mine = nn.Sequential(*(ParallelMlp(32, 64, rank, world, i) for i in range(3))).to(own_device())
    whole = nn.Sequential(*(ParallelMlp(32, 64, 0, 1, i) for i in range(3))).to(own_device())
    fast = torch.compile(mine, backend="ark", options={"strict": True})
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (mine, whole)]
    for step in range(10):
        x = ranks_values(0, (8, 32), torch.float32, step)
        losses = []
        for model in (fast, None):
            if model is None:
                y = whole_forward(whole, x)
            else:
                y = model(x)
            losses.append((y * x).square().mean())
            losses[-1].backward()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    part = slice(rank * 64 // world, (rank + 1) * 64 // world)
    torch.testing.assert_close(mine[0].up.weight, whole[0].up.weight[part], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(mine[2].norm.weight, whole[2].norm.weight, rtol=1e-3, atol=1e-5)


def whole_forward(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    for layer in model:
        x = layer.norm(x + layer.down(torch.nn.functional.gelu(layer.up(x))))
    return x


def tensor_parallel(rank: int, world: int) -> None:
    """DTensor's column and row parallel modules."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(own_device(), (world,))
    torch.manual_seed(3)
    whole, parallel = (
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(own_device()) for _ in range(2)
    )
    parallel.load_state_dict(whole.state_dict())
    parallelize_module(parallel, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fast = torch.compile(parallel, backend="ark", options={"strict": True})
    for step, rows in enumerate((8, 8, 5 if world == 2 else 8)):  # another number is compiled for all numbers
        x = ranks_values(0, (rows, 32), torch.float32, step)
        want, got = whole(x), fast(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        want.square().sum().backward()
        got.square().sum().backward()
        for a, b in zip(whole.parameters(), parallel.parameters()):
            torch.testing.assert_close(b.grad.full_tensor(), a.grad, rtol=1e-3, atol=1e-4)
        whole.zero_grad(), parallel.zero_grad()


def vocabulary_parallel(rank: int, world: int) -> None:
    """Plans that are not quite equal: on rank 0 the rows of the table begin at 0, rank 1 has more ops."""
    rows = 16
    table, weight = ranks_values(rank, (rows, 48), torch.float32, 1), ranks_values(0, (48, 8), torch.float32, 2)

    def function(ids, table, weight):
        inside = ids - rank * rows
        known = (inside >= 0) & (inside < rows)
        looked_up = table[torch.where(known, inside, 0)] * known[:, None]
        y = funcol.all_reduce(looked_up, "sum", dist.group.WORLD)
        if rank == 1:  # ops of this rank alone, before the next exchange
            y = y + torch.softmax(y @ y.t(), -1) @ y
        return funcol.all_reduce(y @ weight, "sum", dist.group.WORLD)

    fast = compiled(function)
    ids = torch.randint(0, world * 16, (24,), generator=torch.Generator().manual_seed(4)).to(own_device())
    for _ in range(3):
        torch.testing.assert_close(fast(ids, table, weight), function(ids, table, weight), rtol=1e-4, atol=1e-4)


def dynamic_sizes(rank: int, world: int) -> None:
    """One graph, several sizes."""

    def function(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return funcol.reduce_scatter_tensor(y, "sum", 0, dist.group.WORLD), gathered(y, dist.group.WORLD)

    torch._dynamo.reset()
    fast = torch.compile(function, backend="ark", dynamic=True, options={"strict": True})
    for rows in (2, 5, 3, 2, 5):
        x = ranks_values(rank, (rows * world, 6), torch.float32, rows)
        for want, got in zip(function(x), fast(x)):
            assert torch.equal(want, got)


def some_ranks(rank: int, world: int) -> None:
    """A group of each half; one of a rank alone is a copy."""
    halves = [list(range(0, world // 2)), list(range(world // 2, world))]
    groups = [dist.new_group(ranks, backend=own_backend()) for ranks in halves]
    mine = groups[rank >= world // 2]
    x = ranks_values(rank, (6, 5), torch.float32, 1)
    for op in ("sum", "avg", "max"):
        check_equal(lambda x, op=op: funcol.all_reduce(x, op, mine), x)
        check_equal(lambda x, op=op: funcol.reduce_scatter_tensor(x, op, 0, mine), x)
    check_equal(lambda x: gathered(x, mine), x)
    check_equal(lambda x: funcol.all_to_all_single(x, None, None, mine), x)
    check_equal(lambda x: funcol.broadcast(x, 0, mine), x)
    dist.barrier()


def outside_of_the_group(rank: int, world: int) -> None:
    """The last rank is in no group of the others and calls what they call: nothing happens to its tensor, as in eager.
    The groups go on."""
    group = dist.new_group(list(range(world - 1)), backend=own_backend())

    def function(x):
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    for call in (function, torch.compile(function, backend="ark")):
        for launch in range(3):
            x = torch.full((4, 5), float(launch), device=own_device())
            assert (call(x) == 2 * launch * (1 if rank == world - 1 else world - 1) + 1).all()
    check_equal(lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD), x)


def permuted(rank: int, world: int) -> None:
    """Each rank sends to one other and receives from one, forward and backward: an all-to-all with zeros."""
    turn = [(r + 1) % world for r in range(world)]
    function = lambda x: funcol.permute_tensor(x * 2, turn, dist.group.WORLD) + 1
    fast, x = compiled(function), ranks_values(rank, (20,), torch.float32, 1)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    for _ in range(2):
        want, got = function(a), fast(b)
        assert torch.equal(want, got)
        want.square().sum().backward(), got.square().sum().backward()
    assert torch.equal(a.grad, b.grad)


def fallbacks(function, *arguments) -> dict[str, int]:
    """Causes, from the graphs that a call compiled; the result is eager's."""
    torch._dynamo.reset()
    with ark_torch.records.recording() as records:
        got = torch.compile(function, backend="ark")(*arguments)
    assert torch.equal(got, function(*arguments))
    return {cause: n for record in records for cause, n in record.fallbacks.items()}


def through_aten(rank: int, world: int) -> None:
    """Collectives of other groups keep their waits, or sums would be read before they are there."""
    gloo, second = dist.new_group(backend="cpu:gloo"), dist.new_group(backend="cpu:ark")
    x = ranks_values(rank, (6, 5), torch.float32, 1)

    def in_gloo(x):
        return funcol.all_reduce(x * 2, "sum", gloo) + 1

    def in_two(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1
        return funcol.all_reduce(funcol.all_reduce(y, "max", dist.group.WORLD), "sum", second) + 1

    def uneven(x):
        splits = [1] * (world - 1) + [7 - world]
        receives = [splits[rank]] * world
        return funcol.all_to_all_single(x, receives, splits, dist.group.WORLD) * 2

    assert set(fallbacks(in_gloo, x)) == {"collective of a process group that is not ark's"}
    assert fallbacks(in_two, x) == {}
    both = lambda x: funcol.all_to_all_single(in_two(x.repeat(world, 1)), None, None, second)
    assert set(fallbacks(both, x)) == {"collective of a second process group in a graph with an all-to-all"}
    beside = lambda x: uneven(funcol.all_reduce(x, "sum", dist.group.WORLD))
    assert fallbacks(uneven, x) == {}
    assert fallbacks(beside, x) == {}
    dist.destroy_process_group(gloo)
    dist.destroy_process_group(second)


def rows_that_do_not_divide(rank: int, world: int) -> None:
    """ATen raises, as in eager."""
    scatter, name = torch.ops._c10d_functional.reduce_scatter_tensor, dist.group.WORLD.group_name
    function = lambda x: torch.ops._c10d_functional.wait_tensor(scatter(x, "sum", world, name))
    x = torch.ones(2 * world + 1, 3)
    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend="ark")):
        with pytest.raises(RuntimeError, match="expected an input of"):
            run(x)


def other_strides(rank: int, world: int) -> None:
    """One rank's argument has strides that its plan was not made for: a copy, no run of ATen's on this rank alone."""
    fast = compiled(lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD))
    callables = []
    with ark_torch.backend.record_callables(callables):
        fast(torch.ones(4, 6))
    x = torch.arange(24.0).reshape(6, 4).t() if rank == 1 else torch.arange(24.0).reshape(4, 6)
    (got,) = callables[0]([x])
    assert torch.equal(got, funcol.all_reduce(x * 2, "sum", dist.group.WORLD))


def an_index_error(rank: int, world: int) -> None:
    """Of its rank alone: the others have their results, and all go on."""
    fast = compiled(lambda table, i: funcol.all_reduce(table[i], "sum", dist.group.WORLD))
    table = torch.ones(5, 3)
    for place in (1, 7, 2):
        index = torch.tensor([place if rank == 1 else 0])
        if rank == 1 and place == 7:
            with pytest.raises(IndexError, match="7"):
                fast(table, index)
        else:
            got = fast(table, index)
            assert place == 7 or (got == world).all()


MODELS = [
    fused,
    residuals,
    training,
    tensor_parallel,
    vocabulary_parallel,
    dynamic_sizes,
    some_ranks,
    outside_of_the_group,
    permuted,
    through_aten,
    rows_that_do_not_divide,
    other_strides,
    an_index_error,
    *SCATTERED,
]


def models(rank: int, world: int) -> dict:
    return run_each(MODELS + EXPLAINED if world == 2 else MODELS, rank, world)


@pytest.mark.parametrize("world", [2, 4])
def test_models(world):
    for of_rank in values(run_ranks(models, world, seconds=20)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
