"""Products whose rows go to the ranks of a group, which store them in the ranks' boxes themselves
(csrc/planner/tile/send_by_batch.h), as cases of the form f(rank, world): layers, with an all-gather and a product after
them, and a step of training whose tensors are shared by rows. Fewer workers let smaller products do so."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor

import ark_torch
from tests.distributed.test_plan_collectives import compiled, exchanges, gathered, ranks_values
from tests.support.distributed_worker import own_device

FEW_WORKERS = 4


def types(world: int) -> list[torch.dtype]:
    """Four ranks on the host share a few cores."""
    few = world > 2 and own_device() == "cpu"
    return [torch.bfloat16] if few else [torch.bfloat16, torch.float32, torch.float16]


def rows_of(world: int, least: int) -> int:
    """At least so many; of each rank a multiple of 128."""
    return 128 * world * math.ceil(least / (128 * world))


def whole_numbers(rank: int, launch: int, sizes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    """-1, 0 and 1, whose sums of products are exact: their order does not show."""
    made = (ranks_values(rank, each, torch.float32, 10 * launch + i) for i, each in enumerate(sizes))
    return [x.clamp(-1, 1).round().to(dtype) for x in made]


def scattered(x: Tensor, op: str = "sum") -> Tensor:
    return funcol.reduce_scatter_tensor(x, op, 0, dist.group.WORLD)


def layers(x: Tensor, a: Tensor, b: Tensor, c: Tensor, bias: Tensor, last: Tensor) -> tuple[Tensor, ...]:
    """x [rows, k], weights [columns, k], bias [columns], last [n, columns]"""
    first = scattered(F.linear(x, a))
    mean = scattered(F.linear(x, b, bias), "avg")
    positive = scattered(F.relu(F.linear(x, c, bias)))
    whole = gathered(positive.clamp(-1, 1), dist.group.WORLD)
    return first, mean, positive, F.linear(whole, last)


def products_that_send(found: list[dict]) -> int:
    return sum(e["parts"] and e["op"].startswith(("mm", "addmm")) and "reduce_scatter" in e["op"] for e in found)


def check_layers(rank: int, rows: int, columns: int, dtype: torch.dtype, **options) -> None:
    """The bits of eager; launches take turns with memory."""
    k, n = 64, 32
    sizes = [(rows, k), *3 * [(columns, k)], (columns,), (n, columns)]

    def launches():
        fast = compiled(layers, **options)
        for launch in range(3):
            given = whole_numbers(rank, launch, sizes, dtype)
            for i, (got, want) in enumerate(zip(fast(*given), layers(*given), strict=True)):
                assert torch.equal(got, want), f"{dtype}, launch {launch}, result {i}: {got} instead of {want}"

    found, _ = exchanges(launches)
    assert products_that_send(found) == 3, found


def scattered_layers(rank: int, world: int) -> None:
    """Of few tiles, for few workers."""
    for dtype in types(world):
        check_layers(rank, rows_of(world, 512), 128, dtype, workers=FEW_WORKERS)


def scattered_layers_of_all_workers(rank: int, world: int) -> None:
    """Enough tiles for all workers of a GPU."""
    check_layers(rank, rows_of(world, 1280), 2048, torch.bfloat16)


class Scattered(torch.autograd.Function):
    """Sums of the ranks' rows; the gradient is gathered."""

    @staticmethod
    def forward(ctx, x):
        return scattered(x)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, dist.group.WORLD)


class Gathered(torch.autograd.Function):
    """The rows of all ranks; the gradient is scattered."""

    @staticmethod
    def forward(ctx, x):
        return gathered(x, dist.group.WORLD)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient)


def shared_mlp(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    """x [rows / world, width]; of the weights the rank's columns and rows, up [inner, width], down [width, inner]."""
    return Scattered.apply(F.linear(F.silu(F.linear(Gathered.apply(x), up, bias)), down))


def step(function, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def error(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def scattered_gradients(rank: int, world: int) -> None:
    """A scattered product in either direction; errors against fp64 no larger than eager's but for a rounding."""
    width, inner, rows = 128, 96, rows_of(world, 512) // world
    for dtype in types(world):
        sizes = [(rows, width), (inner, width), (inner,), (width, inner), (rows, width)]
        *inputs, gradient = (ranks_values(rank, each, dtype, seed) for seed, each in enumerate(sizes))
        inputs[1:] = [x / 8 for x in inputs[1:]]
        fast = compiled(shared_mlp, workers=FEW_WORKERS)
        with ark_torch.records.recording() as records:
            mine, again = (step(fast, inputs, gradient) for _ in range(2))
        found = [s.executable.stats()["exchanges"] for record in records for s in record.segments]
        assert [products_that_send(each) for each in found] == [1, 1], found
        eager = step(shared_mlp, inputs, gradient)
        exact = step(shared_mlp, [x.double() for x in inputs], gradient.double())
        rounding = (8 if dtype == torch.float32 else 0.25) * torch.finfo(dtype).eps
        for i, (a, b, e, x) in enumerate(zip(mine, again, eager, exact, strict=True)):
            own, allowed = error(a, x), 1.5 * error(e, x) + rounding
            assert torch.equal(a, b) and own <= allowed, f"{dtype}, {i}: error {own:.2e} of {allowed:.2e}"


SCATTERED = [scattered_layers, scattered_gradients]
