"""The c10d backend on the host: every call of torch.distributed, users of it, and faults.

With other numbers of ranks, and for longer:

    ARK_TEST_WORLDS=8 ARK_STRESS_ROUNDS=2000 python -m pytest tests/distributed/test_process_group.py
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.collective_reference import check_factors, check_not_numbers
from tests.support.collective_stress import stress_on_host
from tests.support.distributed_worker import run_ranks, values
from tests.support.survivors import left_behind, wait_for_nothing_but

WORLDS = [int(world) for world in os.environ.get("ARK_TEST_WORLDS", "2,3,4").split(",")]
SMALL = WORLDS[:2]
SEVERAL = SMALL[-1]  # 3, if nothing else is asked for


def collectives(rank: int, world: int) -> None:
    torch.manual_seed(rank)
    ranks = range(world)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for size in (1, 17, 129, 70001):
            base = (torch.arange(size) % 5 + 1).to(dtype)
            mine = base + rank
            total = sum(((base + r).double() for r in ranks), torch.zeros(size, dtype=torch.float64))
            for op, expected in (
                (dist.ReduceOp.SUM, total),
                (dist.ReduceOp.MAX, (base + world - 1).double()),
                (dist.ReduceOp.MIN, base.double()),
            ):
                out = mine.clone()
                dist.all_reduce(out, op=op)
                assert torch.equal(out.double(), expected), (dtype, size, op)
            gathered = [torch.empty_like(mine) for _ in ranks]
            dist.all_gather(gathered, mine)
            assert all(torch.equal(g, base + r) for r, g in enumerate(gathered))
            flat = torch.empty(size * world, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            assert torch.equal(flat, torch.cat(gathered))
            part = torch.empty(size, dtype=dtype)
            dist.reduce_scatter_tensor(part, torch.cat([base + rank + r for r in ranks]))
            assert torch.equal(part.double(), total + world * rank)
            dist.reduce_scatter(part, [base + rank + r for r in ranks])
            assert torch.equal(part.double(), total + world * rank)
            for root in (0, world - 1):
                out = mine.clone()
                dist.broadcast(out, src=root)
                assert torch.equal(out, base + root)
                out = mine.clone()
                dist.reduce(out, dst=root)
                assert rank != root or torch.equal(out.double(), total)
                lists = [torch.empty_like(mine) for _ in ranks] if rank == root else None
                dist.gather(mine, lists, dst=root)
                assert rank != root or all(torch.equal(g, base + r) for r, g in enumerate(lists))
                dist.scatter(out, [base + r for r in ranks] if rank == root else None, src=root)
                assert torch.equal(out, base + rank)


def exchanges(rank: int, world: int) -> None:
    ranks = range(world)
    sent = torch.cat([torch.full((r + rank + 1, 3), float(10 * rank + r)) for r in ranks])
    to, from_ = [r + rank + 1 for r in ranks], [rank + r + 1 for r in ranks]
    got = torch.empty(sum(from_), 3)
    dist.all_to_all_single(got, sent, from_, to)
    assert torch.equal(got, torch.cat([torch.full((rank + r + 1, 3), float(10 * r + rank)) for r in ranks]))
    outputs = [torch.empty(n, 3) for n in from_]
    dist.all_to_all(outputs, list(sent.split(to)))
    assert torch.equal(torch.cat(outputs), got)
    big = torch.arange(300_000.0) + rank
    received = torch.empty_like(big)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, big, (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
    )
    for work in works:
        work.wait()
    assert torch.equal(received, torch.arange(300_000.0) + (rank - 1) % world)
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            out = torch.empty(1)
            seen.add(dist.recv(out))
        assert seen == set(range(1, world))
    else:
        dist.send(torch.tensor([float(rank)]), dst=0)
    dist.barrier()
    # strided, asynchronous, several in flight, complex, bool
    strided = torch.zeros(6, 8)[:, ::2]
    strided += rank + 1
    works = [dist.all_reduce(strided, async_op=True)]
    others = [torch.ones(1000) * (i + rank) for i in range(10)]
    works += [dist.all_reduce(t, async_op=True) for t in others]
    for work in works:
        work.wait()
    assert (strided == sum(r + 1 for r in ranks)).all()
    assert all((t == sum(i + r for r in ranks)).all() for i, t in enumerate(others))
    z = torch.complex(torch.ones(5), torch.full((5,), float(rank)))
    dist.all_reduce(z)
    assert torch.equal(z, torch.complex(torch.full((5,), float(world)), torch.full((5,), float(sum(ranks)))))
    part = z[:2].clone()
    dist.reduce_scatter_tensor(part, torch.cat([z[:2] * r for r in ranks]), op=dist.ReduceOp.AVG)
    assert torch.equal(part, z[:2] * rank)
    dist.reduce_scatter(part, [z[:2] * r for r in ranks])
    assert torch.equal(part, z[:2] * rank * world)
    flag = torch.tensor([rank == 0, False])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    assert flag.tolist() == [True, False]
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in ranks]


def not_numbers(rank: int, world: int) -> None:
    check_not_numbers(rank, world, "cpu", (100, 70001))


def factors(rank: int, world: int) -> None:
    check_factors(rank, world, "cpu")
    x = torch.ones(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="expected a floating-point type for a sum with a factor, got Long"):
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0))
    dist.all_reduce(x)
    assert (x == world).all()


def subgroups(rank: int, world: int) -> None:
    pairs = [dist.new_group([r, (r + 1) % world], backend="cpu:ark") for r in range(world)]
    for first, group in enumerate(pairs):
        members = {first, (first + 1) % world}
        if rank in members:
            out = torch.tensor([float(rank)])
            dist.all_reduce(out, group=group)
            assert out.item() == sum(members)


def ddp(rank: int, world: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        data = torch.randn(world * 4, 8, generator=generator)
        optimizer.zero_grad()
        loss = parallel(data[rank * 4 : rank * 4 + 4]).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / world)
    return losses


def single_process_losses(world: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        data = torch.randn(world * 4, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def refused(rank: int, world: int) -> dict[str, str]:
    """What a rank can see by itself; the group goes on."""
    mine, lost = torch.ones(4), torch.ones(4, device="meta")
    several = lambda *last: [torch.ones(4) for _ in range(world - len(last))] + list(last)
    calls = {
        "output elsewhere": lambda: dist.all_gather(several(lost), mine),
        "input elsewhere": lambda: dist.reduce_scatter(mine, several(lost)),
        "negative": lambda: dist.all_to_all_single(
            torch.ones(4), mine, [-1, 5] + [0] * (world - 2), [4] + [0] * (world - 1)
        ),
        "sum": lambda: dist.all_to_all_single(torch.ones(4), mine, [1] * world, [1] * world),
        "sizes": lambda: dist.all_gather_into_tensor(torch.ones(5), mine),
        "sparse": lambda: dist.broadcast(torch.eye(3).to_sparse(), src=0),
        "itself": lambda: dist.send(mine, dst=rank),
    }
    texts = {}
    for name, call in calls.items():
        try:
            call()
            texts[name] = "no error"
        except (RuntimeError, ValueError) as error:
            texts[name] = str(error)
    dist.all_reduce(mine)
    assert (mine == world).all()
    return texts


def disagree(rank: int, world: int) -> str:
    try:
        dist.all_reduce(torch.ones(4 if rank else 5))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def uneven(rank: int, world: int) -> str:
    """Rank 1 sends more to rank 0 than this expects."""
    to = [100 + (rank == 1 and r == 0) for r in range(world)]
    try:
        dist.all_to_all_single(torch.ones(100 * world), torch.ones(sum(to)), [100] * world, to)
        dist.all_reduce(torch.ones(1))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def point(rank: int, world: int) -> str:
    try:
        if rank == 1:
            dist.send(torch.ones(101), dst=0)
        elif rank == 0:
            dist.recv(torch.ones(100), src=1)
        dist.all_reduce(torch.ones(1))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def die(rank: int, world: int) -> tuple[str, float]:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1 << 20))
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "no error", 0.0


def die_together(rank: int, world: int) -> None:
    """All ranks, in the middle of a collective: nobody is left to tidy up."""
    dist.barrier()
    works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(50)]
    works[rank].wait()
    os.kill(os.getpid(), signal.SIGKILL)


def late(rank: int, world: int) -> tuple[str, float]:
    """A rank that does not come to a barrier."""
    group = dist.new_group(list(range(world)), backend="cpu:ark", timeout=timedelta(seconds=1))
    begin = time.monotonic()
    if rank == 1:
        time.sleep(2)
        return "", 0.0
    try:
        dist.barrier(group=group)
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "no error", 0.0


def die_and_start_again(rank: int, world: int) -> list[float]:
    """The survivors make a group of their own afterwards."""
    die(rank, world)
    dist.destroy_process_group()
    path = os.path.join(tempfile.gettempdir(), f"ark-survivors-{os.getppid()}")
    store = dist.FileStore(path, world - 1)
    dist.init_process_group("cpu:ark", store=store, rank=rank - (rank > 1), world_size=world - 1)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.tolist()


@pytest.mark.parametrize("world", WORLDS)
def test_collectives(world):
    values(run_ranks(collectives, world))


@pytest.mark.parametrize("world", WORLDS)
def test_exchanges(world):
    values(run_ranks(exchanges, world))


def test_nan_and_zeros_of_either_sign():
    values(run_ranks(not_numbers, SEVERAL))


def test_sums_with_a_factor():
    values(run_ranks(factors, SEVERAL))


def test_subgroups():
    values(run_ranks(subgroups, SEVERAL))


@pytest.mark.parametrize("world", SMALL)
def test_stress(world):
    """Counts of steps wrap 2^32 on the way."""
    print(values(run_ranks(stress_on_host, world, seconds=100, first_step=2**32 - 500)))


def test_ddp_follows_one_process():
    expected = single_process_losses(WORLDS[0])
    for losses in values(run_ranks(ddp, WORLDS[0])):
        assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("world", SMALL)
def test_bad_arguments_are_refused_by_name(world):
    words = {
        "output elsewhere": "got one on meta",
        "input elsewhere": "got one on meta",
        "negative": "got -1",
        "sum": f"got {world}",
        "sizes": "got 5",
        "sparse": "Sparse",
        "itself": "rank",
    }
    for texts in values(run_ranks(refused, world)):
        for name, text in texts.items():
            assert words[name] in text, (name, text)


def test_disagreement_raises_on_every_rank():
    for text in values(run_ranks(disagree, SEVERAL)):
        assert "disagree: rank 0 calls all_reduce number 0 of " in text, text
        assert ", rank 1 calls all_reduce number 0 of " in text, text


@pytest.mark.parametrize("function", [uneven, point])
def test_sizes_of_a_pair_that_differ_raise_on_every_rank(function):
    texts = values(run_ranks(function, SEVERAL))
    for text in texts:
        assert "rank" in text and "400" in text and "404" in text, text


def test_dead_rank_raises_soon():
    results = run_ranks(die, SEVERAL, seconds=60, expect_missing=1)
    assert set(results) == set(range(SEVERAL)) - {1}
    for text, seconds in values(results):
        assert "all_reduce number 1 of group" in text, text
        assert re.search(r"rank 1 \(process \d+\) has died", text), text
        assert seconds < 20


@pytest.mark.parametrize("function", [die, die_together])
def test_killed_processes_leave_nothing_behind(function, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:  # of these ranks alone: other groups come and go meanwhile
        monkeypatch.setenv("TMPDIR", folder)
        before = left_behind(Path(folder))
        run_ranks(function, SEVERAL, expect_missing=1 if function is die else SEVERAL)
        wait_for_nothing_but(before, Path(folder))


def test_late_rank_raises_within_the_time_out():
    results = values(run_ranks(late, SEVERAL))
    for text, seconds in results[:1] + results[2:]:
        assert "barrier number 0 of group" in text and "rank 1 did not arrive within the time-out" in text, text
        assert seconds < 5


def test_survivors_start_again():
    results = run_ranks(die_and_start_again, SEVERAL, expect_missing=1)
    assert values(results) == [[sum(range(SEVERAL)) - 1.0]] * (SEVERAL - 1)
