"""The c10d backend on GPUs: what a group gives back, groups of one rank, groups split off others with a bound device,
coalesced calls, tensors without elements, calls that one rank refuses, barriers behind the stream's work."""

from __future__ import annotations

import gc
import itertools
import re
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.support.distributed_users import batches, build, close, expected, mean_over_ranks, own_rows, shard, train
from tests.support.distributed_worker import run_each, run_gpus, values
from tests.support.message_batches import batches_of_messages, captured_messages, held_until_the_end, messages_to_itself

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
DEVICE = "cuda"


def a_group(world: int, seconds: float = 30) -> dist.ProcessGroup:
    return dist.new_group(list(range(world)), timeout=timedelta(seconds=seconds))


def raised(call, *arguments) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        call(*arguments)
        text = "no error"
    except (RuntimeError, ValueError) as error:
        text = str(error)
    return text, time.monotonic() - begin


def leaks(rank: int, world: int) -> int:
    """Bytes of device memory that a group keeps, which used rings, messages and windows, and one that used NCCL: what
    the best of ten such pairs has not given back. Other processes on the GPU may allocate meanwhile; one that frees as
    much could hide a leak, so nothing should run beside this."""
    import ark_torch.distributed as ark

    def use_a_group() -> None:
        group = a_group(world)
        dist.all_reduce(torch.ones(1 << 22, device=DEVICE), group=group)
        dist.all_reduce(torch.ones(1 << 10, device=DEVICE), group=group, async_op=True).wait()
        peer = (rank + 1) % world, (rank - 1) % world
        x = torch.ones(1 << 20, device=DEVICE)
        sends = dist.P2POp(dist.isend, x, peer[0], group), dist.P2POp(dist.irecv, x.clone(), peer[1], group)
        for work in dist.batch_isend_irecv(list(sends)):
            work.wait()
        y = ark.empty(1 << 20, group=group)
        dist.all_reduce(y.fill_(1.0), group=group)
        kept = torch.ones(1 << 20, device=DEVICE)
        ark.register(kept, group)
        ark._group_options["refuse_cuda"] = "a test says so"
        try:
            of_nccl = a_group(world)
        finally:
            ark._group_options.pop("refuse_cuda")
        dist.all_reduce(x, group=of_nccl)
        torch.cuda.synchronize()
        del y
        dist.destroy_process_group(group)
        dist.destroy_process_group(of_nccl)

    def free_bytes() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        dist.barrier()
        return torch.cuda.mem_get_info()[0]

    calls = ark.delegated_calls().get("all_reduce", 0)
    use_a_group()
    free = [free_bytes()]
    for _ in range(10):
        use_a_group()
        free.append(free_bytes())
    assert ark.delegated_calls()["all_reduce"] == calls + 11  # of groups that have gone
    return min(before - after for before, after in itertools.pairwise(free))


def pending_receive(rank: int, world: int) -> float:
    """Nothing comes for it; the default group goes on."""
    group = a_group(world, 60)
    dist.all_reduce(torch.ones(100, device=DEVICE), group=group)  # all ranks offer their memory
    if rank == 0:
        dist.irecv(torch.ones(100, device=DEVICE), 1, group=group)
    begin = time.monotonic()
    dist.destroy_process_group(group)
    seconds = time.monotonic() - begin
    x = torch.ones(100, device=DEVICE)
    dist.all_reduce(x)
    assert (x == world).all()
    return seconds


def left_at_once(rank: int, world: int) -> tuple[str, float]:
    """The others destroy the group before their first tensor: who waits for memory of theirs hears of it."""
    group = a_group(world, 60)
    result = "", 0.0
    if rank == 0:
        result = raised(lambda: dist.irecv(torch.ones(100, device=DEVICE), 1, group=group))
    dist.destroy_process_group(group)
    return result


def aborted(rank: int, world: int) -> tuple[str, float]:
    """Small collectives, too, which end before they would look at their abort flags."""
    from ark_torch.distributed import backend_of

    group = a_group(world, 30)
    x = torch.ones(100, device=DEVICE)
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    dist.barrier()
    backend_of(group).abort()
    result = raised(lambda: dist.all_reduce(x, group=group))
    dist.barrier()
    dist.destroy_process_group(group)
    return result


