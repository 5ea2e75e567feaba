"""Who calls a group on the host, and with what: several threads, forked processes, callbacks, types that differ over
ranks, arguments that would write past a tensor, operations that a type does not have."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.conftest import has_extension
from tests.distributed.test_process_group_faults import a_group, raised
from tests.support.distributed_worker import run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


LANES = 4  # threads for each peer


def threads(rank: int, world: int) -> None:
    """All start together in a fresh group."""
    for _ in range(20):
        group = a_group(world)
        gate = threading.Barrier((world - 1) * LANES)
        errors = []

        def talk(
            peer: int,
            lane: int,
            group: dist.ProcessGroup = group,
            gate: threading.Barrier = gate,
            errors: list = errors,
        ):
            try:
                gate.wait()
                for i in range(5):
                    got = torch.zeros(7)
                    received = dist.irecv(got, peer, group=group, tag=lane)
                    dist.send(torch.full((7,), float(100 * rank + 10 * lane + i)), peer, group=group, tag=lane)
                    received.wait()
                    assert (got == 100 * peer + 10 * lane + i).all(), got
            except Exception as error:
                errors.append(error)

        pairs = [(peer, lane) for peer in range(world) if peer != rank for lane in range(LANES)]
        talks = [threading.Thread(target=talk, args=pair) for pair in pairs]
        for thread in talks:
            thread.start()
        for thread in talks:
            thread.join()
        assert not errors, errors
        dist.destroy_process_group(group)


def exit_of_child(body: Callable[[], int]) -> int:
    """Of a process forked from this one; killed after 60 seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads around: that is what is tested
        child = os.fork()
    if child == 0:
        code = 99
        try:
            code = body()
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def forked(rank: int, world: int) -> None:
    """A child can neither use the group nor end it for its parent."""
    group = a_group(world)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)  # its threads are there
    pending = dist.irecv(torch.zeros(1), (rank + 1) % world, group=group)

    def child() -> int:
        calls = (
            lambda: dist.all_reduce(torch.ones(3), group=group),
            lambda: dist.barrier(group=group),
            lambda: dist.isend(torch.ones(3), (rank + 1) % world, group=group),
            lambda: dist.irecv(torch.ones(3), (rank + 1) % world, group=group),
        )
        refused = sum("was forked from" in raised(call)[0] for call in calls)
        dist.destroy_process_group(group)
        return refused

    assert exit_of_child(child) == 4
    dist.isend(torch.ones(1), (rank - 1) % world, group=group)
    pending.wait()
    dist.all_reduce(x, group=group)
    assert (x == world * world).all()


def callbacks(rank: int, world: int) -> None:
    """They may wait for what the group has still to do: collectives and receives, and the futures of both."""
    group = a_group(world)

    def reduced() -> torch.futures.Future:
        return dist.all_reduce(torch.ones(3), async_op=True, group=group).get_future()

    def another(_future: torch.futures.Future) -> torch.Tensor:
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        return x

    if rank == 0:
        time.sleep(0.1)  # so that the others' callbacks are there before what they are for has ended
    future = reduced().then(another)
    later = [dist.all_reduce(torch.ones(3), async_op=True, group=group) for _ in range(3)]  # alike: in any order
    assert (future.wait() == world).all()
    for work in later:
        work.wait()

    if rank == 0:
        time.sleep(0.1)
    inner = reduced().then(lambda _: reduced().wait()[0])  # as PowerSGD's hook does
    first, second = reduced(), reduced()
    crossed = first.then(lambda _: second.wait()[0])
    for future in (inner, crossed):
        assert (future.wait() == world).all()
    dist.barrier(group=group)

    peer, source = (rank + 1) % world, (rank - 1) % world
    values = torch.zeros(1), torch.zeros(1)
    received = dist.irecv(values[0], source, group=group)
    one_more = received.get_future().then(lambda _: dist.recv(values[1], source, group=group))
    for value in (1.0, 2.0):
        dist.send(torch.tensor([value]), peer, group=group)
    one_more.wait()
    assert [v.item() for v in values] == [1, 2]

    ended = []
    dist.all_reduce(torch.ones(3), async_op=True, group=group).get_future().then(lambda _: ended.append(rank))
    dist.destroy_process_group(group)
    assert ended == [rank]


def messages_ahead(rank: int, world: int) -> None:
    """Their time-out begins when somebody waits, as gloo's does; until then everything else goes on."""
    group = a_group(world, 2)
    next_one, before = (rank + 1) % world, (rank - 1) % world
    stop, big = torch.zeros(1), torch.zeros(5_000_000)
    asked = dist.irecv(stop, before, group=group, tag=7)
    sent = dist.isend(big + rank, next_one, group=group)  # more than the boxes hold
    for _ in range(3):
        time.sleep(1)
        dist.all_reduce(torch.ones(3), group=group)
    dist.recv(big, before, group=group)
    sent.wait()
    assert (big == before).all()
    dist.send(torch.tensor([5.0]), next_one, group=group, tag=7)
    asked.wait()
    assert stop.item() == 5
    dist.destroy_process_group(group)


