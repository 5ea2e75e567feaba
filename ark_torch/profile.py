"""Where the time of a graph goes: time stamps of every work item of every worker, as chrome trace, table and picture.

with ark_torch.profile() as prof:
    model(x)
print(prof.table())
prof.export_chrome_trace("trace.json")
prof.save_timeline("timeline.svg")
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OpTime", "Profile", "Run", "profile"]

_PALETTE = {
    "pointwise": "#4c9f70",
    "row": "#8dbf42",
    "column": "#c2b84a",
    "matmul_rows": "#2f6fb5",
    "matmul_tile": "#1f4e8c",
    "matmul_float": "#4a82c0",
    "matmul_simple": "#74a3d4",
    "attention_decode": "#c0504d",
    "attention_forward": "#a33a3a",
    "attention_simple": "#d98b88",
    "attention_backward_rows": "#b07aa1",
    "attention_backward": "#7b4a86",
    "attention_backward_query": "#9a6bb0",
    "mask_range": "#888888",
}
_WAIT_COLOR = "#e4e4e4"
_PALE = 0.55
_NOTE = ("pale: loads arrive; full: compute and store (no stamp between)", "none")


@dataclass(frozen=True)
class OpTime:
    """One op of a run. Times in ms, summed over the workers: `wait` for other tiles, `load` until the last page of an
    item has been seen (products run meanwhile), `busy` from the end of the wait to the end of the item, load included.
    `span` is from the first item's begin to the last one's end; `start` (the end of the first wait) and `end` (of the
    last item) count from the run's begin."""

    op: int
    kind: str
    name: str
    module: str
    tiles: int
    span_ms: float
    busy_ms: float
    wait_ms: float
    load_ms: float
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Run:
    """One run of one graph. Keys of a record: op, name, module, kind, first, count, worker; begin, wait_end, load_end,
    end (ns)."""

    name: str
    symbols: tuple[int, ...]
    records: Sequence[dict]

    @property
    def begin_ns(self) -> int:
        return min((r["begin"] for r in self.records), default=0)

    @property
    def end_ns(self) -> int:
        return max((r["end"] for r in self.records), default=0)

    @property
    def span_ms(self) -> float:
        """From the first item's begin to the last item's end, on the device's clock."""
        return (self.end_ns - self.begin_ns) / 1e6

    def op_times(self) -> list[OpTime]:
        """Per op, in plan order."""
        groups: dict[int, list[dict]] = {}
        for record in self.records:
            groups.setdefault(record["op"], []).append(record)
        return [_op_time(op, groups[op], self.begin_ns) for op in sorted(groups)]


def _op_time(op: int, records: Sequence[dict], origin: int) -> OpTime:
    return OpTime(
        op=op,
        kind=records[0]["kind"],
        name=records[0]["name"],
        module=records[0]["module"],
        tiles=sum(r["count"] for r in records),
        span_ms=(max(r["end"] for r in records) - min(r["begin"] for r in records)) / 1e6,
        busy_ms=sum(r["end"] - _wait_end(r) for r in records) / 1e6,
        wait_ms=sum(_wait_end(r) - r["begin"] for r in records) / 1e6,
        load_ms=sum(_load_end(r) - _wait_end(r) for r in records) / 1e6,
        start_ms=(min(_wait_end(r) for r in records) - origin) / 1e6,
        end_ms=(max(r["end"] for r in records) - origin) / 1e6,
    )


def _wait_end(record: dict) -> int:
    """End of the wait for dependencies; the begin where the item had none (a stamp of 0)."""
    return min(max(record["wait_end"], record["begin"]), record["end"])


def _load_end(record: dict) -> int:
    """When the last page of the item had been seen; the end of the wait where the item has no pages."""
    return min(max(record["load_end"], _wait_end(record)), record["end"])


@dataclass(frozen=True)
class Profile:
    """The runs that happened inside `with profile()`, in order."""

    runs: list[Run]

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
        lines.append(" ".join(f"{100 * ms / total:7.2f}" for ms in sums) + f" {'in all':>9}")
        return "\n".join(lines)

    def chrome_trace(self) -> dict:
        """The trace event format: one process per run, one thread per worker, times in us from the first begin."""
        origin = min((run.begin_ns for run in self.runs if run.records), default=0)
        events: list[dict] = []
        for pid, run in enumerate(self.runs):
            name = f"ark {run.name} {list(run.symbols) or ''}".rstrip()
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
            for record in run.records:
                events.extend(_events(record, pid, origin))
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def export_chrome_trace(self, path: str | Path) -> None:
        """For chrome://tracing or ui.perfetto.dev."""
        Path(path).write_text(json.dumps(self.chrome_trace()))

    def save_timeline(self, path: str | Path, run: int = -1, width: int = 1600) -> None:
        """An SVG picture of one run: a row per worker (SM). Waits are grey; an item has its kind's colour, pale while
        its pages arrive (products run meanwhile), full from then on: what remains to compute, and the stores. Between
        these two there is no time stamp: a tile's stores leave while its next values are computed."""
        if not self.runs:
            raise ValueError("no run of an ark graph was recorded")
        Path(path).write_text(_timeline(self.runs[run], width))


