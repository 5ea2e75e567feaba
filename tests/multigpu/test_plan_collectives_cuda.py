"""Collectives inside the loop kernels of several GPUs: alone, fused and in models, against the group's own calls; in
CUDA graphs; beside the group's calls on other streams."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch
from tests.distributed import test_plan_collectives as collectives
from tests.distributed import test_plan_models as models
from tests.distributed import test_plan_uneven as uneven
from tests.distributed.test_plan_collectives import compiled, ranks_values
from tests.support.background_sends import BACKGROUND
from tests.support.distributed_worker import room_for_ranks, run_each, run_gpus, shared_run, values
from tests.support.scattered_products import SCATTERED, scattered_layers_of_all_workers

ROOM = room_for_ranks()
pytestmark = pytest.mark.skipif(ROOM < 2, reason="needs two GPUs, or TESTS_RANKS_PER_GPU")


def layer(group: dist.ProcessGroup):
    """A gated layer whose products are shared among the ranks, with residual and norm."""

    def function(x, gate, up, down):
        y = torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())
        x = x + funcol.all_reduce(y @ down.t(), "sum", group)
        return torch.nn.functional.rms_norm(x, (x.shape[-1],))

    return function


def weights(rank: int, width: int, inner: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = ((inner, width), (inner, width), (width, inner))
    return [ranks_values(rank, shape, dtype, seed) / 16 for seed, shape in enumerate(shapes)]


def rows_of_all_kinds(rank: int, world: int) -> None:
    """One row, few rows, tiles on the tensor cores: the same bits on all ranks, close to the group's own calls."""
    function = layer(dist.group.WORLD)
    for rows in (1, 6, 130):
        given = weights(rank, 256, 192, torch.bfloat16)
        fast = compiled(function)
        for launch in range(3):
            x = ranks_values(0, (rows, 256), torch.bfloat16, launch)
            want, got = function(x, *given), fast(x, *given)
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
            everybody = collectives.gathered(got, dist.group.WORLD).view(world, rows, 256)
            assert all(torch.equal(other, got) for other in everybody), f"{rows} rows, launch {launch}"


def a_captured_launch(rank: int, world: int) -> None:
    """Replays take turns with the boxes as launches do, and may follow them."""
    function, given = layer(dist.group.WORLD), weights(rank, 128, 96, torch.bfloat16)
    fast, x = compiled(function), ranks_values(0, (4, 128), torch.bfloat16, 1)
    fast(x, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = fast(x, *given)
    for turn in range(5):
        x.copy_(ranks_values(0, (4, 128), torch.bfloat16, turn))
        graph.replay()
        assert torch.equal(got, fast(x, *given)), turn
    torch.cuda.synchronize()
    dist.barrier()


def other_streams(rank: int, world: int) -> None:
    """Launches in two streams, and asynchronous calls of the group between them."""
    function, given = layer(dist.group.WORLD), weights(rank, 128, 96, torch.bfloat16)
    fast, x = compiled(function), ranks_values(0, (8, 128), torch.bfloat16, 1)
    want = fast(x, *given)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for turn in range(20):
        y = torch.full((1 << 18,), float(rank + turn), device="cuda")
        work = dist.all_reduce(y, async_op=True)
        with torch.cuda.stream(streams[turn % 2]):
            got = fast(x, *given)
        work.wait()
        torch.cuda.synchronize()
        assert torch.equal(got, want) and (y == world * turn + sum(range(world))).all()


def many_launches(rank: int, world: int) -> None:
    """Ranks that are not in step: one of them is late now and then."""
    fast = compiled(
        lambda x: funcol.all_reduce(funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + x, "max", dist.group.WORLD)
    )
    x = torch.arange(4096, device="cuda", dtype=torch.float32) + rank
    base = torch.arange(4096, device="cuda", dtype=torch.float32)
    for turn in range(300):
        if turn % 37 == 5 * rank:
            torch.cuda._sleep(2_000_000)
        got = fast(x + turn)
        if turn % 50 == 0:
            each = base + turn
            want = 2 * (world * each + sum(range(world))) + each + world - 1
            assert torch.equal(got, want), turn
    torch.cuda.synchronize()


def explained(rank: int, world: int) -> None:
    """They are in the plan: no ATen step, and the exchange is told of."""
    given = weights(rank, 128, 96, torch.bfloat16)
    found = ark_torch.explain(layer(dist.group.WORLD), ranks_values(0, (2, 128), torch.bfloat16, 1), *given)
    assert len(found.exchanges) == 1 and not found.fallbacks, found


OWN = [rows_of_all_kinds, a_captured_launch, other_streams, many_launches, explained]
MODELS = [
    models.fused,
    models.residuals,
    models.training,
    models.tensor_parallel,
    models.vocabulary_parallel,
    models.dynamic_sizes,
    models.some_ranks,
]
GROUPS = {
    "own": OWN,
    "alone": collectives.ALONE
    + ([collectives.in_two_steps] if ROOM >= collectives.lower_collective.TWO_STEP_RANKS else []),
    "models": MODELS,
    "scattered": [*SCATTERED, scattered_layers_of_all_workers],
    "background": BACKGROUND,
    "uneven": uneven.CASES,
}


def run_group(rank: int, world: int, functions: tuple) -> dict:
    return run_each(functions, rank, world)


@functools.cache
def results(functions: tuple) -> list[dict]:
    """Of one set of processes."""
    return values(run_gpus(functools.partial(run_group, functions=functions), min(ROOM, 8), seconds=60))


@pytest.mark.parametrize(
    ("group", "function"), [pytest.param(g, f, id=f"{g}-{f.__name__}") for g in GROUPS for f in GROUPS[g]]
)
def test_plan(group, function):
    of_ranks = results(tuple(shared_run(GROUPS[group], function)))
    values({rank: of_rank[function.__name__] for rank, of_rank in enumerate(of_ranks)})