def waits_that_end(rank: int, world: int) -> str:
    """By the time that wait() is given; the call itself goes on."""
    group = a_group(world)
    dist.barrier(group=group)
    text = ""
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True, group=group)
        text, seconds = raised(work.wait, timedelta(seconds=0.2))
        assert seconds < 5
    dist.barrier()
    if rank == 0:
        work.wait()
    else:
        dist.all_reduce(torch.ones(3), group=group)
    return text


def types_differ(rank: int, world: int) -> dict[str, str]:
    """As many bytes on every rank."""
    own = torch.int32 if rank == 1 else torch.float32
    ones = lambda n: torch.ones(n, dtype=own)
    several = lambda wanted=True: [ones(4) for _ in range(world)] if wanted else None
    calls = {
        "broadcast": lambda g: dist.broadcast(ones(4), 0, group=g),
        "all_gather": lambda g: dist.all_gather_into_tensor(ones(4 * world), ones(4), group=g),
        "gather": lambda g: dist.gather(ones(4), several(rank == 0), dst=0, group=g),
        "scatter": lambda g: dist.scatter(ones(4), several(rank == 0), src=0, group=g),
        "all_to_all": lambda g: dist.all_to_all_single(ones(4 * world), ones(4 * world), group=g),
        "reduce_scatter": lambda g: dist.reduce_scatter_tensor(ones(4), ones(4 * world), group=g),
    }
    texts = {}
    for name, call in calls.items():
        group = a_group(world)
        dist.barrier(group=group)
        texts[name], _ = raised(call, group)
    return texts


def refused(rank: int, world: int) -> dict[str, str]:
    """By every rank, before anything is touched: the group goes on."""
    from ark_torch.distributed import backend_of

    group = a_group(world)
    ones, ops = torch.ones, dist.ReduceOp
    backend = backend_of(group)

    def gathered_coalesced(out: torch.Tensor) -> None:
        with dist._coalescing_manager(group=group):
            for _ in range(2):
                dist.all_gather_into_tensor(out, ones(500), group=group)

    calls = {
        "an average, got Bool": lambda: dist.all_reduce(ones(4, dtype=torch.bool), op=ops.AVG, group=group),
        "for integers and bool, got Float": lambda: dist.all_reduce(ones(4), op=ops.BAND, group=group),
        "for integers and bool, got Half": lambda: dist.reduce_scatter_tensor(
            ones(4).half(), ones(4 * world).half(), op=ops.BXOR, group=group
        ),
        f"expected an output of {500 * world} elements of Float, got 5": lambda: gathered_coalesced(ones(5)),
        f"of Float, got {500 * world} of Char": lambda: gathered_coalesced(ones(500 * world, dtype=torch.int8)),
        "expected 3 elements for this rank, got 4": lambda: dist.reduce_scatter(
            ones(3), [ones(4)] * world, group=group
        ),
        "all tensors of Float, got one of Half": lambda: backend.reduce_scatter([ones(4)], [[ones(4).half()] * world]),
        "all tensors of Char, got one of Float": lambda: backend.alltoall(
            [ones(4, dtype=torch.int8)] + [ones(4)] * (world - 1), [ones(4, dtype=torch.int8)] * world
        ),
        "all_reduce: expected a tensor to write whose elements each have a place of their own, got sizes [5] and "
        "strides [0]": lambda: dist.all_reduce(ones(1).expand(5), group=group),
        "reduce: expected a tensor to write": lambda: dist.reduce(ones(1).expand(5), dst=0, group=group),
        "all_reduce_coalesced: expected a tensor to write": lambda: dist.all_reduce_coalesced(
            [ones(1), ones(1).expand(5)], group=group
        ),
        "broadcast: expected a tensor to write": lambda: dist.broadcast(ones(1).expand(5), src=0, group=group),
        "all_gather: expected a tensor to write": lambda: dist.all_gather(
            [ones(4, 1).expand(4, 5)] * world, ones(4, 5), group=group
        ),
        "all_gather_into_tensor: expected a tensor to write": lambda: dist.all_gather_into_tensor(
            ones(1).expand(5 * world), ones(5), group=group
        ),
        "reduce_scatter_tensor: expected a tensor to write": lambda: dist.reduce_scatter_tensor(
            ones(1).expand(5), ones(5 * world), group=group
        ),
        "reduce_scatter: expected a tensor to write": lambda: dist.reduce_scatter(
            ones(1).expand(5), [ones(5)] * world, group=group
        ),
        "all_to_all: expected a tensor to write": lambda: dist.all_to_all_single(
            ones(1).expand(world), ones(world), group=group
        ),
        "recv: expected a tensor to write": lambda: dist.recv(ones(1).expand(5), src=(rank + 1) % world, group=group),
        f"send: expected a rank in [0, {world}), got 7": lambda: backend.send([ones(1)], 7, 0),
        "splits of 0 to 4": lambda: dist.all_to_all_single(
            ones(4), ones(4), [2**62] * (world - 1) + [4], [4] + [0] * (world - 1), group=group
        ),
    }
    texts = {}
    for words, call in calls.items():
        texts[words], _ = raised(call)
        x = ones(2)
        dist.all_reduce(x, group=group)
        assert (x == world).all(), words
    return texts


