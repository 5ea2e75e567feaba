"""What do a task and a dependency cost inside the loop kernel, and how near its ceiling is each kind of task alone?

    python benchmarks/tasks.py --json benchmarks/results/h200/tasks.json

Everything is a difference between a long and a short chain, so that launch, prologue and drain do not count. Costs:
plans whose lists are written by hand (task_chains.py), beside the same chain of kernels in a CUDA graph. Kinds: graphs
of several independent copies against one (task_graphs.py), beside the library's kernels in a CUDA graph; `floor` is the
time that the bytes or the products need at the measured rates of the machine, `of_ceiling` the part of ark's time that
it is, `of_library` the library's time (its best kernel) by ark's.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch

from ark_torch import _C
from harness import Timer, device, print_row, relative_error, summary, write_json
from task_chains import KINDS, kind_of, one_element, one_of_each, one_tile_each, planned, repeated
from task_graphs import BYTES_PER_SECOND, TENSOR_FLOPS, Kind, kinds, random_inputs

Call = Callable[[], object]


class Chains:
    """Times calls of chains in turn; `per_task` is the time of one task more."""

    def __init__(self, where: str, rounds: int, flush_l2: bool):
        self.timer, self.rounds = Timer(where, flush_l2), rounds

    def per_task(self, chains: dict[str, tuple[int, Call, Call]]) -> dict[str, list[float]]:
        """name -> (n, call of one task, call of n tasks); microseconds per task, one number a round."""
        samples: dict[str, list[float]] = {name: [] for name in chains}
        for round_index in range(self.rounds + 2):
            for name, (n, short, long) in chains.items():
                begin, end = self.timer(short), self.timer(long)
                if round_index > 1:
                    samples[name].append((end - begin) / (n - 1) * 1e3)
        return samples


def executable(graph: str, where: str, **options) -> _C.CompiledGraph:
    return _C.CompiledGraph(graph, "cuda" if where == "cuda" else "host", 0, options)


@functools.cache
def capture_stream() -> torch.cuda.Stream:
    """One for all: a backward runs on the stream of its forward."""
    return torch.cuda.Stream()


def graphed(function: Call, where: str) -> tuple[Call, object]:
    """The function as a CUDA graph's replay (on a CPU itself), and what it returned."""
    if where != "cuda":
        return function, function()
    graph, stream = torch.cuda.CUDAGraph(), capture_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        function()
        function()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            outputs = function()
    graph.replay()
    torch.cuda.synchronize()
    graph.outputs = outputs  # the graph writes to them
    return graph.replay, outputs


def row_of(case: str, ark: list[float], **more) -> dict:
    row = {
        "case": case,
        "unit": "us",
        "better": "lower",
        "ark": summary(ark),
        "rivals": {},
        "floor": None,
        "must": None,
    }
    return row | {"errors": {}} | more


def as_list(outputs: object) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


class TaskCosts:
    """The rows of tasks and dependencies."""

    def __init__(self, where: str, rounds: int, length: int):
        self.where, self.length, self.chains = where, length, Chains(where, rounds, flush_l2=False)
        self.everyone = torch.cuda.get_device_properties(0).multi_processor_count if where == "cuda" else 4

    def chain(self, graph: str, workers: int, pattern: list[tuple[int, int | None]], dependent: bool):
        """Calls of a chain of 1 and of `length` tasks that follow the pattern, checked against the plan as planned. All
        ops of the graph that are not in the pattern run once before it: the kernel is the same, its outputs are whole.
        """
        plan, inputs = planned(graph, workers), random_inputs(graph, self.where)
        expected = executable(graph, self.where, workers=workers)(list(inputs))
        others = [(number, 0) for number in range(len(plan["ops"])) if number not in {number for number, _ in pattern}]
        others += pattern[1:]
        calls = []
        for n in (1, self.length):
            sequence = others + [pattern[i % len(pattern)] for i in range(n)]
            run = executable(graph, self.where, plan=repeated(plan, sequence, dependent))
            calls.append(lambda run=run: run(list(inputs)))
            for mine, theirs in zip(calls[-1](), expected):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        return self.length, *calls

    def kernels(self):
        """The rival: as many kernels that depend on each other, in a CUDA graph."""
        x, y = (torch.zeros(1, device=self.where) for _ in range(2))
        run = lambda n: lambda: [torch.add(x, y, out=x) for _ in range(n)]
        return self.length, graphed(run(1), self.where)[0], graphed(run(self.length), self.where)[0]

    def dependencies(self) -> list[dict]:
        one, everyone = one_element(), one_tile_each(self.everyone)
        times = self.chains.per_task(
            {
                "task": self.chain(one, 1, [(0, 0)], False),
                "same": self.chain(one, 1, [(0, 0)], True),
                "other": self.chain(one, 2, [(0, 0), (0, 1)], True),
                "tiles": self.chain(everyone, self.everyone, [(0, None)], False),
                "all": self.chain(everyone, self.everyone, [(0, None)], True),
                "kernels": self.kernels(),
            }
        )
        rivals = {"rivals": {"kernels in a CUDA graph": summary(times["kernels"])}}
        exposed = lambda name, without: {"exposed": summary([a - b for a, b in zip(times[name], times[without])])}
        tile = f"one tile of 8192 elements on each of {self.everyone} workers"
        return [
            row_of("an empty task (one element), independent of the one before it", times["task"], **rivals),
            row_of("the same, waiting for the one before it, same worker", times["same"], **exposed("same", "task")),
            row_of("the same, waiting for another worker's", times["other"], **exposed("other", "task"), **rivals),
            row_of(f"{tile}, independent of those before", times["tiles"]),
            row_of(f"{tile}, each waiting for all of those before", times["all"], **exposed("all", "tiles")),
        ]

    def cold_code(self) -> list[dict]:
        """Tiny tasks of one worker: the same kind again and again against all kinds in turn."""
        graph = one_of_each()
        place = {kind_of(op): number for number, op in enumerate(planned(graph, 1)["ops"])}
        chains = {kind: self.chain(graph, 1, [(place[kind], 0)], False) for kind in KINDS}
        times = self.chains.per_task(chains | {"turn": self.chain(graph, 1, [(place[k], 0) for k in KINDS], False)})
        rows = [row_of(f"a tiny {kind} task after its like", times[kind]) for kind in KINDS]
        equal = [sum(times[kind][i] for kind in KINDS) / len(KINDS) for i in range(len(times["turn"]))]
        colder = {"over_equal": summary([a - b for a, b in zip(times["turn"], equal)])}
        return [*rows, row_of(f"a tiny task, {len(KINDS)} kinds in turn (mean)", times["turn"], **colder)]


