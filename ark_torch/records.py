"""What was compiled and what fell back: the data behind `explain`, `report` and the strict mode."""

from __future__ import annotations

import logging
import re
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

log = logging.getLogger("ark")


class InternalCause(str):
    """Why something runs through ATen that a bug of ark keeps from running natively."""

    __slots__ = ()

    @classmethod
    def of(cls, error: object) -> InternalCause:
        return cls(f"internal error: {error}")


@dataclass
class LoopRow:
    """A `while_loop` of a graph; `cause`: why each iteration is a call, empty where all are one launch."""

    name: str
    cause: str = ""
    node: object = None  # fx.Node to blame


@dataclass
class GraphRecord:
    """One graph that a compiler of the backend was given."""

    name: str
    kind: str  # "inference", "forward" or "backward"
    num_nodes: int = 0
    fallbacks: Counter = field(default_factory=Counter)  # cause -> number of ATen steps
    places: dict[str, str] = field(default_factory=dict)  # cause -> the user's line that it was first met at
    runtime_fallbacks: Counter = field(default_factory=Counter)  # cause -> sizes or layouts that run through ATen
    internal_errors: list[str] = field(default_factory=list)
    segments: list = field(default_factory=list)  # segment.NativeSegment
    loops: list[LoopRow] = field(default_factory=list)
    num_aten: int = 0
    seconds: float = 0.0  # ark's own part of the compilation


def told(cause: str) -> str:
    """A cause as the user reads it: of an op that has no rule it is the op's name alone (`aten.topk.default`, `cond`,
    `with_effects of aten._print.default`)."""
    return f"{cause} (no plan computes this op)" if re.fullmatch(r"(with_effects of )?[\w.]+", cause) else cause


@dataclass
class Registry:
    """Process-wide; `reset` empties it. Records live as long as the callables that they describe."""

    _graphs: list[weakref.ref] = field(default_factory=list)
    logged: set[str] = field(default_factory=set)
    runtime_fallbacks: Counter = field(default_factory=Counter)
    listeners: list = field(default_factory=list)
    since_us: int = 0  # the last reset

    @property
    def graphs(self) -> list[GraphRecord]:
        self._graphs = [ref for ref in self._graphs if ref() is not None]
        return [record for record in (ref() for ref in self._graphs) if record is not None]

    def add(self, record: GraphRecord) -> None:
        self._graphs.append(weakref.ref(record))
        for listener in self.listeners:
            listener(record)

    def first(self, line: str) -> bool:
        """Whether nobody has asked for this line before: it is logged once per process."""
        new = line not in self.logged
        self.logged.add(line)
        return new

    def log_cause(self, cause: str, where: str, detail: str = "") -> None:
        """One line per cause and process; `detail` says more about the first case."""
        if self.first(cause):
            log.warning("runs through ATen: %s (first seen in %s)", detail or cause, where)

    def clear(self) -> None:
        self._graphs.clear()
        self.logged.clear()
        self.runtime_fallbacks.clear()
        self.since_us = time.time_ns() // 1000


REGISTRY = Registry()


@contextmanager
def recording():
    """Collects the records of the graphs compiled inside the block."""
    found: list[GraphRecord] = []
    REGISTRY.listeners.append(found.append)
    try:
        yield found
    finally:
        REGISTRY.listeners.remove(found.append)


@contextmanager
def timed(record: GraphRecord):
    begin = time.perf_counter()
    try:
        yield
    finally:
        record.seconds += time.perf_counter() - begin
