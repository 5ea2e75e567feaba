"""torch's profiler sees the collectives under the backend's name, as it sees NCCL's and Gloo's."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.conftest import has_extension
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def profiled(rank: int, world: int) -> dict[str, tuple[int, bool]]:
    x, parts = torch.ones(8), [torch.empty(8) for _ in range(world)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            dist.all_reduce(x)
        dist.all_gather(parts, x, async_op=True).wait()
        (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
        dist.barrier()
    events: dict[str, tuple[int, bool]] = {}
    for event in profile.events():
        if event.name.startswith("ark:"):
            count, is_async = events.get(event.name, (0, True))
            events[event.name] = (count + 1, is_async and event.is_async)
    return events


def test_names_and_counts():
    for rank, events in enumerate(values(run_ranks(profiled, 2, seconds=30))):
        point = "ark:send" if rank == 0 else "ark:recv"
        expected = {"ark:all_reduce": 3, "ark:all_gather": 1, point: 1, "ark:barrier": 1}
        assert events == {name: (count, True) for name, count in expected.items()}
