"""A rank of tensor_parallel.py, which starts it: builds every way, compares it with the reference, times in turns.

Ranks meet in the starter's store after each thing that may fail, so that all of them leave out a way that fails on
one. Rank 0 prints `AT way` before it, for the starter to know what a run that hangs or crashes was at.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import ark_torch
from ark_torch.explain import summarize
from ark_torch.records import recording
from harness import Captured, relative_error, summary
from tensor_parallel import AT, END, parser, ranks_of_a_gpu
from tensor_parallel_cases import Draw, Problem, entries
from tensor_parallel_together import Clock, Together, synchronize
from tensor_parallel_ways import base_of, called, exists, without_rivals_of_gpus
from workers import emit

FACTOR, LEAST = 2.0, 1e-6  # of eager's own error; a smaller one is none
WALL_CALLS = 10


def plan_of(records: list) -> dict:
    """What ark made of it: exchanges in the plans, and what is left to ATen."""
    found = summarize(records)
    return {
        "graphs": len(found.graphs),
        "plans": sum(len(graph.segments) for graph in found.graphs),
        "exchanges": len(found.exchanges),
        "aten_steps": sum(graph.num_aten for graph in found.graphs),
        "aten": dict(found.fallbacks),
        "internal_errors": found.internal_errors,
        "floor_ms": found.floor_ms,
        "predicted_ms": found.predicted_ms,
        "compile_s": sum(graph.seconds for graph in found.graphs),
    }


def largest(errors: tuple[float, ...]) -> float:
    """NaN where one is."""
    return max(errors, key=lambda error: (math.isnan(error), error))


class Row:
    """The ways of a problem, those that failed, and what is measured."""

    def __init__(
        self,
        problem: Problem,
        together: Together,
        groups: dict,
        dtype: torch.dtype,
        skip: dict[str, str],
        options: dict | None = None,
    ):
        self.problem, self.together, self.groups, self.dtype, self.options = problem, together, groups, dtype, options
        self.failed, self.bases, self.calls, self.errors = dict(skip), {}, {}, {}
        self.first_call_s, self.plan = {}, None

    def base(self, name: str) -> Callable[[], object]:
        if name not in self.bases:
            call, begin = called(name, self.problem, self.groups, self.dtype, self.options), time.perf_counter()
            with recording() as records:
                call()
            synchronize()
            self.first_call_s[name] = time.perf_counter() - begin
            if name == "ark":
                self.plan = plan_of(records)
            self.bases[name] = call
        return self.bases[name]

    def built(self, way: str, expected: list[torch.Tensor]) -> tuple[Callable, list[float]]:
        call = self.base(base_of(way))
        call = Captured(call) if way.endswith("-graph") else call
        self.problem.prepare()
        got = call()
        assert len(got) == len(expected)
        return call, [relative_error(a, b.reshape(a.shape)) for a, b in zip(got, expected)]

    def add(self, way: str, expected: list[torch.Tensor]) -> None:
        """Builds the way on all ranks, or notes why not."""
        if why := self.failed.get(way) or self.failed.get(base_of(way)):
            self.failed[way] = why
            return
        self.together.say(f"{AT}{way}")
        made, error = self.together.attempt(lambda: self.built(way, expected))
        if error:
            self.failed[way] = error
            return
        worst = [largest(of_ranks) for of_ranks in zip(*self.together.everybody(made[1]))]
        self.errors[way] = worst
        limits = [max(LEAST, FACTOR * error) for error in self.errors["eager"]] if "eager" in self.errors else worst
        if all(error <= limit for error, limit in zip(worst, limits)):
            self.calls[way] = made[0]
        else:
            self.failed[way] = f"wrong: relative errors {worst}, eager's are {self.errors.get('eager')}"

    def timed(self, clock: Clock, ways: list[str], rounds: int) -> tuple[dict, dict]:
        """GPU time and wall time of each way, milliseconds, the slowest rank's of each call."""
        ways = [way for way in ways if way in self.calls]
        gpu, wall = ({way: [] for way in ways} for _ in range(2))
        for number in range(rounds + 3 if ways else 0):
            shift = number % len(ways)
            for way in ways[shift:] + ways[:shift]:
                sample = clock.gpu(self.calls[way])
                if number >= 3:  # the first ones warm up
                    gpu[way].append(sample)
        for _ in range(min(rounds, WALL_CALLS)):
            for way in ways:
                wall[way].append(clock.wall(self.calls[way]))
        slowest = lambda samples: [max(each) for each in zip(*self.together.everybody(samples))]
        return tuple({way: slowest(samples) for way, samples in found.items()} for found in (gpu, wall))


