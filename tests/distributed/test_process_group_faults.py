"""What goes elsewhere or wrong on the host: delegation to Gloo, calls that one rank refuses, texts of errors, strangers
at the socket, a batch of everything that is coalesced, tensors without elements."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.conftest import has_extension
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def a_group(world: int, seconds: float = 30) -> dist.ProcessGroup:
    return dist.new_group(list(range(world)), backend="cpu:ark", timeout=timedelta(seconds=seconds))


def raised(call, *arguments) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        call(*arguments)
        text = "no error"
    except (RuntimeError, ValueError) as error:
        text = str(error)
    return text, time.monotonic() - begin


@contextlib.contextmanager
def standard_error(file: Path) -> Iterator[None]:
    before = os.dup(2)
    with open(file, "w") as out:
        os.dup2(out.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def sparse(rank: int, world: int) -> tuple[dict[str, int], str]:
    """Goes to Gloo, in order with ark's own collectives."""
    import ark_torch.distributed as ark

    log = Path(f"{os.environ['ARK_TEST_STORE']}.{rank}.log")
    with standard_error(log):
        sparse_sums(rank, world)
    return ark.delegated_calls(), log.read_text()


def sparse_sums(rank: int, world: int) -> None:
    group = a_group(world)
    for _ in range(2):
        x = (torch.eye(3) * (rank + 1)).to_sparse()
        work = dist.all_reduce(x, async_op=True, group=group)
        y = torch.ones(5)
        dist.all_reduce(y, group=group)
        work.wait()
        assert torch.equal(x.to_dense(), torch.eye(3) * sum(r + 1 for r in range(world)))
        assert (y == world).all()
    dist.destroy_process_group(group)  # its calls stay counted


def refused_by_one(rank: int, world: int) -> tuple[str, float]:
    group = a_group(world, 60)
    dist.barrier(group=group)
    wrong = torch.empty(7 if rank == 1 else 4 * world)
    return raised(lambda: dist.all_gather_into_tensor(wrong, torch.ones(4), group=group))


def refused_by_all(rank: int, world: int) -> None:
    """At different times; the group goes on."""
    group = a_group(world)
    for i in range(3):
        time.sleep(0.05 * ((rank + i) % world))
        text, _ = raised(lambda: dist.all_gather_into_tensor(torch.empty(7), torch.ones(4), group=group))
        assert "expected an output of" in text, text
        if i == 1:
            continue  # two in a row
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert (x == world).all()


def disagreements(rank: int, world: int) -> dict[str, str]:
    """Each after some collectives in a group of its own."""
    odd = rank == 1
    ops = dist.ReduceOp
    calls = {
        "all_reduce": lambda g: dist.all_reduce(torch.ones(4 + odd), group=g),
        "all_gather": lambda g: dist.all_gather_into_tensor(
            torch.ones((4 + odd) * world), torch.ones(4 + odd), group=g
        ),
        "reduce_scatter": lambda g: dist.reduce_scatter_tensor(
            torch.ones(4), torch.ones(4 * world), op=ops.MAX if odd else ops.SUM, group=g
        ),
        "of 4 f32 (with a factor), sum": lambda g: dist.all_reduce(
            torch.ones(4), op=dist._make_nccl_premul_sum(2.0) if odd else ops.SUM, group=g
        ),
        "broadcast": lambda g: dist.broadcast(torch.ones(4), src=int(odd), group=g),
        "barrier": lambda g: dist.all_reduce(torch.ones(1), group=g) if odd else dist.barrier(group=g),
        "all_to_all": lambda g: dist.all_to_all_single(
            torch.ones(2 * world), torch.ones(2 * world + odd), [2] * world, [2 + odd] + [2] * (world - 1), group=g
        ),
        "all_gather number 3 of 48 bytes, sizes by rank": lambda g: dist.all_gather(
            [torch.ones(4 + (odd and r == 0)) for r in range(world)], torch.ones(4), group=g
        ),
        "reduce_scatter number 3 of 7 f32, sizes by rank": lambda g: dist.reduce_scatter(
            torch.ones(rank + 1), [torch.ones(r + 1 + (odd and r == 0)) for r in range(world)], group=g
        ),
    }
    texts = {}
    for name, call in calls.items():
        group = a_group(world, 20)
        for _ in range(3):
            dist.barrier(group=group)
        text, seconds = raised(call, group)
        assert seconds < 15, (name, text)
        texts[name] = text
    return texts


def absent(rank: int, world: int) -> str:
    group = a_group(world, 1)
    dist.barrier(group=group)
    text = ""
    if rank != 1:
        text, seconds = raised(lambda: dist.all_reduce(torch.ones(4), group=group))
        assert seconds < 10
    dist.barrier()
    return text


