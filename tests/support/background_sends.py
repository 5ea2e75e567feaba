"""Sends beside the workers' tiles (csrc/device/loop/background.cuh), as cases of the form f(rank, world): what is
gathered for large products, in types of 2 and 4 bytes, again and again, late ranks among them, captured; parts."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.distributed.test_plan_collectives import compiled, exchanges, gathered
from tests.support.scattered_products import scattered, whole_numbers

LEAST_BYTES = 10 << 20  # to other ranks, of one exchange


def layers(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [rows / world, k], a [n, k], b [n, k]: gathered as it is; computed, gathered and returned too."""
    first = F.linear(gathered(x, dist.group.WORLD), a)
    whole = gathered(F.relu(x) - 1, dist.group.WORLD)
    return first, F.linear(whole, b), whole


def inputs(rank: int, world: int, launch: int, dtype: torch.dtype) -> list[Tensor]:
    k, n = 1024, 1024
    bytes_of_row = (world - 1) * k * dtype.itemsize
    rows = 256 * math.ceil(LEAST_BYTES / bytes_of_row / 256)
    return whole_numbers(rank, launch, [(rows, k), (n, k), (n, k)], dtype)


def in_background(found: list[dict]) -> int:
    return sum(exchange["background"] for exchange in found)


def gathered_in_background(rank: int, world: int) -> None:
    """The bits of eager. Ranks begin at other times; launches take turns with boxes."""
    for dtype in (torch.bfloat16, torch.float32):

        def launches(dtype=dtype):
            fast = compiled(layers)
            for launch in range(6):
                given = inputs(rank, world, launch, dtype)
                if launch % world == rank:
                    time.sleep(0.05)
                for i, (got, want) in enumerate(zip(fast(*given), layers(*given), strict=True)):
                    assert torch.equal(got, want), f"{dtype}, launch {launch}, result {i}: {got} instead of {want}"

        found, _ = exchanges(launches)
        assert in_background(found) == 2, found


def a_captured_launch(rank: int, world: int) -> None:
    """Replayed, with other values."""
    given = inputs(rank, world, 0, torch.bfloat16)
    fast = compiled(layers)
    fast(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = fast(*given)
    for launch in range(1, 5):
        for x, value in zip(given, inputs(rank, world, launch, torch.bfloat16), strict=True):
            x.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        for i, (got, want) in enumerate(zip(results, layers(*given), strict=True)):
            assert torch.equal(got, want), f"replay {launch}, result {i}: {got} instead of {want}"


def sent_parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x [rows, k], w [n, k]: a product that is returned and whose rows are sent."""
    y = F.linear(x, w)
    return scattered(y), y


def parts_in_background(rank: int, world: int) -> None:
    """Each rank gets another part, as the product has it."""
    rows = 256 * world * math.ceil(LEAST_BYTES * world / (world - 1) / (256 * world * 2048 * 2))

    def launches():
        fast = compiled(sent_parts)
        for launch in range(4):
            given = whole_numbers(rank, launch, [(rows, 64), (2048, 64)], torch.bfloat16)
            for i, (got, want) in enumerate(zip(fast(*given), sent_parts(*given), strict=True)):
                assert torch.equal(got, want), f"launch {launch}, result {i}: {got} instead of {want}"

    found, _ = exchanges(launches)
    assert in_background(found) == 1, found


BACKGROUND = [gathered_in_background, a_captured_launch, parts_in_background]