def copies_of(kind: Kind, where: str) -> list[list[torch.Tensor]]:
    return [kind.inputs(where) for _ in range(kind.copies)]


def library_calls(kind: Kind, inputs: list[list[torch.Tensor]], where: str, failed: dict[str, str]):
    """name -> (copies, call of one, call of all), and the outputs of the first copy."""
    calls, outputs = {}, {}
    for name, function in kind.library.items():
        try:
            short, first = graphed(lambda f=function: [f(*inputs[0])], where)
            outputs[name] = [t.clone() for t in as_list(first[0])]
            calls[name] = kind.copies, short, graphed(lambda f=function: [f(*tensors) for tensors in inputs], where)[0]
        except RuntimeError as error:
            failed[name] = str(error).splitlines()[0][:200]
    return calls, outputs


@torch.no_grad()
def kind_row(kind: Kind, where: str, chains: Chains) -> dict:
    torch.manual_seed(0)
    inputs, failed = copies_of(kind, where), {}
    runs = [(executable(kind.graph(n), where), [t for each in inputs[:n] for t in each]) for n in (1, kind.copies)]
    ark_calls = [lambda run=run, flat=flat: run(list(flat)) for run, flat in runs]
    mine = as_list(ark_calls[0]())
    calls, outputs = library_calls(kind, inputs, where, failed)
    exact = as_list(kind.exact(*(t.double() for t in inputs[0])))
    errors = {name: max(map(relative_error, out, exact)) for name, out in {"ark": mine, **outputs}.items()}
    yardstick = max([error for name, error in errors.items() if name != "ark"], default=1e-2)
    if not errors["ark"] <= 1.5 * yardstick:
        raise AssertionError(f"{kind.name}: error {errors['ark']:.3e} is over 1.5 times the library's: {errors}")
    del exact, outputs, mine
    times = chains.per_task({"ark": (kind.copies, *ark_calls), **calls})
    row = row_of(f"{kind.kind}: {kind.name}", times.pop("ark"), floor=kind.floor_us, errors=errors)
    row["rivals"] = {name: summary(values) for name, values in times.items()}
    row["of_ceiling"] = kind.floor_us / row["ark"]["median"]
    if times:
        row["of_library"] = min(rival["median"] for rival in row["rivals"].values()) / row["ark"]["median"]
    if failed:
        row["failed"] = failed
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=401, help="tasks of a long chain")
    parser.add_argument("--only", default="", help="kinds of task whose name contains this")
    args = parser.parse_args()
    where = device()
    costs = TaskCosts(where, args.rounds, args.length)
    rows = [] if args.only else costs.dependencies() + costs.cold_code()
    chains = Chains(where, args.rounds, flush_l2=True)
    for row in rows:
        print_row(row)
    for kind in kinds(small=where != "cuda"):
        if args.only in kind.kind:
            rows.append(kind_row(kind, where, chains))
            print_row(rows[-1])
    write_json(args.json, rows, rates={"bytes_per_second": BYTES_PER_SECOND, "tensor_flops": TENSOR_FLOPS})


if __name__ == "__main__":
    main()
