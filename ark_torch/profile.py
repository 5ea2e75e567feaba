"""Where the time of a graph goes: time stamps of every work item of every worker, as chrome trace, table and picture.

with ark_torch.profile() as prof:
    model(x)
print(prof)
prof.export_chrome_trace("trace.json")
prof.save_timeline("timeline.svg")
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ark_torch.chrome_trace import merged, read, trace_of
from ark_torch.runs import OpTime, Run
from ark_torch.timeline import draw

__all__ = ["OpTime", "Profile", "Run", "profile"]


@dataclass(frozen=True)
class Profile:
    """The runs that happened inside `with profile()`, in order."""

    runs: list[Run]

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        items = sum(len(run.records) for run in self.runs)
        return f"<ark_torch profile: {len(self.runs)} runs, {items} items; print() shows its table>"

    def table(self, limit: int = 40) -> str:
        """The ops of the last run that kept the workers longest, busy (loading is a part of it) and waiting, in per
        cent of all workers' time; `from` the end of the op's first wait `to` the end of its last item."""
        if not self.runs:
            return "no run of an ark graph was recorded"
        run = self.runs[-1]
        workers = 1 + max((r["worker"] for r in run.records), default=0)
        times = sorted(run.op_times(), key=lambda t: -(t.busy_ms + t.wait_ms))
        total = run.span_ms * workers or 1.0
        lines = [
            f"{run.name} {list(run.symbols) or ''}: {run.span_ms:.4f} ms on {workers} workers",
            f"{'busy %':>7} {'load %':>7} {'wait %':>7} {'from ms':>9} {'to ms':>9} {'tiles':>7}  {'kind':<24} name",
        ]
        for t in times[:limit]:
            busy, load, wait = (100 * ms / total for ms in (t.busy_ms, t.load_ms, t.wait_ms))
            where = f"{t.module}: {t.name}" if t.module else t.name
            spans = f"{t.start_ms:9.4f} {t.end_ms:9.4f} {t.tiles:7d}"
            lines.append(f"{busy:7.2f} {load:7.2f} {wait:7.2f} {spans}  {t.kind:<24} {where[:100]}")
        sums = (sum(t.busy_ms for t in times), sum(t.load_ms for t in times), sum(t.wait_ms for t in times))
        idle = max(100 - 100 * (sums[0] + sums[2]) / total, 0)
        lines.append(" ".join(f"{100 * ms / total:7.2f}" for ms in sums) + f" in all; between items {idle:.2f} %")
        if len(times) > limit:
            lines.append(f"{len(times) - limit} more ops: table(limit={len(times)})")
        return "\n".join(lines)

    def chrome_trace(self) -> dict:
        """The trace event format: one process per run, one thread per worker, times in us from the first begin."""
        return trace_of(self.runs)

    def export_chrome_trace(self, path: str | Path, torch_trace: str | Path | None = None) -> None:
        """For chrome://tracing or ui.perfetto.dev. With the file that torch.profiler wrote of the same calls
        (`torch_trace`, .json or .json.gz) the result is that trace and ark's runs in it, on one clock."""
        trace = trace_of(self.runs) if torch_trace is None else merged(self.runs, read(torch_trace))
        Path(path).write_text(json.dumps(trace))

    def save_timeline(self, path: str | Path, run: int = -1, width: int = 1600) -> None:
        """An SVG picture of one run: a row per worker (SM). Waits are grey; an item has its kind's colour, pale while
        its pages arrive (products run meanwhile), full from then on: what remains to compute, and the stores. Between
        these two there is no time stamp: a tile's stores leave while its next values are computed."""
        if not self.runs:
            raise ValueError("no run of an ark graph was recorded")
        Path(path).write_text(draw(self.runs[run], width))


@contextmanager
def profile() -> Iterator[Profile]:
    """Records every run of an ark graph inside the block. Each such run uses the tracing variant of its kernel
    (compiled on first use) and is waited for, so it is slower than usual; the time stamps are the device's.
    Not to be nested."""
    from ark_torch import _C

    result, entered = Profile(runs=[]), time.monotonic_ns()

    def sink(name: str, symbols: list[int], records: list[dict]) -> None:
        run, now = Run(name, tuple(symbols), records), time.monotonic_ns()
        if entered <= run.begin_ns and run.end_ns <= now:  # the host target's stamps are of this clock
            run = replace(run, epoch_ns=time.time_ns() - now)
        result.runs.append(run)

    _C.set_trace_sink(sink)
    try:
        yield result
    finally:
        _C.set_trace_sink(None)