def _events(record: dict, pid: int, origin: int) -> Iterator[dict]:
    wait_end = _wait_end(record)
    common = {"ph": "X", "pid": pid, "tid": record["worker"]}
    if wait_end > record["begin"]:
        yield common | {
            "name": "wait",
            "cat": "wait",
            "ts": (record["begin"] - origin) / 1e3,
            "dur": (wait_end - record["begin"]) / 1e3,
        }
    yield common | {
        "name": record["name"],
        "cat": record["kind"],
        "ts": (wait_end - origin) / 1e3,
        "dur": (record["end"] - wait_end) / 1e3,
        "args": {k: record[k] for k in ("op", "kind", "module", "first", "count")},
    }
    if _load_end(record) > wait_end:  # nested in the item
        yield common | {
            "name": "load",
            "cat": "load",
            "ts": (wait_end - origin) / 1e3,
            "dur": (_load_end(record) - wait_end) / 1e3,
        }


def _timeline(run: Run, width: int) -> str:
    workers = 1 + max((r["worker"] for r in run.records), default=0)
    row, left, top = 6, 40, 40
    scale = (width - left - 10) / max(run.end_ns - run.begin_ns, 1)
    bars: list[str] = []

    def bar(worker: int, begin: int, end: int, color: str, opacity: float = 1.0) -> None:
        x, w = left + (begin - run.begin_ns) * scale, (end - begin) * scale
        if w >= 0.05:  # thinner ones cannot be seen
            shade = f' opacity="{opacity}"' if opacity != 1 else ""
            place = f'x="{x:.2f}" y="{top + worker * row}" width="{w:.2f}" height="{row - 1}"'
            bars.append(f'<rect {place} fill="{color}"{shade}/>')

    for r in run.records:
        bar(r["worker"], r["begin"], _wait_end(r), _WAIT_COLOR)
        color = _PALETTE.get(r["kind"], "#000000")
        bar(r["worker"], _wait_end(r), _load_end(r), color, _PALE)
        bar(r["worker"], _load_end(r), r["end"], color)
    height = top + workers * row + 30
    used = [k for k in _PALETTE if any(r["kind"] == k for r in run.records)]
    legend = [
        f'<rect x="{left + i * 170}" y="22" width="10" height="10" fill="{color}"/>'
        f'<text x="{left + i * 170 + 14}" y="31">{kind}</text>'
        for i, (kind, color) in enumerate([(k, _PALETTE[k]) for k in used] + [("wait", _WAIT_COLOR), _NOTE])
    ]
    axis = [
        f'<text x="{left + (width - left - 60) * i / 5:.0f}" y="{height - 8}">{run.span_ms * 1e3 * i / 5:.1f} us</text>'
        for i in range(6)
    ]
    title = f"{run.name}: {run.span_ms:.4f} ms, {workers} workers, {len(run.records)} items; {_shares(run, workers)}"
    title = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="14">{title}</text>'
        + "".join(legend + bars + axis)
        + "</svg>\n"
    )


def _shares(run: Run, workers: int) -> str:
    """How the workers' time splits."""
    total = max(run.end_ns - run.begin_ns, 1) * workers / 100
    wait = sum(_wait_end(r) - r["begin"] for r in run.records) / total
    load = sum(_load_end(r) - _wait_end(r) for r in run.records) / total
    rest = sum(r["end"] - _load_end(r) for r in run.records) / total
    return f"waiting {wait:.1f} %, loading (pale) {load:.1f} %, computing and storing {rest:.1f} %"


@contextmanager
def profile() -> Iterator[Profile]:
    """Records every run of an ark graph inside the block. Each such run uses the tracing variant of its kernel
    (compiled on first use) and is waited for, so it is slower than usual; the time stamps are the device's.
    Not to be nested."""
    from ark_torch import _C

    result = Profile(runs=[])

    def sink(name: str, symbols: list[int], records: list[dict]) -> None:
        result.runs.append(Run(name, tuple(symbols), records))

    _C.set_trace_sink(sink)
    try:
        yield result
    finally:
        _C.set_trace_sink(None)
