"""Two programs that train take turns, a step each, so that what disturbs a machine disturbs both alike.

Each program is a script that runs as it is: it makes a pair of timing events at the start of every step (and no
others), records the first when the step begins and the second when it ends. `take_turns` puts a `torch.cuda.Event` in
place that waits, in front of each pair, until all ranks of the other program have ended their step; events that
libraries make (compilers time their kernels by them) are no steps. Ranks meet in a TCPStore of the process that has
started them. `Table` is that process's side.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch.distributed import TCPStore

HOST = "127.0.0.1"
PORT, NAME = "ARK_BENCHMARK_PORT", "ARK_BENCHMARK_PROGRAM"
FAILED = "failed"
DEADLINE = 180.0  # seconds that a step, or starting, may take


class Table:
    """The store at which programs meet; `environment` is what the ranks of one need to find it."""

    def __init__(self) -> None:
        self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))

    def environment(self, program: str) -> dict[str, str]:
        return {PORT: str(self.store.port), NAME: program}

    def times(self, program: str, ranks: int) -> list[float]:
        """Milliseconds of each step, of the slowest rank."""
        of_ranks = [json.loads(self.store.get(f"times of {program}, {rank}")) for rank in range(ranks)]
        return [max(step) for step in zip(*of_ranks, strict=True)]


class Turns:
    """One rank's side: counts its steps, and waits for the other program's."""

    def __init__(self, programs: tuple[str, str]) -> None:
        self.store = TCPStore(HOST, int(os.environ[PORT]), is_master=False, timeout=timedelta(seconds=10))
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.own = os.environ[NAME]
        first, second = programs
        self.other, self.lag = (second, 1) if self.own == first else (first, 0)
        self.events: list[torch.cuda.Event] = []

    def ended(self) -> None:
        torch.cuda.synchronize()
        self.store.add(f"ended by {self.own}", 1)

    def wait(self) -> None:
        """Before step n of the first program the second has ended n - 1, before step n of the second the first n."""
        step = len(self.events) // 2
        if step > 0:
            self.ended()
        need, limit = (step + 1 - self.lag) * self.ranks, time.monotonic() + DEADLINE
        while (seen := self.store.add(f"ended by {self.other}", 0)) < need:
            if self.store.add(FAILED, 0):
                raise RuntimeError(f"{self.own}: another rank has failed, in step {step}")
            if time.monotonic() > limit:
                raise TimeoutError(f"{self.other} has ended {seen} steps of its ranks, expected {need} in {DEADLINE} s")
            time.sleep(5e-4)

    def finish(self) -> None:
        self.ended()
        pairs = zip(self.events[::2], self.events[1::2], strict=True)
        times = [begin.elapsed_time(end) for begin, end in pairs]
        self.store.set(f"times of {self.own}, {self.rank}", json.dumps(times))


@contextlib.contextmanager
def take_turns(programs: tuple[str, str], script: str) -> Iterator[None]:
    """The script (its path) that runs inside, one of the `programs`, waits for its turn before each of its steps."""
    turns, plain = Turns(programs), torch.cuda.Event

    class Event(plain):  # a class, as users may inherit from it or name it as a type
        def __new__(cls, enable_timing: bool = False, **options: bool) -> torch.cuda.Event:
            step = enable_timing and os.path.realpath(sys._getframe(1).f_code.co_filename) == os.path.realpath(script)
            if step and len(turns.events) % 2 == 0:
                turns.wait()
            event = super().__new__(cls, enable_timing=enable_timing, **options)
            if step:
                turns.events.append(event)
            return event

    torch.cuda.Event = Event
    try:
        yield
        turns.finish()
    except BaseException:
        turns.store.add(FAILED, 1)
        raise
    finally:
        torch.cuda.Event = plain