def alone(rank: int, world: int) -> None:
    import ark_torch.distributed as ark

    before = ark.delegated_calls()
    group = [dist.new_group([r]) for r in range(world)][rank]
    x = torch.arange(1000.0, device=DEVICE)
    y = x.clone()
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(y, op=op, group=group)
        dist.all_reduce(y, op=op, group=group, async_op=True).wait()
    out = torch.empty_like(x)
    for call in (
        lambda: dist.all_gather_into_tensor(out, x, group=group),
        lambda: dist.reduce_scatter_tensor(out, x, group=group),
        lambda: dist.all_to_all_single(out, x, group=group),
        lambda: dist.all_gather([out], x, group=group),
        lambda: dist.gather(x, [out], dst=rank, group=group),
        lambda: dist.scatter(out, [x], src=rank, group=group),
        lambda: dist.reduce_scatter(out, [x], group=group),
        lambda: dist.all_to_all([out], [x], group=group),
    ):
        out.fill_(-1)
        call()
        assert torch.equal(out, x)
    dist.broadcast(y, src=rank, group=group)
    dist.reduce(y, dst=rank, group=group)
    dist.barrier(group=group)
    dist.barrier(group=group, device_ids=[rank])
    assert torch.equal(y, x)
    assert ark.delegated_calls() == before


