"""The c10d backend on GPUs: every call of torch.distributed against what it must give, streams, graphs, faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.collective_reference import check_factors, check_not_numbers, reference
from tests.support.collective_stress import ROUNDS, stress_on_gpus
from tests.support.distributed_worker import run_each, run_gpus, values

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
WORLDS = sorted({world for world in (2, 4, 8, GPUS) if 2 <= world <= GPUS}) or [2]
DEVICE = "cuda"


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


def not_numbers(rank: int, world: int) -> None:
    check_not_numbers(rank, world, DEVICE, (100, 70001, 3_000_000))


def factors(rank: int, world: int) -> None:
    import ark_torch.distributed as ark

    before = ark.delegated_calls()
    check_factors(rank, world, DEVICE)
    assert ark.delegated_calls() == before


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


def registered(rank: int, world: int) -> None:
    """Tensors that all ranks have mapped, made by empty and registered, whole and in part, eager and in a graph."""
    import ark_torch.distributed as ark

    ranks, n = range(world), 3_000_001
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        base = (torch.arange(n, device=DEVICE) % 5 + 1).to(dtype)
        made, own = ark.empty(n, dtype=dtype), torch.empty(n, dtype=dtype, device=DEVICE)
        with ark.register(own):
            for x in (made, own, made[:-8], own[8:], made[1:-1]):
                for _ in range(3):
                    x.copy_(base[: len(x)] + rank)
                    dist.all_reduce(x)
                    assert torch.equal(x, reference(base[: len(x)], world, dist.ReduceOp.SUM)), (dtype, len(x))
            gathered = ark.empty(n * world, dtype=dtype)
            dist.all_gather_into_tensor(gathered, base + rank)
            assert torch.equal(gathered, torch.cat([base + r for r in ranks]))
            whole = ark.empty(n * world, dtype=dtype)
            whole.copy_(torch.cat([base + rank + 2 * k for k in ranks]))
            dist.reduce_scatter_tensor(own, whole)
            assert torch.equal(own, reference(base + 2 * rank, world, dist.ReduceOp.SUM))
            exchanged = ark.empty(n * world, dtype=dtype)
            dist.all_to_all_single(exchanged, whole)
            assert torch.equal(exchanged, torch.cat([base + r + 2 * rank for r in ranks]))
            made.copy_(base + rank)
            dist.broadcast(made, src=world - 1)
            assert torch.equal(made, base + world - 1)
            dist.reduce(own.copy_(base + rank), dst=0)
            assert rank or torch.equal(own, reference(base, world, dist.ReduceOp.SUM))
        dist.all_reduce(own.copy_(base + rank))  # as before, but staged
        assert torch.equal(own, reference(base, world, dist.ReduceOp.SUM))
    x = ark.empty(1 << 22)
    dist.all_reduce(x.zero_())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            dist.all_reduce(x)
    for i in range(20):
        x.fill_(rank + i)
        graph.replay()
        assert (x == world * world * sum(r + i for r in ranks)).all(), i
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        ark.empty(256 << 20, dtype=torch.uint8)
    assert torch.cuda.mem_get_info()[0] > before - (2 << 30)  # what nobody holds is given back
    ark.check()


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


def die_in_a_kernel(rank: int, world: int) -> tuple[str, float]:
    """Rank 1 ends while its own kernels and those of the others are in the middle of a collective."""
    import ark_torch.distributed as ark

    x = torch.ones(1 << 28, device=DEVICE)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    for _ in range(200):  # about 0.5 s of them
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    if rank == 1:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        torch.cuda.synchronize()
        ark.check()
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "no error", 0.0


def mismatches(rank: int, world: int) -> list[str]:
    """Disagreements of every kind, each in a group of its own."""
    import ark_torch.distributed as ark

    ones = lambda n, dtype=torch.float32: torch.ones(n, dtype=dtype, device=DEVICE)
    odd = rank == 1

    def uneven(group, scale: int) -> None:
        """Rank 1 sends more to rank 0 than this expects; a rank that is not concerned hears of it next time."""
        to = [scale + (odd and r == 0) for r in range(world)]
        dist.all_to_all_single(ones(scale * world), ones(sum(to)), [scale] * world, to, group=group)
        torch.cuda.synchronize()
        ark.check(group)
        dist.all_reduce(ones(64), group=group)

    def point(group, size: int) -> None:
        """The same of a send."""
        if odd:
            dist.send(ones(size + 1), dst=0, group=group)
        elif rank == 0:
            dist.recv(ones(size), src=1, group=group)
        torch.cuda.synchronize()
        ark.check(group)
        dist.all_reduce(ones(64), group=group)

    def gather(out: torch.Tensor, group) -> None:
        """Of a size at which registered memory is written in place."""
        dist.all_gather_into_tensor(out, ones(out.numel() // world), group=group)

    plain = lambda x, wanted: torch.empty_like(x) if wanted else x
    calls = {
        "size": lambda g: dist.all_reduce(ones(100_000 + odd), group=g),
        "large size": lambda g: dist.all_reduce(ones(10_000_000 + odd), group=g),
        "dtype": lambda g: dist.all_reduce(ones(64, torch.int32 if odd else torch.float32), group=g),
        "reduction": lambda g: dist.all_reduce(ones(64), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=g),
        "factor": lambda g: dist.all_reduce(
            ones(64), op=dist._make_nccl_premul_sum(2.0) if odd else dist.ReduceOp.SUM, group=g
        ),
        "root": lambda g: dist.broadcast(ones(64), src=int(odd), group=g),
        "registration": lambda g: gather([ark.empty(1 << 22, group=g) for _ in range(2)][odd], g),
        "registered or not": lambda g: gather(plain(ark.empty(1 << 22, group=g), odd), g),
        "uneven": lambda g: uneven(g, 100),
        "uneven, large": lambda g: uneven(g, 1_000_000),
        "point": lambda g: point(g, 100),
        "point, large": lambda g: point(g, 1_000_000),
        "operation": lambda g: dist.barrier(group=g) if odd else dist.all_reduce(ones(64), group=g),
    }
    texts = []
    for name, call in calls.items():
        group = dist.new_group(list(range(world)), timeout=timedelta(seconds=5))
        text = "no error"
        try:
            call(group)
            torch.cuda.synchronize()
            ark.check(group)
        except (RuntimeError, ValueError) as error:
            text = str(error)
        texts.append(f"{name}: {text}")
        print(f"rank {rank}: {texts[-1]}", flush=True)
    return texts


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


HEALTHY = (collectives, not_numbers, factors, exchanges, streams, graphs, subgroups, registered, train, fully_sharded)


def together(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(HEALTHY, rank, world)


@pytest.fixture(scope="module", params=WORLDS)
def outcome(request) -> Callable[[Callable], list]:
    """What a function of HEALTHY returned on every rank; starting processes takes longer than most of them."""
    ranks = values(run_gpus(together, request.param, seconds=100))
    return lambda function: values({rank: results[function.__name__] for rank, results in enumerate(ranks)})


@pytest.mark.parametrize("function", [not_numbers, factors, exchanges, streams, graphs, subgroups, registered])
def test_function(outcome, function):
    outcome(function)


def test_collectives(outcome):
    for delegated in outcome(collectives):
        assert delegated == {}


@pytest.mark.parametrize("function", [train, fully_sharded])
def test_training_follows_one_process(outcome, function):
    ranks = outcome(function)
    expected = single_process_losses(len(ranks))
    for losses in ranks:
        assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("world", WORLDS)
def test_stress(world):
    """Epochs and counts of messages wrap on the way. ARK_STRESS_ROUNDS=10000 for more rounds."""
    seconds = 100 + ROUNDS // 40
    print(values(run_gpus(stress_on_gpus, world, seconds=seconds, first_epoch=0xFFFFFF80, first_message=0xFFFFFF00)))


def test_every_mismatch_raises_on_every_rank():
    ranks = values(run_gpus(mismatches, WORLDS[-1], seconds=20))
    for texts in ranks:
        for text in texts:
            assert "rank" in text and any(word in text for word in ("disagree", "failed", "did not")), text
    for name, size in (("uneven", 400), ("point", 400), ("uneven, large", 4_000_000), ("point, large", 4_000_000)):
        said = [t for texts in ranks[:2] for t in texts if t.startswith(f"{name}:")]
        sides = (f"rank 1 sends {size + 4} bytes to this rank, which expects {size}",
                 f"rank 0 expects {size} bytes from this rank, which sends {size + 4}")  # fmt: skip
        assert any(side in t for t in said for side in sides), said


@pytest.mark.parametrize("function", [die, die_in_a_kernel])
def test_rank_that_dies(function):
    results = run_gpus(function, WORLDS[-1], seconds=10, expect_missing=1)
    assert 1 not in results
    for text, seconds in values(results):
        assert "rank 1" in text and "all_reduce" in text and seconds < 15, text