def expanded(rank: int, world: int) -> None:
    """Tensors whose elements share a place may be sent."""
    group = a_group(world)
    out = torch.zeros(5 * world)
    dist.all_gather_into_tensor(out, torch.ones(1).expand(5), group=group)
    assert (out == 1).all()
    dist.reduce_scatter_tensor(out[:5], torch.ones(1).expand(5 * world), group=group)
    assert (out[:5] == world).all()
    dist.all_to_all_single(out, torch.full([1], float(rank)).expand(5 * world), group=group)
    assert (out.view(world, 5) == torch.arange(world)[:, None]).all()


def inference_tensors(rank: int, world: int) -> None:
    """Written inside of inference mode and outside, those that go through a copy too."""
    P2P = dist.P2POp
    group = a_group(world)
    with torch.inference_mode():
        x = torch.full((4,), rank + 1.0)
        parts, strided = [torch.zeros(4) for _ in range(world)], torch.ones(4, 4)[:, :2]
        everything = torch.zeros(4 * world)
    for inside in (True, False):
        with torch.inference_mode(inside):
            dist.all_gather(parts, x, group=group)
            assert [p.unique().item() for p in parts] == [r + 1.0 for r in range(world)]
            dist.all_gather_into_tensor(everything, x, group=group)
            dist.all_to_all(parts, [x] * world, group=group)
            dist.all_reduce(strided, op=dist.ReduceOp.AVG, group=group)
            dist.broadcast(strided, 0, group=group)
            assert (strided == 1).all()
            dist.scatter(x, [p * 0 + r + 1 for r, p in enumerate(parts)] if rank == 0 else None, group=group)
            dist.gather(x, parts if rank == 1 else None, 1, group=group)
            ops = [P2P(dist.isend, x, (rank + 1) % world, group), P2P(dist.irecv, parts[0], (rank - 1) % world, group)]
            ops += [P2P(dist.irecv, parts[1], rank, group), P2P(dist.isend, x, rank, group)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert (parts[0] == (rank - 1) % world + 1).all() and (parts[1] == rank + 1).all()


def wrapped(rank: int, world: int) -> None:
    """As TORCH_DISTRIBUTED_DEBUG=DETAIL makes groups."""
    import ark_torch.distributed as ark

    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = a_group(world)
    finally:
        dist.set_debug_level(level)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    ark.check(group)
    assert (x == world).all() and ark.backend_of(group).name() == "ark"


FUNCTIONS = (
    threads,
    forked,
    callbacks,
    messages_ahead,
    waits_that_end,
    types_differ,
    refused,
    expanded,
    inference_tensors,
    wrapped,
)


def together(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(FUNCTIONS, rank, world)


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return values(run_ranks(together, 3, seconds=30))


def of(ranks: list[dict], function) -> list:
    return values({rank: results[function.__name__] for rank, results in enumerate(ranks)})


@pytest.mark.parametrize(
    "function",
    [threads, forked, callbacks, messages_ahead, expanded, inference_tensors, wrapped],
    ids=lambda f: f.__name__,
)
def test_function(ranks, function):
    of(ranks, function)


def test_a_wait_that_ends_says_for_what(ranks):
    assert "rank 0: ALLREDUCE number 1 did not end within 200 ms" in of(ranks, waits_that_end)[0]


def test_types_that_differ_over_ranks_raise_on_every_rank(ranks):
    for texts in of(ranks, types_differ):
        for name, text in texts.items():
            assert f"{name} number 1 " in text and "disagree" in text and "rank 1 calls" in text, (name, text)
            assert ("Int" in text and "Float" in text) or ("i32" in text and "f32" in text), (name, text)


def test_arguments_are_refused_and_the_group_goes_on(ranks):
    for texts in of(ranks, refused):
        for words, text in texts.items():
            assert words in text, text
