"""One run of a graph as the time stamps of its work items, and its times per op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["OpTime", "Run", "load_end", "wait_end"]


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
    epoch_ns: int | None = None  # what makes Unix time of a stamp; None: the stamps are of a GPU's clock

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
        busy_ms=sum(r["end"] - wait_end(r) for r in records) / 1e6,
        wait_ms=sum(wait_end(r) - r["begin"] for r in records) / 1e6,
        load_ms=sum(load_end(r) - wait_end(r) for r in records) / 1e6,
        start_ms=(min(wait_end(r) for r in records) - origin) / 1e6,
        end_ms=(max(r["end"] for r in records) - origin) / 1e6,
    )


def wait_end(record: dict) -> int:
    """End of the wait for dependencies; the begin where the item had none (a stamp of 0)."""
    return min(max(record["wait_end"], record["begin"]), record["end"])


def load_end(record: dict) -> int:
    """When the last page of the item had been seen; the end of the wait where the item has no pages."""
    return min(max(record["load_end"], wait_end(record)), record["end"])
