"""Runs in the trace event format (chrome://tracing, ui.perfetto.dev), by themselves or within a trace of torch's
profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_torch.layers import lanes, spans_of_layers
from ark_torch.runs import Run, load_end, wait_end

KERNEL = "ark_loop"  # csrc/codegen/loop.cu.in
FIRST_LAYER_ROW = 1_000_000  # thread ids of the layers' rows, past every worker's


def trace_of(runs: Sequence[Run]) -> dict:
    """One process per run, a thread per worker and above them the layers; times in us from the first begin."""
    origin = min((run.begin_ns for run in runs if run.records), default=0)
    events = [event for pid, run in enumerate(runs) for event in _process(run, pid, pid, -origin)]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def merged(runs: Sequence[Run], torch_trace: dict) -> dict:
    """Torch's trace with the runs added on its clock. Stamps of the host target are of a clock of this machine; a GPU's
    are of its own, so a run there begins where torch's profiler has seen its kernel begin. Raises ValueError where
    there is not one kernel per run."""
    base = torch_trace.get("baseTimeNanoseconds", 0)
    kernels = sorted(
        e["ts"] for e in torch_trace["traceEvents"] if e.get("cat") == "kernel" and e["name"].startswith(KERNEL)
    )
    of_gpu = [run for run in runs if run.records and run.epoch_ns is None]
    if len(kernels) != len(of_gpu):
        raise ValueError(
            f"torch's trace has {len(kernels)} kernels of ark, the profile {len(of_gpu)} runs on a GPU: profile the "
            "same calls with both (torch's with ProfilerActivity.CUDA)"
        )
    begins = iter(kernels)
    added = []
    for index, run in enumerate(runs):
        if not run.records:
            continue
        shift = round(next(begins) * 1e3) - run.begin_ns if run.epoch_ns is None else run.epoch_ns - base
        added += _process(run, f"ark {index}", 1_000_000 + index, shift)
    return torch_trace | {"traceEvents": [*torch_trace["traceEvents"], *added]}


def read(path: str | Path) -> dict:
    """What torch.profiler's export_chrome_trace has written, to .json or .json.gz."""
    data = Path(path).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def _process(run: Run, pid: int | str, order: int, shift: int) -> Iterator[dict]:
    """`shift` (ns) is added to the run's stamps."""
    name = f"ark {run.name} {list(run.symbols) or ''}".rstrip()
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}
    for worker in sorted({r["worker"] for r in run.records}):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": worker, "args": {"name": f"worker {worker}"}}
    yield from _layers(run, pid, shift)
    for record in run.records:
        yield from _item(record, pid, shift)


def _layers(run: Run, pid: int | str, shift: int) -> Iterator[dict]:
    """Rows above the workers'; layers that overlap lie in several."""
    rows = set()
    for lane, name, begin, end in lanes(spans_of_layers(run.records)):
        tid = FIRST_LAYER_ROW + lane
        if tid not in rows:
            rows.add(tid)
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": "layers"}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": lane - 1000}}
        yield _span(name, "layer", pid, tid, begin + shift, end + shift)


def _item(record: dict, pid: int | str, shift: int) -> Iterator[dict]:
    tid, (begin, waited, loaded, end) = record["worker"], _stamps(record, shift)
    if waited > begin:
        yield _span("wait", "wait", pid, tid, begin, waited)
    args = {k: record[k] for k in ("op", "kind", "module", "first", "count")}
    yield _span(record["name"], record["kind"], pid, tid, waited, end) | {"args": args}
    if loaded > waited:  # nested in the item
        yield _span("load", "load", pid, tid, waited, loaded)


def _stamps(record: dict, shift: int) -> tuple[int, ...]:
    return tuple(t + shift for t in (record["begin"], wait_end(record), load_end(record), record["end"]))


def _span(name: str, kind: str, pid: int | str, tid: int, begin: int, end: int) -> dict:
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": begin / 1e3, "dur": (end - begin) / 1e3}
