"""Tokens for a streamer while the launch that makes them is under way."""

from __future__ import annotations

import threading

import torch

_SECONDS = 1e-3  # between two looks


class Follower:
    """A thread that reads `table` [batch, columns] as far as `slot` [] tells, both written by a launch that runs within
    the `with` block, and calls `streamer.put` with every new column, [batch] on the CPU. What that raises is raised
    when the block ends. `slot` is the first column that is not there; before the block those before it have been put.

    An iteration stores its column and its slot in any order. So the column before the slot counts as there only when
    the next iteration has moved the slot on. Where the iterations are no single launch nothing moves, and `finish`
    puts everything."""

    def __init__(self, streamer, slot: torch.Tensor, table: torch.Tensor):
        self.streamer, self.slot, self.table = streamer, slot, table
        self.next = int(slot)
        self.over, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self._run, name="ark streamer", daemon=True)
        self.stream = None
        if table.is_cuda:  # all that may wait for the device is made before the launch
            self.copies = [torch.empty_like(x, device="cpu", pin_memory=True) for x in (slot, table)]
            self.stream = torch.cuda.Stream(table.device)
            self.stream.wait_stream(torch.cuda.current_stream(table.device))

    def __enter__(self) -> Follower:
        self.thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self.over.set()
        self.thread.join()
        if self.error is not None and kind is None:
            raise self.error

    def finish(self, sequences: torch.Tensor) -> None:
        """Puts what is left of [batch, length], after the block."""
        self._put(sequences.cpu(), sequences.size(1))
        self.streamer.end()

    @torch.no_grad()
    def _run(self) -> None:
        try:
            while not self.over.wait(_SECONDS):
                end = int(self._copied(0, self.slot)) - 1
                if end > self.next:
                    self._put(self._copied(1, self.table), end)
        except BaseException as error:
            self.error = error

    def _copied(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """On the CPU, as the launch has left it by now. Whole: what has strides would need a kernel of its own, for
        which the launch leaves no room."""
        if self.stream is None:
            return x
        with torch.cuda.stream(self.stream):
            self.copies[place].copy_(x, non_blocking=True)
        self.stream.synchronize()
        return self.copies[place]

    def _put(self, table: torch.Tensor, end: int) -> None:
        while self.next < end:
            self.streamer.put(table[:, self.next].clone())
            self.next += 1


__all__ = ["Follower"]
