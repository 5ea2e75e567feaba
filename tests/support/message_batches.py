"""What ranks do in batches of messages on GPUs (tests/multigpu): orders of calls, graphs, works of single calls,
messages to oneself."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

DEVICE = "cuda"


def captured_messages(rank: int, world: int) -> None:
    """Sends and receives in a graph, two of each, replayed."""
    xs, ys = torch.zeros(2, 5000, device=DEVICE), torch.zeros(2, 5000, device=DEVICE)

    def ring() -> None:
        batch = [dist.P2POp(dist.irecv, y, (rank - 1) % world) for y in ys]
        batch += [dist.P2POp(dist.isend, x, (rank + 1) % world) for x in xs]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    for _ in range(2):
        ring()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ring()
    for i in range(20):
        xs[0].fill_(rank + i)
        xs[1].fill_(rank - i)
        graph.replay()
        assert (ys[0] == (rank - 1) % world + i).all(), i
        assert (ys[1] == (rank - 1) % world - i).all(), i


def in_any_order(rank: int, world: int, n: int, seed: int) -> None:
    """Three to and from every other rank, called in an order of the rank's own, every second receive strided; then a
    single message."""
    calls = [
        (call, peer) for call in (dist.isend, dist.irecv) for peer in range(world) for _ in range(3) if peer != rank
    ]
    random.Random(100 * seed + rank).shuffle(calls)
    numbers, got, ops = {call: 0 for call in calls}, [], []
    for call, peer in calls:
        i = numbers[call, peer]
        numbers[call, peer] += 1
        if call is dist.isend:
            x = torch.full((n,), 100.0 * rank + 10 * peer + i, device=DEVICE)
        else:
            x = torch.zeros(n, 1 + i % 2, device=DEVICE)[:, 0]
            got.append((x, 100.0 * peer + 10 * rank + i))
        ops.append(dist.P2POp(call, x, peer))
    works, pair, y = dist.batch_isend_irecv(ops), rank ^ 1, torch.zeros(5, device=DEVICE)
    del ops, x
    single = [dist.isend(torch.full((5,), rank + 0.5, device=DEVICE), pair), dist.irecv(y, pair)]
    for work in works + single:
        work.wait()
    assert (y == pair + 0.5).all()
    for x, value in got:
        assert (x == value).all(), value


def receives_first(rank: int, world: int, n: int) -> None:
    """As an interleaved pipeline of two stages does it: both neighbours are the same rank."""
    pair = rank ^ 1
    xs, ys = (torch.full((2, n), float(value), device=DEVICE) for value in (rank, -1))
    xs[1] += 0.5
    ops = [dist.P2POp(dist.irecv, y, pair) for y in ys] + [dist.P2POp(dist.isend, x, pair) for x in xs]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (ys[0] == pair).all() and (ys[1] == pair + 0.5).all()


def batches_of_messages(rank: int, world: int) -> None:
    """Two to and from every rank, itself too, receives first, longer than the rings; against single calls."""
    P2P, n = dist.P2POp, 1 << 21

    def run(ops: list) -> None:
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    pairs = [(peer, i) for peer in range(world) for i in range(2)]
    for _ in range(3):
        got = {pair: torch.zeros(n, device=DEVICE) for pair in pairs}
        ops = [P2P(dist.irecv, got[pair], pair[0]) for pair in pairs]
        ops += [
            P2P(dist.isend, torch.full((n,), 10.0 * rank + peer + 0.5 * i, device=DEVICE), peer) for peer, i in pairs
        ]
        run(ops)
        del ops
        for (peer, i), x in got.items():
            assert (x == 10.0 * peer + rank + 0.5 * i).all(), (peer, i)
    for order in ((dist.send, dist.recv), (dist.recv, dist.send)):
        x, y = torch.full((n,), rank + 1.0, device=DEVICE), torch.zeros(n, device=DEVICE)
        if rank == 0:
            run([P2P(dist.isend, x, 1), P2P(dist.irecv, y, 1)])
        elif rank == 1:
            for call in order:
                call(x if call is dist.send else y, 0)
        assert rank > 1 or (y == 2.0 - rank).all()
    receives_first(rank, world, n)
    for seed in range(6):
        in_any_order(rank, world, n if seed % 2 else 1000, seed)


def held_until_the_end(rank: int, world: int) -> None:
    """A message of a batch follows its own caller's stream, is launched at the end or when it is waited for, also in a
    batch that an exception has left open, and not after an exception of a call within the batch."""
    group, peer = dist.group.WORLD._get_backend(torch.device(DEVICE)), rank ^ 1
    x, y = torch.zeros(1000, device=DEVICE), torch.zeros(1000, device=DEVICE)
    torch.cuda.synchronize()
    group._start_coalescing()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)
        x.fill_(rank + 1.0)
        works = [group.send([x], peer, 0)]
    works.append(group.recv([y], peer, 0))
    assert not any(work.is_completed() for work in works)
    group._end_coalescing().wait()
    assert (y == peer + 1.0).all()
    torch.cuda.synchronize()
    assert all(work.wait() and work.is_completed() and work.is_success() for work in works)
    assert works[1].get_future().wait()[0] is not None
    for end in (True, False):
        x.fill_(rank + 2.0 + end)
        group._start_coalescing()
        works = [group.recv([y], peer, 0), group.send([x], peer, 0)]
        works[0].wait()
        assert (y == peer + 2.0 + end).all()
        if end:
            group._end_coalescing().wait()
    dist.recv(y, peer) if rank > peer else dist.send(x, peer)  # the batch is still open
    dist.send(x, peer) if rank > peer else dist.recv(y, peer)
    assert (y == peer + 2.0).all()
    group._start_coalescing()
    dropped = group.send([x], peer, 0)
    with pytest.raises(RuntimeError, match="expected a rank in"):
        group.send([x], world, 0)
    with pytest.raises(ValueError, match="has ended with an exception"):
        dropped.wait()
    in_any_order(rank, world, 1000, seed=0)


def messages_to_itself(rank: int, world: int) -> None:
    """They follow the stream, carry no autograd, can be captured, and a half alone is an error."""
    P2P = dist.P2POp

    def move(x: torch.Tensor, y: torch.Tensor) -> None:
        for work in dist.batch_isend_irecv([P2P(dist.irecv, y, rank), P2P(dist.isend, x, rank)]):
            work.wait()

    x, y = torch.zeros(1 << 20, device=DEVICE), torch.zeros(1 << 20, device=DEVICE, requires_grad=True)
    for i in range(20):
        torch.cuda._sleep(100_000)
        x.fill_(i)
        move(x, y)
        assert (y == i).all() and y.is_leaf, i
    with torch.inference_mode():
        z = torch.zeros(1024, 1024, device=DEVICE).t()
    move(x, z)
    assert (z == 19).all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        move(x, z)
    for i in range(5):
        x.fill_(i)
        graph.replay()
        assert (z == i).all(), i
    with pytest.raises(RuntimeError, match="itself in a batch that has not the other half"):
        dist.batch_isend_irecv([P2P(dist.irecv, x, rank)])
    dist.all_reduce(x.fill_(1.0))
    assert (x == world).all()
