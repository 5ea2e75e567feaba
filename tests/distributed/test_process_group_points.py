"""Messages between two ranks on the host: any rank, tags, order, and batches of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.conftest import has_extension
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def from_a_rank_and_from_any(rank: int, world: int) -> None:
    """Both outstanding at a time; each message goes to one of them, once."""
    for i in range(200):
        first, second = 2 * i + 1.0, 2 * i + 2.0
        if rank == 0:
            a, b = torch.zeros(1), torch.zeros(1)
            works = [dist.irecv(a, 1), dist.irecv(b)]
            dist.send(torch.zeros(1), 1)
            for work in works:
                work.wait()
            assert (a.item(), b.item()) == (first, second), i  # in the order in which they were asked for
        else:
            dist.recv(torch.zeros(1), 0)
            dist.send(torch.tensor([first]), 0)
            dist.send(torch.tensor([second]), 0)


def tags(rank: int, world: int) -> None:
    """Matched by tag whatever the order, short and much longer than the boxes; equal tags keep their order."""
    for n in (1, 1000, 300_000):
        if rank == 0:
            works = [dist.isend(torch.full((n,), float(tag)), 1, tag=tag) for tag in (1, 2, 3, 3)]
        else:
            out = {name: torch.zeros(n) for name in ("a", "b", "c", "d")}
            asked = (("a", 3), ("b", 2), ("c", 1), ("d", 3))
            works = [dist.irecv(out[name], 0, tag=tag) for name, tag in asked]
        for work in works:
            work.wait()
        if rank == 1:
            assert [x.unique().item() for x in out.values()] == [3, 2, 1, 3]
    # A later message is waited for while an earlier one has not been asked for; an answer depends on it.
    if rank == 0:
        early = dist.isend(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
        answer = torch.zeros(1)
        dist.recv(answer, 1)
        assert answer.item() == 3
        early.wait()
    else:
        x = torch.zeros(1)
        late = dist.irecv(x, 0, tag=1)
        y = torch.zeros(1)
        dist.recv(y, 0, tag=2)
        dist.send(y + 1, 0)
        late.wait()
        assert (x.item(), y.item()) == (1, 2)


def batch_beside_any(rank: int, world: int) -> None:
    """A batch ends though a receive from any rank that was asked for before it has got nothing yet."""
    if rank == 0:
        x, y = torch.zeros(1), torch.zeros(1)
        waiting = dist.irecv(x, tag=9)
        batch = [dist.P2POp(dist.isend, torch.ones(1), 1), dist.P2POp(dist.irecv, y, 1)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        dist.send(torch.ones(1), 2)
        waiting.wait()
        assert x.item() == 2 and y.item() == 1
    elif rank == 1:
        y = torch.zeros(1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 0), dist.P2POp(dist.irecv, y, 0)]):
            work.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.full((1,), 2.0), 0, tag=9)


def wrong_size(rank: int, world: int) -> str:
    try:
        if rank == 0:
            dist.send(torch.ones(3), 1)
            dist.barrier()
        else:
            dist.recv(torch.ones(4), 0)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def any_order_of_sizes(rank: int, world: int) -> None:
    """Many messages of all sizes between all ranks at a time, strided ones too."""
    generator = torch.Generator().manual_seed(3)
    sizes = [int(n) for n in torch.randint(0, 100_000, (12,), generator=generator)]
    works, wanted = [], []
    for peer in range(world):
        if peer == rank:
            continue
        for tag, n in enumerate(sizes):
            out = torch.zeros(2, n).t()[:, 0] if tag % 2 else torch.zeros(n)
            wanted.append((out, peer * 100 + tag))
            works.append(dist.irecv(out, peer, tag=tag))
        for tag, n in reversed(list(enumerate(sizes))):
            works.append(dist.isend(torch.full((n,), float(rank * 100 + tag)), peer, tag=tag))
    for work in works:
        work.wait()
    for out, value in wanted:
        assert (out == value).all()


def batch_against_single_calls(rank: int, world: int) -> None:
    """Whatever their order, and receives first in a batch of several, also around a collective."""
    n, P2P = 300_000, dist.P2POp
    for order in ((dist.isend, dist.irecv), (dist.irecv, dist.isend)):
        x, y = torch.full((n,), rank + 1.0), torch.zeros(n)
        of = {dist.isend: x, dist.irecv: y}
        if rank == 0:
            works = dist.batch_isend_irecv([P2P(dist.isend, x, 1), P2P(dist.irecv, y, 1)])
        else:
            works = [call(of[call], 0) for call in order]
        dist.all_reduce(torch.ones(n))
        for work in works:
            work.wait()
        assert (y == 2.0 - rank).all()
    got = [torch.zeros(n) for _ in range(3)]
    ops = [P2P(dist.irecv, t, 1 - rank) for t in got]
    ops += [P2P(dist.isend, torch.full((n,), 10.0 * rank + i), 1 - rank) for i in range(3)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert [t.unique().item() for t in got] == [10.0 * (1 - rank) + i for i in range(3)]


@pytest.mark.parametrize("function", [from_a_rank_and_from_any, tags, batch_against_single_calls])
def test_pair(function):
    values(run_ranks(function, 2, seconds=30))


def to_itself(rank: int, world: int) -> list[str]:
    """Batches with messages of a rank to itself, beside others and alone; halves that find no other one raise."""
    P2P = dist.P2POp
    for _ in range(3):
        sent = [torch.full((3 + peer,), 10.0 * rank + peer) for peer in range(world)]
        got = [torch.zeros(3 + rank) for _ in range(world)]
        ops = [P2P(dist.irecv, got[peer], peer) for peer in range(world)]
        ops += [P2P(dist.isend, sent[peer], peer) for peer in range(world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert [x.unique().item() for x in got] == [10.0 * peer + rank for peer in range(world)]
    a, b = torch.zeros(2, 2), torch.zeros(2, 2)
    ops = [P2P(dist.isend, torch.full((4,), 1.0), rank, tag=1), P2P(dist.isend, torch.full((4,), 2.0), rank, tag=2)]
    ops += [P2P(dist.irecv, a, rank, tag=2), P2P(dist.irecv, b, rank, tag=1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (a == 2).all() and (b == 1).all()
    c, d = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    for work in dist.batch_isend_irecv([P2P(dist.irecv, d, rank), P2P(dist.isend, 2 * c, rank)]):
        work.wait()
    assert (d == 2).all() and d.is_leaf  # as between two ranks: no autograd
    texts = []
    for ops in (
        [P2P(dist.irecv, a, rank)],
        [P2P(dist.isend, a, rank), P2P(dist.irecv, torch.zeros(5), rank)],
    ):
        with pytest.raises(RuntimeError) as raised:
            dist.batch_isend_irecv(ops)
        texts.append(str(raised.value))
        if len(texts) == 1:  # after an error inside of a batch, torch leaves its collectives in it
            dist.all_reduce(a)
            assert (a == 2 * world).all()
    # but no message: the batch has ended with the error
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="cannot send to itself but within a batch"):
        group.send([a], rank, 0)
    group._start_coalescing()
    half = group.recv([a], rank, 0)
    with pytest.raises(RuntimeError, match="sends 5 elements of Float to itself and receives 4"):
        group.send([torch.zeros(5)], rank, 0)
    with pytest.raises(ValueError, match="has ended with an exception"):
        half.wait()
    return texts


def test_messages_to_itself():
    for rank, texts in enumerate(values(run_ranks(to_itself, 2, seconds=30))):
        assert f"rank {rank} receives from itself in a batch that has not the other half (tag 0)" in texts[0], texts
        assert f"rank {rank} sends 4 elements of Float to itself and receives 5 of Float" in texts[1], texts


@pytest.mark.parametrize("function", [batch_beside_any, any_order_of_sizes])
def test_three_ranks(function):
    values(run_ranks(function, 3, seconds=30))


def test_wrong_size_says_what_was_sent():
    texts = values(run_ranks(wrong_size, 2, seconds=30))
    assert "receive number 0 from rank 0" in texts[1] and "sent 12 bytes, expected 16" in texts[1], texts
    assert "rank 1 failed: receive number 0" in texts[0], texts
