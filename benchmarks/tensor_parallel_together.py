"""How the ranks of tensor_parallel.py agree on what works, and how they time a call that all of them make."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from harness import HEAD_START_CYCLES

GRACE = 90.0  # seconds that a rank with an error waits for the others


class Together:
    """The ranks, at the starter's store."""

    def __init__(self, port: int, rank: int, world: int, limit: float):
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=limit))
        self.rank, self.world, self.limit, self.turn = rank, world, limit, 0

    def everybody(self, value: object, seconds: float | None = None) -> list:
        """What all ranks say, in their order."""
        self.turn += 1
        keys = [f"{self.turn} of {rank}" for rank in range(self.world)]
        self.store.set(keys[self.rank], json.dumps(value))
        self.store.wait(keys, timedelta(seconds=seconds or self.limit))
        return [json.loads(self.store.get(key)) for key in keys]

    def say(self, line: str) -> None:
        """To the starter."""
        if self.rank == 0:
            print(line, flush=True)

    def attempt(self, do: Callable[[], object]) -> tuple[object, str]:
        """What `do` gives here, and the error of the first rank that has one. Ends the process where the device is
        lost, or where ranks without an error do not come (they wait for this one, inside)."""
        result, error = None, ""
        try:
            result = do()
            synchronize()
        except Exception as caught:
            traceback.print_exc()
            error = " ".join(f"{type(caught).__name__}: {caught}"[:500].split())
            try:
                synchronize()
            except Exception:
                sys.exit(error)
        try:
            errors = self.everybody(error, GRACE if error else None)
        except dist.DistStoreError:
            sys.exit(error or "the other ranks did not come")
        return result, next((f"rank {rank}: {text}" for rank, text in enumerate(errors) if text), "")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Clock:
    """Milliseconds of one call on this rank: of its GPU, from when all ranks were there; on CPUs by the clock. The L2
    cache is filled with something else before, and the GPU kept busy while the CPU prepares the call."""

    def __init__(self, group: dist.ProcessGroup, cuda: bool):
        self.group, self.cuda = group, cuda
        if cuda:
            self.flush = torch.zeros(64 << 20, device="cuda")
            self.meeting = torch.zeros(1, device="cuda")

    def gpu(self, call: Callable[[], object]) -> float:
        if not self.cuda:
            return self.wall(call)
        self.flush.sum()
        torch.cuda._sleep(HEAD_START_CYCLES)
        dist.all_reduce(self.meeting, group=self.group)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def wall(self, call: Callable[[], object]) -> float:
        dist.barrier(group=self.group)
        synchronize()
        begin = time.perf_counter()
        call()
        synchronize()
        return (time.perf_counter() - begin) * 1e3
