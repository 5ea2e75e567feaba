"""Ranks that are killed or stay away, on the host and on GPUs: what the others hear, and that they can start again."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.distributed_worker import run_ranks, values

VICTIM = 1
KILLED_SECONDS = 8  # time-out of the group, one of whose ranks is killed
ABSENT_SECONDS = {"cpu": 2, "cuda": 5}  # of groups, one of whose ranks stays away
LATE_SECONDS = 6  # what an exception may take beyond a time-out, and a group to end
CALLS = 200  # under way when a rank is killed
ENDED = 4  # of them before that

# Of a call that was numbered, on the host or on a GPU.
NUMBERED = r"(?:{0} number|collective number) (\d+)(?: of group|, {0} )"
# A rank says itself who is missing, or hears it from another one ("did not arrive in time, or disagreed, at rank 2").
MISSING = rf"rank {VICTIM}( \(process \d+\) has died| did not (arrive|end the collective|offer its memory))"


def backend(device: str) -> str:
    return "ark" if device == "cuda" else "cpu:ark"


def wait_for(what: Callable[[], object], seconds: float = 60) -> object:
    end = time.monotonic() + seconds
    while not (result := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.001)
    return result


def raised(call: Callable[[], object]) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        call()
        text = "no error"
    except (RuntimeError, ValueError) as error:
        text = str(error)
    return text, time.monotonic() - begin


def end_of_device(device: str, group: dist.ProcessGroup | None = None) -> None:
    """All that was called has ended; raises if it has failed."""
    import ark_torch.distributed as ark

    if device == "cuda":
        torch.cuda.synchronize()
    ark.check(group)


def start(store: dist.Store, rank: int, world: int, device: str) -> None:
    timeout = timedelta(seconds=KILLED_SECONDS)
    dist.init_process_group(backend(device), store=store, rank=rank, world_size=world, timeout=timeout)


def store_of_survivors(folder: Path, rank: int, world: int) -> dist.Store:
    """On a port of its own, of which the first rank tells the others by a file."""
    file, timeout = folder / "port", timedelta(seconds=60)
    if rank > 0:
        wait_for(file.exists)
        return dist.TCPStore("127.0.0.1", int(file.read_text()), world, False, timeout)
    store = dist.TCPStore("127.0.0.1", 0, world, True, timeout, wait_for_workers=False)
    (folder / "writing").write_text(str(store.port))
    (folder / "writing").rename(file)
    return store


def check_group(rank: int, world: int, device: str) -> None:
    for size in (5, 1 << 20):
        x = torch.full((size,), rank + 1.0, device=device)
        dist.all_reduce(x)
        assert (x == sum(r + 1 for r in range(world))).all(), size
        gathered = torch.empty(size * world, device=device)
        dist.all_gather_into_tensor(gathered, torch.full((size,), float(rank), device=device))
        assert torch.equal(gathered, torch.arange(float(world), device=device).repeat_interleave(size)), size
        exchanged = torch.empty(world, device=device)
        dist.all_to_all_single(exchanged, torch.arange(float(world), device=device) + 10 * rank)
        assert exchanged.tolist() == [10.0 * r + rank for r in range(world)]
    dist.barrier()
    end_of_device(device)


def killed(rank: int, world: int, device: str, folder: str) -> tuple[str, float, float]:
    """The victim ends in the middle of collectives; the others hear of it, leave the group and make one without it:
    the text, seconds until it came, seconds that the end of the group took."""
    dist.barrier()  # all are there: from now on time-outs may be short
    dist.destroy_process_group()
    start(dist.FileStore(f"{folder}/first", world), rank, world, device)
    x = torch.ones(1 << (28 if device == "cuda" else 20), device=device)
    dist.all_reduce(x)
    works = [dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True) for _ in range(CALLS)]
    if rank == VICTIM:
        wait_for(works[ENDED - 1].is_completed)
        os.kill(os.getpid(), signal.SIGKILL)

    def finish() -> None:
        for work in works:
            work.wait()
        end_of_device(device)

    text, seconds = raised(finish)
    works.clear()
    begin = time.monotonic()
    dist.destroy_process_group()
    end = time.monotonic() - begin
    others = [r for r in range(world) if r != VICTIM]
    again = others.index(rank)
    start(store_of_survivors(Path(folder), again, len(others)), again, len(others), device)
    check_group(again, len(others), device)
    return text, seconds, end


def absences(world: int, device: str) -> dict[str, Callable[[dist.ProcessGroup], object]]:
    """The first word is the operation's name in texts."""
    ones = lambda n: torch.ones(n, device=device)
    uneven = [r + 1 for r in range(world)]
    return {
        "all_reduce": lambda g: dist.all_reduce(ones(4), group=g),
        "all_reduce, large": lambda g: dist.all_reduce(ones(1 << 23), group=g),
        "all_gather": lambda g: dist.all_gather_into_tensor(ones(4 * world), ones(4), group=g),
        "broadcast": lambda g: dist.broadcast(ones(1 << 20), src=0, group=g),
        "all_to_all": lambda g: dist.all_to_all_single(
            ones((dist.get_rank() + 1) * world), ones(sum(uneven)), [dist.get_rank() + 1] * world, uneven, group=g
        ),
        "all_reduce, the first call": lambda g: dist.all_reduce(ones(4), group=g),
    }