def strangers(rank: int, world: int) -> None:
    """Who knocks at the socket without the token gets nothing and does no harm; the folder is its owner's alone."""
    if rank == 0:
        folder = Path(os.environ["TMPDIR"])
        seen = set()
        end = time.monotonic() + 20
        while time.monotonic() < end and not seen:  # rank 1's: it waits for rank 0, which has not begun
            for path in folder.glob("ark-*/s"):
                if path.parent.stat().st_mode & 0o777 != 0o700:
                    raise AssertionError(path)
                knock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                knock.settimeout(5)
                knock.connect(str(path))
                knock.send(bytes(36))
                assert knock.recv(1) == b""  # turned away
                knock.close()
                seen.add(path)
            time.sleep(0.01)
        assert seen
    group = a_group(world)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert (x == world).all()
    dist.barrier()
    assert list(Path(os.environ["TMPDIR"]).glob("ark-*")) == []
    dist.barrier()


def two_jobs(rank: int, world: int) -> None:
    """Two groups of equal names at a time, each with a store of its own."""
    from ark_torch import _C

    stores = [dist.PrefixStore(name, dist.distributed_c10d._get_default_store()) for name in ("one", "two")]
    jobs = [_C.ProcessGroupArk(store, rank, world, timedelta(seconds=20), "job") for store in stores]
    for i, job in enumerate(jobs):
        x = torch.tensor([float(rank + 10 * i)])
        job.allreduce([x]).wait()
        assert x.item() == sum(r + 10 * i for r in range(world))
    for job in jobs:
        job.shutdown()


def coalesced(rank: int, world: int) -> None:
    group = a_group(world)
    xs = [torch.full((n,), float(rank + n)) for n in (1, 5, 1000)]
    with dist._coalescing_manager(group=group, async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x, group=group)
    manager.wait()
    assert all((x == sum(r + len(x) for r in range(world))).all() for x in xs)
    outs = [torch.empty(world * n) for n in (2, 7)]
    with dist._coalescing_manager(group=group):
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((len(out) // world,), float(rank)), group=group)
    assert all(torch.equal(o, torch.arange(float(world)).repeat_interleave(len(o) // world)) for o in outs)
    parts = [torch.empty(3), torch.empty(8)]
    with dist._coalescing_manager(group=group):
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(len(part) * world), group=group)
    assert all((part == world).all() for part in parts)
    future = dist.all_reduce(torch.ones(2), async_op=True, group=group).get_future()
    assert future.then(lambda f: f.value()[0].sum().item() + 1).wait() == 2 * world + 1


def nothing(rank: int, world: int) -> None:
    """Tensors without elements in every call."""
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.reduce(empty, 0)
    dist.broadcast(torch.empty(0, 3), 0)
    dist.all_gather_into_tensor(torch.empty(0), empty)
    dist.all_gather([torch.empty(0) for _ in range(world)], empty)
    dist.reduce_scatter_tensor(torch.empty(0), empty)
    dist.all_to_all_single(torch.empty(0), empty)
    dist.all_to_all([torch.empty(0) for _ in range(world)], [torch.empty(0) for _ in range(world)])
    dist.gather(empty, [torch.empty(0) for _ in range(world)] if rank == 0 else None)
    dist.scatter(torch.empty(0), [torch.empty(0) for _ in range(world)] if rank == 0 else None)
    if rank == 0:
        dist.send(empty, 1)
    elif rank == 1:
        dist.recv(torch.empty(0), 0)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == world


FUNCTIONS = (sparse, refused_by_one, refused_by_all, disagreements, absent, strangers, two_jobs, coalesced, nothing)


def together(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(FUNCTIONS, rank, world)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, request) -> list[dict]:
    folder = tmp_path_factory.mktemp("sockets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("ARK_TEST_STORE", str(folder / "store"))
        return values(run_ranks(together, 3, seconds=60))


def of(ranks: list[dict], function) -> list:
    return values({rank: results[function.__name__] for rank, results in enumerate(ranks)})


@pytest.mark.parametrize(
    "function", [refused_by_all, strangers, two_jobs, coalesced, nothing], ids=lambda f: f.__name__
)
def test_function(ranks, function):
    of(ranks, function)


def test_sparse_tensors_go_to_gloo_visibly(ranks):
    for delegated, log in of(ranks, sparse):
        assert delegated == {"all_reduce of sparse tensors": 2}
        assert log.count("all_reduce of sparse tensors goes to Gloo") == 1, log


def test_a_call_that_one_rank_refuses_raises_on_all_at_once(ranks):
    for rank, (text, seconds) in enumerate(of(ranks, refused_by_one)):
        assert seconds < 20, text
        if rank == 1:
            assert "expected an output of 12 elements" in text, text
        else:
            assert "all_gather number 1 of group" in text and "rank 1 refused its call of the same number" in text, text


def test_disagreements_name_ranks_operations_and_numbers(ranks):
    for texts in of(ranks, disagreements):
        for name, text in texts.items():
            assert "number 3" in text and name in text, (name, text)
            assert "rank 1" in text and ("disagree" in text or "sends" in text), (name, text)


def test_a_rank_that_does_not_come_is_named(ranks):
    for rank, text in enumerate(of(ranks, absent)):
        assert rank == 1 or "all_reduce number 1 of group" in text and "rank 1 did not arrive" in text, text
