"""What does a launch of tensor-parallel layers take on the host, with its collectives inside the plan?

    python benchmarks/plan_collectives.py --ranks 2 --json benchmarks/results/host/plan_collectives.json
    python benchmarks/plan_collectives.py --ranks 4 --steps --json benchmarks/results/host/all_reduce_steps_4.json

Each layer: the rank's columns of one weight, relu, its rows of another, all-reduce, residual, norm. Eager runs the same
functions with the group's own calls. Ranks are processes; each has a thread. `--steps`: an all-reduce, by its size, in
one step and in two (ark_torch/lower_collective.py).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.multiprocessing as mp

import ark_torch
from ark_torch import lower_collective
from harness import print_row, summary, write_json


def layers_case(layers: int, rows: int, width: int, inner: int):
    """(what, function, arguments)"""

    def function(x, *weights):
        for up, down in zip(weights[::2], weights[1::2]):
            y = funcol.all_reduce(torch.relu(x @ up) @ down, "sum", dist.group.WORLD)
            x = torch.nn.functional.rms_norm(x + y, (width,))
        return x

    weights = [torch.randn(a, b) / width**0.5 for _ in range(layers) for a, b in ((width, inner), (inner, width))]
    return f"{layers} layers, {rows} x {width}, {inner} inside a rank", function, [torch.randn(rows, width), *weights]


def reduce_case(count: int, n: int):
    def function(x):
        for _ in range(count):
            x = funcol.all_reduce(x * 0.5, "sum", dist.group.WORLD)
        return x

    return f"{count} all-reduces of {n} x {n}", function, [torch.randn(n, n)]


def times(call, arguments: list, rounds: int) -> list[float]:
    """Milliseconds; every call begins together."""
    samples = []
    for _ in range(rounds + 10):
        dist.barrier()
        begin = time.perf_counter_ns()
        call(*arguments)
        samples.append((time.perf_counter_ns() - begin) / 1e6)
    return samples[10:]


def measure(rounds: int, layers: int) -> list[dict]:
    rows = []
    cases = layers_case(layers, 8, 64, 64), layers_case(layers, 64, 256, 256), reduce_case(2, 512)
    for what, function, arguments in cases:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="ark", options={"strict": True})
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-3, atol=1e-3)
        timed = in_turns({"ark": compiled, "eager": function}, arguments, rounds)
        row = {
            "case": what,
            "unit": "ms",
            "ark": summary(timed["ark"]),
            "rivals": {"eager": summary(timed["eager"])},
            "errors": None,
            "floor": None,
            "must": None,
        }
        rows.append(row)
    return rows


def in_turns(calls: dict, arguments: list, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each; they take five turns, so that what else the machine does befalls all. `rounds`
    is rounded up to a multiple of five."""
    samples = {name: [] for name in calls}
    for _ in range(5):
        for name, call in calls.items():
            samples[name] += times(call, arguments, -(-rounds // 5))
    return samples


def plan_of(function, arguments: list):
    """What is compiled now, whatever Dynamo compiles of the function later."""
    torch._dynamo.reset()
    made = []
    with ark_torch.backend.record_callables(made):
        torch.compile(function, backend="ark", options={"strict": True})(*arguments)
    return lambda *given: made[0](list(given))[0]


def measure_steps(rounds: int) -> list[dict]:
    rows = []
    for kilobytes in (256, 512, 1024, 2048, 4096, 8192, 16384):
        what, function, arguments = reduce_case(1, math.isqrt(kilobytes * 256))
        calls = {"eager": function}
        for name, threshold in (("one step", sys.maxsize), ("two steps", 0)):
            lower_collective.TWO_STEP_BYTES, lower_collective.TWO_STEP_RANKS = threshold, 2
            calls[name] = plan_of(function, arguments)
            torch.testing.assert_close(calls[name](*arguments), function(*arguments), rtol=0, atol=0)
        samples = in_turns(calls, arguments, max(rounds * 64 // (64 + kilobytes // 8), 20))
        timed = {name: summary(values) for name, values in samples.items()}
        row = {"case": what, "unit": "ms", "ark": timed.pop("two steps"), "rivals": timed}
        rows.append({**row, "errors": None, "floor": None, "must": None})
    return rows


def run(rank: int, world: int, path: str, rounds: int, layers: int, json: str | None, steps: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("cpu:ark", store=dist.FileStore(path, world), rank=rank, world_size=world)
    with torch.no_grad():
        rows = measure_steps(rounds) if steps else measure(rounds, layers)
    if rank == 0:
        for row in rows:
            print_row(row)
        write_json(json, rows, ranks=world, cores=os.cpu_count())
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (args.ranks, os.path.join(folder, "store"), args.rounds, args.layers, args.json, args.steps)
        mp.spawn(run, args=arguments, nprocs=args.ranks)


if __name__ == "__main__":
    main()
