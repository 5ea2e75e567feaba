"""Random functions with collectives of random groups, sizes and types, compiled: the values of eager with the group's
own calls (zeros of either sign are equal). Ops between the collectives are exact, so that fusion changes no value.
Ranks are late now and then. All ranks draw the same functions; which is late is a rank's own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.distributed.test_plan_collectives import compiled, ranks_values
from tests.support.distributed_worker import own_backend, own_device

DTYPES = [torch.int64, torch.int32, torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool]
Step = Callable[[torch.Tensor], torch.Tensor]


def call(name: str, x: torch.Tensor, *given) -> torch.Tensor:
    return funcol.wait_tensor(getattr(torch.ops._c10d_functional, name)(x, *given))


class Draw:
    """Functions of one argument, [rows, columns], rows a multiple of each group's size."""

    def __init__(self, seed: int, groups: list[dist.ProcessGroup]):
        self.random, self.groups = random.Random(seed), groups

    def function(self) -> tuple[Callable, tuple[int, int], torch.dtype]:
        dtype = self.random.choice(DTYPES)
        steps = self.random.choice((1, 1, 2, 3, 5))
        rows = 12 * self.random.randint(1, 4)
        columns = self.random.choice((1, 2, 7, 16, 33, 64, 200))
        groups = self.groups if self.random.random() < 0.6 else [self.random.choice(self.groups)]
        chosen = [(self.collective(dtype, groups), self.between(dtype)) for _ in range(steps)]

        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            kept = [x]
            for collective, between in chosen:
                kept.append(between(collective(kept[-1])))
            return tuple(kept[1:])

        return function, (rows, columns), dtype

    def collective(self, dtype: torch.dtype, groups: list[dist.ProcessGroup]) -> Step:
        """Keeps the sizes. A graph with an all-to-all has one group in its plans."""
        group = self.random.choice(groups)
        size, name = group.size(), group.group_name
        reductions = ["sum", "min", "max", "product"] + ["avg"] * dtype.is_floating_point
        op, source = self.random.choice(reductions), self.random.randrange(size)
        first = lambda x: x[: x.shape[0] // size]
        steps = {
            "all_reduce": lambda x: call("all_reduce", x, op, name),
            "broadcast": lambda x: call("broadcast", x, source, name),
            "all_to_all": lambda x: call("all_to_all_single", x, *[[x.shape[0] // size] * size] * 2, name),
            "gather": lambda x: call("all_gather_into_tensor", first(x).contiguous(), size, name),
            "scatter": lambda x: call("reduce_scatter_tensor", x, op, size, name).repeat(size, 1),
            "coalesced": lambda x: torch.cat(
                funcol.all_reduce_coalesced([first(x), x[x.shape[0] // size :]], op, name)
            ),
        }
        if len(groups) > 1:
            del steps["all_to_all"]
        return self.random.choice(list(steps.values()))

    def between(self, dtype: torch.dtype) -> Step:
        """Fused with what sends and what reads; keeps whole numbers small."""
        if dtype == torch.bool:
            return self.random.choice([lambda x: x, torch.logical_not, lambda x: x.flip(1)])
        small = (lambda x: x.clamp(-3, 3)) if not dtype.is_floating_point else (lambda x: x.clamp(-3, 3).round())
        after = self.random.choice(
            [
                lambda x: x,
                lambda x: x + 1,
                lambda x: torch.relu(x) - 1,
                lambda x: x - x.amax(-1, keepdim=True),
                lambda x: x + x.amin(0, keepdim=True),
                lambda x: torch.where(x > 0, x, x * 2),
            ]
        )
        return lambda x: after(small(x))


def groups_of(rank: int, world: int) -> list[dist.ProcessGroup]:
    """All ranks, all once more, and of four the halves."""
    all_of_them = list(range(world))
    groups = [dist.group.WORLD, dist.new_group(all_of_them, backend=own_backend())]
    if world == 4:
        for ranks in ([0, 1], [2, 3]), ([0, 2], [1, 3]):
            made = [dist.new_group(each, backend=own_backend()) for each in ranks]
            groups.append(made[rank not in ranks[0]])
    return groups


def rounds_of(seeds: range, rank: int, world: int) -> Iterator[tuple[int, tuple]]:
    """Each round: the function of a seed against eager, three launches. What it gave, of the last one."""
    groups = groups_of(rank, world)
    for seed in seeds:
        own = random.Random(1000 * seed + rank)
        function, sizes, dtype = Draw(seed, groups).function()
        fast = compiled(function)
        for launch in range(3):
            x = ranks_values(rank, sizes, dtype, seed)
            x = x if dtype == torch.bool else (x.clamp(-3, 3).round() + launch).to(dtype)
            wanted = function(x)
            if own.random() < 0.2:
                time.sleep(own.random() * 0.02)
            got = fast(x)
            for step, (want, have) in enumerate(zip(wanted, got, strict=True)):
                assert have.dtype == want.dtype and have.stride() == want.stride(), f"seed {seed}, step {step}"
                assert torch.equal(have, want), f"seed {seed}, launch {launch}, step {step}: {have} instead of {want}"
        yield seed, got


def stress(rank: int, world: int, seeds: range) -> str:
    begin, steps = time.monotonic(), 0
    for _, got in rounds_of(seeds, rank, world):
        steps += len(got)
    dist.barrier()
    return f"{len(seeds)} rounds, {steps} collectives in {time.monotonic() - begin:.1f} s on {own_device()}"