def measure(row: Row, ways: list[str], clock: Clock, rounds: int) -> dict:
    problem = row.problem
    ways = [way for way in ways if exists(way, problem, clock.cuda)]
    expected, error = row.together.attempt(problem.reference)
    if error:
        raise RuntimeError(f"the reference: {error}")
    for way in ["eager", *sorted((w for w in ways if w != "eager"), key=lambda way: way.endswith("-graph"))]:
        row.add(way, expected)
    row.together.say(f"{AT}timing")
    del expected
    gpu, wall = row.timed(clock, ways, rounds)
    scale = 1e3 / problem.layers if problem.layers else 1.0
    results = {way: summary([sample * scale for sample in samples]) for way, samples in gpu.items()}
    return {
        "case": problem.case,
        "unit": "us per layer" if problem.layers else "ms",
        "better": "lower",
        "ark": results.pop("ark", None),
        "rivals": results,
        "floor": None,
        "must": None,
        "errors": row.errors,
        "wall_ms": {way: summary(samples) for way, samples in wall.items()},
        "first_call_s": row.first_call_s,
        "failed": row.failed,
        **({"plan": row.plan} if row.plan else {}),
        **problem.notes,
    }


def groups_of(together: Together, device: str, limit: float, shared: bool) -> dict[str, dist.ProcessGroup]:
    """NCCL takes no two ranks of one GPU."""
    wait = timedelta(seconds=limit)
    store = dist.PrefixStore("groups", together.store)
    dist.init_process_group("ark", store=store, rank=together.rank, world_size=together.world, timeout=wait)
    rival = dist.new_group(backend="nccl" if device == "cuda" and not shared else "gloo", timeout=wait)
    return {"ark": dist.group.WORLD, "rival": rival}


def own_share(each: int) -> dict[str, int]:
    """Of the SMs, as options of plans whose ranks share a GPU."""
    return {"workers": torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count // each}


def main() -> None:
    args = parser().parse_args()
    cuda = args.device == "cuda"
    each = ranks_of_a_gpu(args.ranks, torch.cuda.device_count()) if cuda else 1
    device = torch.device("cuda", args.rank // each) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # ways share code
    together = Together(args.port, args.rank, args.ranks, args.limit)
    groups = groups_of(together, args.device, args.limit, each > 1)
    clock, skip = Clock(groups["rival"], cuda), json.loads(args.skip)
    modes, options = (args.modes, None) if each == 1 else (without_rivals_of_gpus(args.modes), own_share(each))
    every = entries(args.cases, args.small or not cuda, args.layers, args.batch, args.models)
    for kind, make, sizes in every[args.start :]:
        draw = Draw(f"{kind} {sizes}", device, torch.bfloat16)
        problem = make(draw, args.rank, args.ranks, *sizes)
        together.say(problem.case)
        row = Row(problem, together, groups, draw.dtype, skip.get(kind, {}), options)
        found = measure(row, modes, clock, args.rounds)
        if args.rank == 0:
            emit(found)
        del problem, row
        torch.compiler.reset()
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    if cuda:
        ark_torch.distributed.check()
    together.everybody("all is measured")
    together.say(END)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        main()
    except BaseException:  # an exit that waits for collectives that never end would hide it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
