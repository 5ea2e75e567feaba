"""One way to time things: check results, warm up, interleave ark with its rivals, flush L2, report medians.

A benchmark file answers one question. It builds `Case`s, hands them to `run_cases`, writes JSON with `write_json`:

    {"machine", "versions", "commit", "command", "rows": [{"case", "unit", "better", "ark": {"median", "p10", "p90"},
     "rivals": {name: {...}}, "floor", "must"}]}
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


HEAD_START_CYCLES = 8_000_000  # of the SM clock, about 4 ms


@dataclasses.dataclass
class Case:
    """One row of a result file.

    contestants maps a name ("ark" among them) to a function that does the work once and returns what `check` compares.
    timed names those of them that are measured (default: all); the others only run for the check.
    launches, if given, is the number of plans that one call of ark is to launch, product_launches of those with matrix
    products in them, fallbacks what may run through ATen; what a call is made of is in the row's `plan`, and another
    number is an error.
    prepare(name), if given, runs before each timed call, untimed (resets a cache's position, clears gradients).
    check(outputs) gets {name: output of one call} and raises when a result is wrong; it runs before anything is timed.
    A contestant that fails is reported in `failed` and never timed.
    """

    case: str
    contestants: dict[str, Callable[[], object]]
    check: Callable[[dict[str, object]], dict] | None = None
    prepare: Callable[[str], None] | None = None
    unit: str = "ms"
    better: str = "lower"
    floor: float | None = None
    must: float | None = None
    scale: Callable[[float], float] = lambda ms: ms  # milliseconds -> unit
    timed: list[str] | None = None
    launches: int | None = None
    product_launches: int | None = None
    fallbacks: tuple[str, ...] = ()
    notes: dict = dataclasses.field(default_factory=dict)


class Timer:
    """Times one call on the device of the benchmark: CUDA events around the call, or the wall clock on the CPU.

    On CUDA 256 MB are read before each call, so that no contestant finds its weights in the L2 cache (50-60 MB). Read,
    not written: dirty lines would be written back during the timed call.
    """

    def __init__(self, device: str, flush_l2: bool = True):
        self.cuda = device == "cuda"
        self.flush = torch.zeros(64 << 20, dtype=torch.float32, device="cuda") if self.cuda and flush_l2 else None

    def __call__(self, function: Callable[[], object]) -> float:
        """Milliseconds of one call."""
        if not self.cuda:
            begin = time.perf_counter()
            function()
            return (time.perf_counter() - begin) * 1e3
        if self.flush is not None:
            self.flush.sum()
        # The GPU is kept busy while the CPU prepares the call (guards, dispatch), so that the events bracket the GPU's
        # work alone; a contestant whose launches take the CPU longer than this pays for the rest.
        torch.cuda._sleep(HEAD_START_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def summary(samples: list[float]) -> dict:
    samples = sorted(samples)
    pick = lambda q: samples[min(len(samples) - 1, int(q * len(samples)))]
    return {"median": statistics.median(samples), "p10": pick(0.1), "p90": pick(0.9), "n": len(samples)}


def measure(case: Case, timer: Timer, rounds: int, warmup: int) -> dict:
    """Runs one case; returns its row."""
    alive, failed, outputs = dict(case.contestants), {}, {}
    prepare = case.prepare or (lambda name: None)
    for name, function in list(alive.items()):
        try:
            for _ in range(max(1, warmup)):
                prepare(name)
                outputs[name] = function()
            prepare(name)
            outputs[name] = _detached(function())
            if timer.cuda:
                torch.cuda.synchronize()
        except Exception as error:  # a rival that cannot run is a result too
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            del alive[name]
            outputs.pop(name, None)
    errors = case.check(outputs) if case.check else {}
    del outputs
    wanted = case.launches is not None or case.product_launches is not None
    plan = check_plan(case, alive["ark"]) if wanted and "ark" in alive else None
    alive = {name: function for name, function in alive.items() if case.timed is None or name in case.timed}
    samples: dict[str, list[float]] = {name: [] for name in alive}
    names = list(alive)
    for round_index in range(rounds):
        shift = round_index % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            prepare(name)
            try:
                samples[name].append(case.scale(timer(alive[name])))
            except Exception as error:  # the timer waits for each call: the error is this contestant's
                raise RuntimeError(f"{name} failed in timed round {round_index + 1} of {rounds}: {error}") from error
    results = {name: summary(values) for name, values in samples.items()}
    row = {
        "case": case.case,
        "unit": case.unit,
        "better": case.better,
        "ark": results.pop("ark", None),
        "rivals": results,
    }
    row |= {"floor": case.floor, "must": case.must, "errors": errors, **case.notes}
    if plan is not None:
        row["plan"] = plan
    if failed:
        row["failed"] = failed
    print_row(row)
    return row


class _Counted:
    """An executable that counts its runs."""

    def __init__(self, executable):
        self.executable, self.runs = executable, 0

    def __call__(self, inputs):
        self.runs += 1
        return self.executable(inputs)

    def __getattr__(self, name: str):
        return getattr(self.executable, name)


def composition(call: Callable[[], object]) -> dict:
    """What one call is made of: launches of plans, their tasks (kind -> ops), what runs through ATen."""
    from ark_torch.records import REGISTRY

    records = REGISTRY.graphs
    segments = [segment for record in records for segment in record.segments]
    counted = [_Counted(segment.executable) for segment in segments]
    for segment, count in zip(segments, counted):
        segment.executable = count
    try:
        call()
    finally:
        for segment, count in zip(segments, counted):
            segment.executable = count.executable
    tasks, fallbacks, products = Counter(), Counter(), 0
    for count in counted:
        for _ in range(count.runs):
            kinds = count.executable.stats()["tasks"]
            tasks.update(kinds)
            products += any(kind.startswith("matmul") for kind in kinds)
    for record in records:
        fallbacks.update(record.fallbacks)
        fallbacks.update(record.runtime_fallbacks)
    launches = {"launches": sum(c.runs for c in counted), "product_launches": products}
    return launches | {"tasks": dict(tasks), "fallbacks": dict(fallbacks)}


def check_plan(case: Case, call: Callable[[], object]) -> dict:
    """The composition of ark's call, as the case expects it."""
    (case.prepare or (lambda name: None))("ark")
    plan = composition(call)
    unexpected = set(plan["fallbacks"]) - set(case.fallbacks)
    wanted = {"launches": case.launches, "product_launches": case.product_launches}
    wanted = {key: number for key, number in wanted.items() if number is not None}
    if unexpected or any(plan[key] != number for key, number in wanted.items()):
        raise AssertionError(f"{case.case}: expected {wanted}, no fallback but {list(case.fallbacks)}, got {plan}")
    return plan


def _detached(output: object) -> object:
    if isinstance(output, torch.Tensor):
        return output.detach().clone()
    if isinstance(output, (list, tuple)):
        return [_detached(item) for item in output]
    return output


def print_row(row: dict) -> None:
    show = lambda r: f"{r['median']:.4g} [{r['p10']:.4g}, {r['p90']:.4g}]"
    parts = [f"{row['case']} ({row['unit']}): ark {show(row['ark']) if row['ark'] else 'failed'}"]
    parts += [f"{name} {show(result)}" for name, result in row["rivals"].items()]
    parts += [f"{key} {row[key]:.4g}" for key in ("floor", "must") if row[key] is not None]
    parts += [f"{name} FAILED: {why}" for name, why in row.get("failed", {}).items()]
    print(" | ".join(parts), flush=True)
    if "plan" in row:
        print("    one call:", json.dumps(row["plan"]), flush=True)
    if row["errors"]:
        print("    errors:", json.dumps(row["errors"]), flush=True)


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """||value - reference|| / ||reference|| in fp64; NaN stays NaN."""
    value, reference = value.double(), reference.double()
    return ((value - reference).norm() / reference.norm()).item()


def eager_of(results: dict[str, object]):
    """Eager's entry, the yardstick of a check; an error that says so where eager did not run."""
    if "eager" not in results:
        raise AssertionError(f"eager, the yardstick of the check, has no result (there are: {sorted(results)})")
    return results["eager"]


def check_against_fp64(
    reference: torch.Tensor, factor: float = 1.5, least: float = 0.0
) -> Callable[[dict[str, object]], dict]:
    """A check: ark's error against `reference` (fp64) is at most `factor` times eager's own error in the same dtype,
    or `least` where that is more."""

    def check(outputs: dict[str, object]) -> dict:
        errors = {name: relative_error(output, reference) for name, output in outputs.items()}
        limit = max(least, factor * eager_of(errors))
        if "ark" in errors and not errors["ark"] <= limit:
            raise AssertionError(
                f"ark's relative error {errors['ark']:.3e} is over {limit:.3e} (eager: {errors['eager']:.3e})"
            )
        return errors

    return check


@functools.cache
def machine() -> dict:
    info = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if torch.cuda.is_available():
        info["gpu"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        try:
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            info["driver"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split("\n")[0]
        except (OSError, subprocess.TimeoutExpired):
            info["driver"] = "unknown"
    return info


@functools.cache
def versions() -> dict:
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    for package in ("transformers", "triton", "ark_torch"):
        try:
            found[package] = __import__(package).__version__
        except (ImportError, AttributeError):
            pass
    return found


def commit() -> str:
    """The commit that was measured (ARK_COMMIT where the checkout has no history, as in a copy of the tree)."""
    if os.environ.get("ARK_COMMIT"):
        return os.environ["ARK_COMMIT"]
    result = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", "HEAD"], capture_output=True, text=True
    )
    return result.stdout.strip() or "unknown"


def run_cases(cases: list[Case], device: str, rounds: int = 50, warmup: int = 3, flush_l2: bool = True) -> list[dict]:
    timer = Timer(device, flush_l2)
    return [measure(case, timer, rounds, warmup) for case in cases]


def write_json(path: str | None, rows: list[dict], **extra: object) -> None:
    command = "python " + " ".join([os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    document = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "command": command,
        **extra,
        "rows": rows,
    }
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {path}", flush=True)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def compiled(function: Callable, mode: str) -> Callable:
    """`function` under one way of running it: eager, ark, inductor, reduce-overhead or max-autotune. `ark:name=value`:
    with that option of ark's."""
    if mode == "eager":
        return function
    if mode == "ark":
        return torch.compile(function, backend="ark")
    if mode.startswith("ark:"):
        name, _, value = mode.removeprefix("ark:").partition("=")
        return torch.compile(function, backend="ark", options={name: ast.literal_eval(value)})
    if mode == "inductor":
        return torch.compile(function)
    return torch.compile(function, mode=mode)


class Captured:
    """What `call` does, in a CUDA graph. `before` runs (uncaptured) before each warm-up call and before the capture.

    The workspaces of cuBLAS that warming up has left are dropped before the capture, so that the graph holds one of its
    own: inductor's reduce-overhead drops all that lie outside of graphs, and a graph that used such a one would then
    write to memory that is unmapped.
    """

    def __init__(self, call: Callable[[], object], before: Callable[[], None] = lambda: None, warmup: int = 3):
        stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(warmup):
                before()
                call()
            before()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(self.graph, stream=stream):
            self.outputs = call()
        torch._C._cuda_clearCublasWorkspaces()

    def __call__(self) -> object:
        self.graph.replay()
        return self.outputs


ON_CPU = ("ark", "eager", "inductor")


def contestants_of(modes: str, device: str) -> tuple[list[str], list[str]]:
    """The comma-separated modes that exist on the device: those to build (eager always: checks are judged by it), and
    those to time."""
    timed = [mode for mode in modes.split(",") if device == "cuda" or mode in ON_CPU]
    return timed + ["eager"] * ("eager" not in timed), timed
