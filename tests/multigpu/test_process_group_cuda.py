"""The c10d backend on GPUs: every call of torch.distributed against what it must give, streams, graphs, faults."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.multigpu.worker import run_gpus, values

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
WORLDS = sorted({2, GPUS} - {0, 1})
DEVICE = "cuda"


def reference(base: torch.Tensor, world: int, op) -> torch.Tensor:
    """In rank order, in fp32 for 16-bit floats: the same bits."""
    wide = torch.float32 if base.dtype in (torch.bfloat16, torch.float16) else base.dtype
    parts = [(base + r).to(wide) for r in range(world)]
    total = parts[0].clone()
    for part in parts[1:]:
        if op == dist.ReduceOp.PRODUCT:
            total = total * part
        elif op == dist.ReduceOp.MAX:
            total = torch.maximum(total, part)
        elif op == dist.ReduceOp.MIN:
            total = torch.minimum(total, part)
        else:
            total = total + part
    if op == dist.ReduceOp.AVG:
        total = total / world if wide.is_floating_point else torch.div(total, world, rounding_mode="trunc")
    return total.to(base.dtype)


def collectives(rank: int, world: int) -> dict:
    import ark_torch.distributed as ark

    ranks = range(world)
    ops = dist.ReduceOp
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for size in (1, 17, 4099, 70001, 3_000_000):
            base = (torch.arange(size, device=DEVICE) % 5 + 1).to(dtype)
            mine = base + rank
            for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX, ops.AVG):
                out = mine.clone()
                dist.all_reduce(out, op=op)
                assert torch.equal(out, reference(base, world, op)), (dtype, size, op)
            gathered = [torch.empty_like(mine) for _ in ranks]
            dist.all_gather(gathered, mine)
            assert all(torch.equal(g, base + r) for r, g in enumerate(gathered)), (dtype, size)
            flat = torch.empty(size * world, dtype=dtype, device=DEVICE)
            dist.all_gather_into_tensor(flat, mine)
            assert torch.equal(flat, torch.cat(gathered)), (dtype, size)
            part = torch.empty(size, dtype=dtype, device=DEVICE)
            dist.reduce_scatter_tensor(part, torch.cat([base + rank for r in ranks]))
            assert torch.equal(part, reference(base, world, ops.SUM)), (dtype, size)
            dist.reduce_scatter(part, [base + rank for r in ranks], op=ops.MAX)
            assert torch.equal(part, base + world - 1), (dtype, size)
            for root in (0, world - 1):
                out = mine.clone()
                dist.broadcast(out, src=root)
                assert torch.equal(out, base + root), (dtype, size, root)
                out = mine.clone()
                dist.reduce(out, dst=root)
                assert rank != root or torch.equal(out, reference(base, world, ops.SUM)), (dtype, size, root)
                lists = [torch.empty_like(mine) for _ in ranks] if rank == root else None
                dist.gather(mine, lists, dst=root)
                assert rank != root or all(torch.equal(g, base + r) for r, g in enumerate(lists)), (dtype, size)
                dist.scatter(out, [base + r for r in ranks] if rank == root else None, src=root)
                assert torch.equal(out, base + rank), (dtype, size, root)
    flag = torch.tensor([rank == 0, False, True], device=DEVICE)
    dist.all_reduce(flag, op=ops.SUM)
    assert flag.tolist() == [True, False, True]
    bits = torch.tensor([1 << rank], device=DEVICE)
    dist.all_reduce(bits, op=ops.BOR)
    assert bits.item() == (1 << world) - 1
    z = torch.complex(torch.ones(5), torch.full((5,), float(rank))).to(DEVICE)
    dist.all_reduce(z)
    assert torch.equal(z.cpu(), torch.complex(torch.full((5,), float(world)), torch.full((5,), float(sum(ranks)))))
    torch.cuda.synchronize()
    ark.check()
    return ark.delegated_calls()


def exchanges(rank: int, world: int) -> None:
    ranks = range(world)
    for scale in (1, 50_000):
        sent = torch.cat([torch.full((scale * (r + rank + 1), 3), float(10 * rank + r), device=DEVICE) for r in ranks])
        to, from_ = [scale * (r + rank + 1) for r in ranks], [scale * (rank + r + 1) for r in ranks]
        got = torch.empty(sum(from_), 3, device=DEVICE)
        dist.all_to_all_single(got, sent, from_, to)
        wanted = torch.cat([torch.full((n, 3), float(10 * r + rank), device=DEVICE) for r, n in enumerate(from_)])
        assert torch.equal(got, wanted)
        outputs = [torch.empty(n, 3, device=DEVICE) for n in from_]
        dist.all_to_all(outputs, list(sent.split(to)))
        assert torch.equal(torch.cat(outputs), got)
    for n in (1, 5000, 3_000_001):
        big = torch.arange(float(n), device=DEVICE) + rank
        received = torch.empty_like(big)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, big, (rank + 1) % world),
                dist.P2POp(dist.irecv, received, (rank - 1) % world),
            ]
        )
        for work in works:
            work.wait()
        assert torch.equal(received, torch.arange(float(n), device=DEVICE) + (rank - 1) % world)
    if rank == 0:
        dist.send(torch.ones(7, device=DEVICE), dst=1)
    elif rank == 1:
        out = torch.zeros(7, device=DEVICE)
        dist.recv(out, src=0)
        assert out.sum().item() == 7
    dist.barrier()
    dist.barrier(device_ids=[rank])
    # strided, asynchronous, several in flight
    strided = torch.zeros(6, 8, device=DEVICE)[:, ::2]
    strided += rank + 1
    works = [dist.all_reduce(strided, async_op=True)]
    others = [torch.full((1000 * (i + 1),), float(i + rank), device=DEVICE) for i in range(10)]
    works += [dist.all_reduce(t, async_op=True) for t in others]
    for work in works:
        work.wait()
    assert (strided == sum(r + 1 for r in ranks)).all()
    assert all((t == sum(i + r for r in ranks)).all() for i, t in enumerate(others))
    future = dist.all_reduce(torch.ones(3, device=DEVICE), async_op=True).get_future()
    assert future.wait()[0].sum().item() == 3 * world
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in ranks]


def streams(rank: int, world: int) -> None:
    """A call waits for the stream it is made on, whoever waits for it waits for the call; memory stays while in use."""
    side = torch.cuda.Stream()
    for round_number in range(20):
        a = torch.zeros(1 << 20, device=DEVICE)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000 * (1 + rank))
            side.wait_stream(torch.cuda.default_stream())
            a.add_(rank + round_number)
            work = dist.all_reduce(a, async_op=True)
            work.wait()
            b = a * 2
        torch.cuda.current_stream().wait_stream(side)
        assert (b == 2 * sum(r + round_number for r in range(world))).all()
        c = torch.full((1 << 18,), float(rank), device=DEVICE)
        dist.all_reduce(c)
        work = dist.all_reduce(c.clone(), async_op=True)
        assert (c == sum(range(world))).all()
        work.wait()


def graphs(rank: int, world: int) -> None:
    x = torch.zeros(5000, device=DEVICE)
    y = torch.zeros(3_000_000, device=DEVICE, dtype=torch.bfloat16)
    gathered = torch.empty(5000 * world, device=DEVICE)
    for _ in range(2):
        dist.all_reduce(x)
        dist.all_reduce(y)
        dist.all_gather_into_tensor(gathered, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
        dist.all_reduce(y)
        work = dist.all_gather_into_tensor(gathered, x, async_op=True)
        work.wait()
        dist.all_reduce(x)
    for i in range(50):
        x.fill_(rank + i)
        y.fill_(rank)
        graph.replay()
        total = sum(r + i for r in range(world))
        assert (gathered == total).all() and (x == world * total).all() and (y == sum(range(world))).all(), i
        z = torch.full((100 * (i + 1),), float(rank), device=DEVICE)
        dist.all_reduce(z)  # eager between replays
        assert (z == sum(range(world))).all()
        if i % 10 == rank:
            time.sleep(0.02)  # a straggler


def subgroups(rank: int, world: int) -> None:
    pairs = [dist.new_group([r, (r + 1) % world]) for r in range(world)] if world > 2 else [dist.group.WORLD]
    both = dist.new_group(list(range(world)))
    for round_number in range(10):
        for first, group in enumerate(pairs):
            members = {first, (first + 1) % world}
            if rank in members:
                out = torch.full((4096,), float(rank + round_number), device=DEVICE)
                dist.all_reduce(out, group=group)
                assert (out == sum(m + round_number for m in members)).all()
        a, b = (torch.full((1 << 22,), float(rank + k), device=DEVICE) for k in range(2))
        works = [dist.all_reduce(a, async_op=True), dist.all_reduce(b, group=both, async_op=True)]
        [w.wait() for w in works]
        assert (a == sum(range(world))).all() and (b == sum(r + 1 for r in range(world))).all()


def stress(rank: int, world: int, rounds: int = 10_000) -> str:
    """The same random calls on every rank; every result checked; the same bits on all ranks."""
    import ark_torch.distributed as ark

    rng, own = random.Random(7), random.Random(rank)
    groups = [dist.group.WORLD, dist.new_group(list(range(world)))]
    dtypes = (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.float64)
    digest = torch.zeros((), dtype=torch.int64, device=DEVICE)
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    begin = time.monotonic()
    for i in range(rounds):
        kind, dtype = rng.choice(("reduce", "reduce", "gather", "scatter", "broadcast", "to_all")), rng.choice(dtypes)
        size = int(2 ** rng.uniform(0, 21)) if rng.random() < 0.95 else rng.randrange(1 << 21, 1 << 23)
        group, asynchronous = rng.choice(groups), rng.random() < 0.3
        op = rng.choice((dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN))
        base = (torch.arange(size, device=DEVICE) % (i % 7 + 2)).to(dtype)
        if own.random() < 0.01:
            time.sleep(own.random() * 0.01)
        if own.random() < 0.02:
            torch.cuda._sleep(int(own.random() * 2_000_000))
        if kind == "reduce":
            out, wanted = base + rank, reference(base, world, op)
            work = dist.all_reduce(out, op=op, group=group, async_op=asynchronous)
        elif kind == "gather":
            out, wanted = (
                torch.empty(size * world, dtype=dtype, device=DEVICE),
                torch.cat([base + r for r in range(world)]),
            )
            work = dist.all_gather_into_tensor(out, base + rank, group=group, async_op=asynchronous)
        elif kind == "scatter":
            out, wanted = torch.empty_like(base), reference(base, world, op)
            work = dist.reduce_scatter_tensor(
                out, (base + rank).repeat(world), op=op, group=group, async_op=asynchronous
            )
        elif kind == "broadcast":
            root = i % world
            out, wanted = base + rank, base + root
            work = dist.broadcast(out, src=root, group=group, async_op=asynchronous)
        else:
            out, wanted = (
                torch.empty(size * world, dtype=dtype, device=DEVICE),
                torch.cat([base + r + rank for r in range(world)]),
            )
            work = dist.all_to_all_single(
                out, torch.cat([base + rank + r for r in range(world)]), group=group, async_op=asynchronous
            )
        if work is not None:
            work.wait()
        wrong += (out != wanted).any()
        if kind == "reduce":
            digest = digest * 31 + out.view(torch.uint8).sum(dtype=torch.int64)
        if i % 200 == 199:
            torch.cuda.synchronize()
            assert wrong.item() == 0, f"wrong result before round {i}"
            ark.check()
    digests = [torch.zeros_like(digest) for _ in range(world)]
    dist.all_gather(digests, digest)
    assert all(d.item() == digests[0].item() for d in digests)
    return f"{rounds} rounds in {time.monotonic() - begin:.1f} s"


def disagree(rank: int, world: int) -> str:
    import ark_torch.distributed as ark

    try:
        dist.all_reduce(torch.ones(4 if rank else 5, device=DEVICE))
        torch.cuda.synchronize()
        ark.check()
    except RuntimeError as error:
        return str(error)
    return "no error"


def die(rank: int, world: int) -> tuple[str, float]:
    import ark_torch.distributed as ark

    x = torch.ones(1 << 24, device=DEVICE)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(x)
        torch.cuda.synchronize()
        ark.check()
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "no error", 0.0


def train(rank: int, world: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(DEVICE)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        data = torch.randn(world * 4, 64, generator=generator).to(DEVICE)
        optimizer.zero_grad()
        loss = parallel(data[rank * 4 : rank * 4 + 4]).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    return losses


def fully_sharded(rank: int, world: int) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (world,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(DEVICE)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        data = torch.randn(world * 4, 64, generator=generator).to(DEVICE)
        optimizer.zero_grad()
        loss = model(data[rank * 4 : rank * 4 + 4]).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    return losses


def single_process_losses(world: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        data = torch.randn(world * 4, 64, generator=generator).to(DEVICE)
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("world", WORLDS)
def test_collectives(world):
    for delegated in values(run_gpus(collectives, world)):
        assert delegated == {}


@pytest.mark.parametrize("world", WORLDS)
def test_exchanges(world):
    values(run_gpus(exchanges, world))


def test_streams():
    values(run_gpus(streams, WORLDS[-1]))


def test_graphs():
    values(run_gpus(graphs, WORLDS[-1]))


def test_subgroups():
    values(run_gpus(subgroups, WORLDS[-1]))


def test_stress():
    print(values(run_gpus(stress, WORLDS[-1], seconds=60, first_epoch=0xFFFFFF00, first_message=0xFFFFFF00)))


def test_disagreement_raises_on_every_rank():
    for text in values(run_gpus(disagree, WORLDS[-1])):
        assert "all_reduce" in text and ("disagree" in text or "failed" in text), text


def test_dead_rank_raises_within_the_time_out():
    results = run_gpus(die, WORLDS[-1], seconds=5, expect_missing=1)
    assert 1 not in results
    for text, seconds in values(results):
        assert "rank" in text and "all_reduce" in text and seconds < 15, text


def test_ddp_follows_one_process():
    expected = single_process_losses(WORLDS[-1])
    for losses in values(run_gpus(train, WORLDS[-1])):
        assert losses == pytest.approx(expected, rel=1e-4)


def test_fsdp2_follows_one_process():
    expected = single_process_losses(WORLDS[-1])
    for losses in values(run_gpus(fully_sharded, WORLDS[-1])):
        assert losses == pytest.approx(expected, rel=1e-4)