def absent(rank: int, world: int, device: str) -> dict[str, tuple[str, float]]:
    """The victim makes the calls before, and not this one. The broken groups are left for the end of the process."""
    texts = {}
    for name, call in absences(world, device).items():
        group = dist.new_group(list(range(world)), timeout=timedelta(seconds=ABSENT_SECONDS[device]))
        for _ in range(0 if "first" in name else 3):
            dist.all_reduce(torch.ones(4, device=device), group=group)
        end_of_device(device, group)
        dist.barrier()
        if rank != VICTIM:
            texts[name] = raised(lambda call=call, group=group: (call(group), end_of_device(device, group)))
        dist.barrier()
    x = torch.ones(4, device=device)
    dist.all_reduce(x)  # other groups go on
    assert (x == world).all()
    return texts


def left_behind(folder: Path) -> set[str]:
    """What groups have put into places that outlive processes: shared memory with a name, and sockets. Groups use no
    named semaphores: those are of queues, each as old as the test that runs beside this one."""
    shared = {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}
    return {str(path) for path in shared | set(folder.glob("ark-*"))}


def wait_for_nothing_but(before: set[str], folder: Path) -> None:
    """What other processes have there for a moment is no concern."""
    try:
        wait_for(lambda: left_behind(folder) <= before)
    except TimeoutError:
        raise AssertionError(f"left behind: {sorted(left_behind(folder) - before)}") from None


def run_and_leave_nothing(function: Callable, world: int, device: str, folder: Path, monkeypatch, dies: bool) -> list:
    """What the ranks return; all have ended by themselves."""
    monkeypatch.setenv("TMPDIR", str(folder))
    before, codes = left_behind(folder), []
    results = run_ranks(
        functools.partial(function, device=device), world, backend(device), 60, int(dies), exit_codes=codes
    )
    assert codes == [-signal.SIGKILL if dies and r == VICTIM else 0 for r in range(world)], codes
    wait_for_nothing_but(before, folder)
    return values(results)


def check_killed(world: int, device: str, folder: Path, monkeypatch) -> None:
    function = functools.partial(killed, folder=str(folder))
    ranks = run_and_leave_nothing(function, world, device, folder, monkeypatch, dies=True)
    assert len(ranks) == world - 1
    for text, seconds, end in ranks:
        number = re.search(NUMBERED.format("all_reduce"), text)
        assert number and ENDED <= int(number[1]) <= CALLS and re.search(MISSING, text), text
        assert seconds < KILLED_SECONDS + LATE_SECONDS and end < LATE_SECONDS, (seconds, end)


def check_absent(world: int, device: str, folder: Path, monkeypatch) -> None:
    ranks = run_and_leave_nothing(absent, world, device, folder, monkeypatch, dies=False)
    for rank, texts in enumerate(ranks):
        assert len(texts) == (0 if rank == VICTIM else len(absences(world, device)))
        for name, (text, seconds) in texts.items():
            first = "first" in name
            # Before memory is mapped it is not known what a collective is.
            named = r"(?:all_reduce|collective) number (\d+)" if first else NUMBERED.format(name.split(",")[0])
            number = re.search(named, text)
            assert number and int(number[1]) == (0 if first else 3) and re.search(MISSING, text), (name, text)
            assert seconds < ABSENT_SECONDS[device] + LATE_SECONDS, (name, seconds)