def bound(rank: int, world: int) -> None:
    """As after init_process_group(device_id=...): split_group, and FSDP2 beside tensor parallelism on a mesh."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    default = dist.distributed_c10d._get_default_group()
    default.bound_device_id = torch.device("cuda", rank)
    try:
        half = world // 2
        halves = [list(range(half)), list(range(half, world))]
        group = dist.split_group(split_ranks=halves)
        x = torch.full((1000,), float(rank), device=DEVICE)
        dist.all_reduce(x, group=group)
        assert (x == sum(halves[rank >= half])).all()
        dist.barrier(group=group)
        subgroup = dist.new_group(halves[0])  # ranks that are left out tell the group that could be split
        if rank < half:
            dist.all_reduce(x, group=subgroup)
        mesh = init_device_mesh("cuda", (half, 2), mesh_dim_names=("data", "tensor"))
        model = build()
        for block in model:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        shard(model, mesh["data"])
        data = [own_rows(batch, rank // 2) for batch in batches(half)]
        close(mean_over_ranks(train(model, data)), expected(half))
    finally:
        default.bound_device_id = None


def refused_by_one_gpu(rank: int, world: int) -> dict[str, int]:
    """Ark cannot run on rank 1's GPU: every rank hears of it and goes to NCCL; numbers and messages go on."""
    import ark_torch.distributed as ark

    before = ark.delegated_calls()
    if rank == 1:
        ark._group_options["refuse_cuda"] = "a test says so"
    try:
        group = a_group(world)
    finally:
        ark._group_options.pop("refuse_cuda", None)
    for _ in range(3):
        x = torch.full((1000,), float(rank), device=DEVICE)
        dist.all_reduce(x, group=group)
        assert (x == sum(range(world))).all()
        dist.all_reduce(torch.ones(3), group=group)  # on the host, whose numbers are compared
    if rank == 0:
        dist.send(x, 1, group=group)
    elif rank == 1:
        dist.recv(x, 0, group=group)
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    after = ark.delegated_calls()
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def coalesced(rank: int, world: int) -> None:
    xs = [torch.full((n,), float(rank + n), device=DEVICE) for n in (1, 5, 1000, 1 << 20)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    assert all((x == sum(r + len(x) for r in range(world))).all() for x in xs)
    outs = [torch.empty(world * n, device=DEVICE) for n in (2, 7, 70_000)]
    with dist._coalescing_manager():
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((len(out) // world,), float(rank), device=DEVICE))
    ranks = torch.arange(float(world), device=DEVICE)
    assert all(torch.equal(o, ranks.repeat_interleave(len(o) // world)) for o in outs)
    parts = [torch.empty(n, device=DEVICE) for n in (3, 8, 70_000)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(len(part) * world, device=DEVICE))
    assert all((part == world).all() for part in parts)
    future = dist.all_reduce(torch.ones(2, device=DEVICE), async_op=True).get_future()
    assert future.then(lambda f: f.value()[0].sum().item() + 1).wait() == 2 * world + 1


def names_in_the_profiler(rank: int, world: int) -> list[str]:
    x, y = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        batch = [dist.P2POp(dist.irecv, y, rank), dist.P2POp(dist.isend, x, rank)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        torch.cuda.synchronize()
    return sorted(event.name for event in profile.events() if event.name.startswith("ark:"))


def after_a_capture(rank: int, world: int) -> None:
    """An eager call comes after those before the capture, though the last one called was captured."""
    stream, graph, x = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.ones(1000, device=DEVICE)
    dist.all_reduce(x.clone())
    dist.all_reduce(x.clone(), async_op=True).wait()
    torch.cuda.synchronize()
    first, second = x.clone(), x.clone()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        work = dist.all_reduce(first, async_op=True)
    other, captured = torch.cuda.Stream(), x.clone()
    with torch.cuda.stream(other):
        graph.capture_begin(capture_error_mode="relaxed")  # unlike torch.cuda.graph it waits for nothing
        dist.all_reduce(captured)
        graph.capture_end()
    dist.all_reduce(second)
    assert (second == world).all()
    assert work.is_completed()
    assert (first == world).all()


def nothing(rank: int, world: int) -> None:
    """Tensors without elements in every call."""
    empty = lambda: torch.empty(0, device=DEVICE)
    several = lambda: [empty() for _ in range(world)]
    dist.all_reduce(empty())
    dist.reduce(empty(), 0)
    dist.broadcast(torch.empty(0, 3, device=DEVICE), 0)
    dist.all_gather_into_tensor(empty(), empty())
    dist.all_gather(several(), empty())
    dist.reduce_scatter_tensor(empty(), empty())
    dist.all_to_all_single(empty(), empty())
    dist.all_to_all(several(), several())
    dist.gather(empty(), several() if rank == 0 else None)
    dist.scatter(empty(), several() if rank == 0 else None)
    if rank == 0:
        dist.send(empty(), 1)
    elif rank == 1:
        dist.recv(empty(), 0)
    x = torch.ones(1, device=DEVICE)
    dist.all_reduce(x)
    assert x.item() == world


def barrier_after_the_stream(rank: int, world: int) -> tuple[bool, float]:
    """Whether this rank's stream has ended, and how long the barrier took; rank 0 has work for a while."""
    dist.barrier()
    if rank == 0:
        torch.cuda._sleep(1_000_000_000)  # about half a second
    begin = time.monotonic()
    dist.barrier()
    return torch.cuda.current_stream().query(), time.monotonic() - begin


def refused(rank: int, world: int) -> tuple[str, float]:
    """Rank 1 refuses its call; the others are in theirs, or come to it later. Last: the group is broken."""
    import ark_torch.distributed as ark

    group = a_group(world, 60)
    dist.all_reduce(torch.ones(4, device=DEVICE), group=group)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(0.5)

    def call() -> None:
        out = torch.empty(7 if rank == 1 else 4 * world, device=DEVICE)
        dist.all_gather_into_tensor(out, torch.ones(4, device=DEVICE), group=group)
        torch.cuda.synchronize()
        ark.check(group)

    return raised(call)


def disagree(rank: int, world: int) -> str:
    """The number of the collective is in the text."""
    import ark_torch.distributed as ark

    group = a_group(world, 10)
    for _ in range(3):
        dist.all_reduce(torch.ones(4, device=DEVICE), group=group)

    def call() -> None:
        dist.all_reduce(torch.ones(4 + (rank == 1), device=DEVICE), group=group)
        torch.cuda.synchronize()
        ark.check(group)

    return raised(call)[0]


def types(rank: int, world: int) -> dict[str, str]:
    import ark_torch.distributed as ark

    texts = {}
    for number, name in enumerate(("all_gather", "broadcast")):
        group = a_group(world, 20 + number)
        x = torch.ones(4, device=DEVICE, dtype=torch.int32 if rank == 1 else torch.float32)

        def call(name: str = name, group: dist.ProcessGroup = group, x: torch.Tensor = x) -> None:
            if name == "broadcast":
                dist.broadcast(x, 0, group=group)
            else:
                dist.all_gather_into_tensor(x.new_empty(4 * world), x, group=group)
            torch.cuda.synchronize()
            ark.check(group)

        texts[name] = raised(call)[0]
    return texts


FUNCTIONS = (
    alone,
    coalesced,
    captured_messages,
    batches_of_messages,
    held_until_the_end,
    messages_to_itself,
    names_in_the_profiler,
    after_a_capture,
    nothing,
    barrier_after_the_stream,
    bound,
    refused_by_one_gpu,
    leaks,
    left_at_once,
    pending_receive,
    aborted,
    disagree,
    types,
    refused,
)

# What a rank says that hears of a failure from another.
HEARD = (
    r"rank \d+ (has failed|gave up: this rank did not arrive there in time, or disagreed"
    r"|did not arrive in time, or disagreed, at rank \d+, which gave up)"
)


def together(rank: int, world: int) -> dict[str, tuple[str, object]]:
    return run_each(FUNCTIONS, rank, world, seconds=60)


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return values(run_gpus(together, GPUS - GPUS % 2, seconds=40))


def of(ranks: list[dict], function) -> list:
    return values({rank: results[function.__name__] for rank, results in enumerate(ranks)})


ALONE = (
    alone,
    bound,
    coalesced,
    captured_messages,
    batches_of_messages,
    held_until_the_end,
    messages_to_itself,
    after_a_capture,
    nothing,
)


@pytest.mark.parametrize("function", ALONE, ids=lambda f: f.__name__)
def test_function(ranks, function):
    of(ranks, function)


def test_destroyed_groups_leave_no_memory(ranks):
    for lost in of(ranks, leaks):
        assert lost < 8 << 20


def test_a_group_that_others_have_left(ranks):
    text, seconds = of(ranks, left_at_once)[0]
    assert "rank 1 did not offer its memory" in text and "rank 1 has destroyed the group" in text, text
    assert seconds < 20


def test_names_in_the_profiler(ranks):
    for names in of(ranks, names_in_the_profiler):
        assert names == ["ark:all_reduce", "ark:all_reduce", "ark:recv", "ark:send"]


@pytest.mark.parametrize("world", [2, 4])
def test_batches_through_one_queue_of_the_device(world, monkeypatch):
    if world > GPUS:
        pytest.skip(f"needs {world} GPUs")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for
    values(run_gpus(batches_of_messages, world, seconds=10))


def test_nothing_runs_on_an_aborted_group(ranks):
    for text, seconds in of(ranks, aborted):
        assert "the group was aborted" in text and seconds < 5


def test_destroying_ends_a_receive_that_nothing_comes_for(ranks):
    for seconds in of(ranks, pending_receive):
        assert seconds < 15


def test_a_rank_that_cannot_run_takes_all_to_nccl(ranks):
    for rank, delegated in enumerate(of(ranks, refused_by_one_gpu)):
        assert delegated.pop("all_reduce") == 3
        assert delegated == ({"send": 1} if rank == 0 else {"recv": 1} if rank == 1 else {})


def test_a_barrier_follows_what_the_stream_holds(ranks):
    for ended, seconds in of(ranks, barrier_after_the_stream):
        assert ended and seconds > 0.1


def test_a_call_that_one_rank_refuses_raises_on_all_at_once(ranks):
    world, texts = len(ranks), of(ranks, refused)
    for rank, (text, seconds) in enumerate(texts):
        assert seconds < 30
        if rank == 1:
            assert f"all_gather_into_tensor: expected an output of {4 * world} elements of Float, got 7" in text, text
            continue
        in_its_kernel = rf"rank {rank}, collective number 1, all_gather of 16 bytes of f32: {HEARD}"
        before_it = rf"all_gather_into_tensor number 1 of group \S+ on rank {rank}: rank 1 refused its call"
        assert re.search(f"{in_its_kernel}|{before_it}", text), text
    assert any("rank 1 has failed" in text or "rank 1 refused" in text for text, _ in texts)


def test_types_that_differ_raise_on_every_rank(ranks):
    for rank, texts in enumerate(of(ranks, types)):
        for name, size, number in (("all_gather", 16, 0), ("broadcast", 16, 0)):
            own, other = ("i32", "f32") if rank == 1 else ("f32", "i32")
            call = rf"rank {rank}, collective number {number}, {name} of {size} bytes of {own}(, root 0)?: "
            why = rf"the ranks disagree: rank \d+ called {name} of {size} bytes of {other}|{HEARD}"
            assert re.search(f"{call}({why})", texts[name]), texts


def test_disagreements_name_rank_operation_and_number(ranks):
    """A rank sees for itself that another differs, or hears from one that has seen it."""
    texts = of(ranks, disagree)
    for rank, text in enumerate(texts):
        own, call = 5 if rank == 1 else 4, r"all_reduce \(sum\) of {} elements of f32"
        why = rf"the ranks disagree: rank \d+ called {call.format(4 if rank == 1 else 5)}|{HEARD}"
        assert re.search(rf"rank {rank}, collective number 3, {call.format(own)}: ({why})", text), text
    assert any("the ranks disagree" in text for text in texts)
