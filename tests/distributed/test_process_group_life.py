"""A group's end on the host: what it gives back, what happens to calls under way, groups made after it."""

from __future__ import annotations

import gc
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.conftest import has_extension
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def held() -> tuple[int, int, int]:
    """Shared mappings, file descriptors, threads of this process."""
    maps = Path("/proc/self/maps").read_text().count("ark-symmetric")
    return maps, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def leaks(rank: int, world: int) -> tuple[tuple, tuple]:
    def use_a_group() -> None:
        group = dist.new_group(list(range(world)), backend="cpu:ark")
        dist.all_reduce(torch.ones(1 << 20), group=group)
        works = [dist.isend(torch.ones(9), 1 - rank, group=group), dist.irecv(torch.ones(9), 1 - rank, group=group)]
        for work in works:
            work.wait()
        dist.destroy_process_group(group)

    use_a_group()
    before = held()
    for _ in range(10):
        use_a_group()
    gc.collect()
    return before, held()


def pending_receive(rank: int, world: int) -> tuple[float, str]:
    work = dist.irecv(torch.zeros(1), 1) if rank == 0 else None
    if rank == 0:
        time.sleep(0.2)
    begin = time.monotonic()
    dist.destroy_process_group()
    seconds, text = time.monotonic() - begin, ""
    if work is not None:
        try:
            work.wait()
        except RuntimeError as error:
            text = str(error)
    return seconds, text


def pending_collective(rank: int, world: int) -> tuple[float, list[str]]:
    """Rank 1 never calls it."""
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)] if rank == 0 else []
    begin = time.monotonic()
    dist.destroy_process_group()
    seconds, texts = time.monotonic() - begin, []
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            texts.append(str(error))
    return seconds, texts


def unwaited_sends_arrive(rank: int, world: int) -> None:
    """Long messages that are on their way when the sender destroys the group."""
    group = dist.new_group([0, 1], backend="cpu:ark")
    if rank == 0:
        dist.isend(torch.full((2_000_000,), 7.0), 1, group=group)
        dist.destroy_process_group(group)
    else:
        time.sleep(0.3)
        out = torch.zeros(2_000_000)
        dist.recv(out, 0, group=group)
        assert (out == 7).all()
        dist.destroy_process_group(group)
    dist.barrier()


def peer_has_left(rank: int, world: int) -> tuple[str, float]:
    group = dist.new_group([0, 1], backend="cpu:ark")
    dist.barrier(group=group)
    if rank == 1:
        dist.destroy_process_group(group)
    begin, text = time.monotonic(), "no error"
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            text = str(error)
    seconds = time.monotonic() - begin
    dist.barrier()
    return text, seconds


def used_after_its_end(rank: int, world: int) -> list[str]:
    from ark_torch.distributed import backend_of

    group = dist.new_group([0, 1], backend="cpu:ark")
    backend = backend_of(group)
    dist.destroy_process_group(group)
    texts = []
    for call in (
        lambda: backend.allreduce([torch.ones(1)]),
        lambda: backend.barrier(),
        lambda: backend.send([torch.ones(1)], 1 - rank, 0),
        lambda: backend.recv([torch.ones(1)], 1 - rank, 0),
    ):
        try:
            call()
            texts.append("no error")
        except RuntimeError as error:
            texts.append(str(error))
    backend.shutdown()  # again: nothing to do
    backend.abort()
    return texts


def same_name_in_the_same_store(rank: int, world: int) -> None:
    """What a group leaves in the store must not lead the next group of that name astray."""
    from ark_torch import _C

    path = [os.path.join(os.environ.get("TMPDIR", "/tmp"), f"ark-test-{os.getpid()}")]
    dist.broadcast_object_list(path, src=0)
    for round_number in range(3):
        store = dist.FileStore(path[0], world)
        group = _C.ProcessGroupArk(store, rank, world, timedelta(seconds=10), "again")
        x = torch.tensor([float(rank + round_number)])
        group.allreduce([x]).wait()
        assert x.item() == sum(r + round_number for r in range(world))
        group.shutdown()
        dist.barrier()


def never_comes(rank: int, world: int) -> tuple[str, float]:
    """Rank 1 does not make the group."""
    from ark_torch import _C

    store = dist.PrefixStore("alone", dist.distributed_c10d._get_default_store())
    text, begin = "", time.monotonic()
    if rank == 0:
        try:
            _C.ProcessGroupArk(store, rank, world, timedelta(seconds=1), "alone")
        except RuntimeError as error:
            text = str(error)
    seconds = time.monotonic() - begin
    dist.barrier()
    return text, seconds


def greet(rank: int, world: int) -> None:
    dist.barrier()


def test_who_never_comes_is_named():
    text, seconds = values(run_ranks(never_comes, 2))[0]
    assert "group alone, rank 0: rank 1 has not come to make the group" in text and 0.9 < seconds < 10, text


def test_what_killed_processes_left_is_removed(tmp_path, monkeypatch):
    """Folders of sockets that nobody listens to, once they are old."""

    def folder(name: str, age: float, listens: bool) -> Path:
        path = tmp_path / name
        path.mkdir(mode=0o700)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.bind(str(path / "s"))
        if listens:
            door.listen()
            doors.append(door)
        else:
            door.close()
        os.utime(path, (time.time() - age,) * 2)
        return path

    doors: list[socket.socket] = []
    left, fresh, used = (
        folder("ark-left00", 100, False),
        folder("ark-fresh0", 0, False),
        folder("ark-used00", 100, True),
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    values(run_ranks(greet, 2))
    assert not left.exists() and fresh.exists() and used.exists()
    for door in doors:
        door.close()


def test_destroyed_groups_leave_nothing():
    for before, after in values(run_ranks(leaks, 2)):
        assert after == before


def test_destroying_ends_a_receive_that_nothing_comes_for():
    for rank, (seconds, text) in enumerate(values(run_ranks(pending_receive, 2, seconds=40))):
        assert seconds < 3
        assert rank == 1 or "receive number 0 from rank 1" in text and "destroyed" in text, text


def test_destroying_ends_collectives_that_others_never_call():
    for rank, (seconds, texts) in enumerate(values(run_ranks(pending_collective, 2, seconds=60))):
        assert seconds < 9
        assert rank == 1 or len(texts) == 2 and all("destroyed" in text for text in texts), texts


@pytest.mark.parametrize("function", [unwaited_sends_arrive, same_name_in_the_same_store])
def test_function(function):
    values(run_ranks(function, 2, seconds=30))


def test_who_waits_for_a_rank_that_has_left_raises_at_once():
    text, seconds = values(run_ranks(peer_has_left, 2, seconds=60))[0]
    assert "all_reduce number 1" in text and "rank 1 has destroyed the group" in text and seconds < 5, text


def test_a_destroyed_group_refuses_calls():
    for texts in values(run_ranks(used_after_its_end, 2, seconds=30)):
        assert all("has been destroyed" in text for text in texts), texts
