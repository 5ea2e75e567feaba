"""Collectives of ark, NCCL and torch's symmetric memory side by side: the table that users of nccl-tests know.

    torchrun --nproc-per-node=4 benchmarks/collectives.py --json benchmarks/results/h200/collectives_4.json

size is that of nccl-tests (all-reduce: of the tensor; all-gather, reduce-scatter, all-to-all: of the whole, over all
ranks); algbw = size / time, busbw = algbw * 2 (n - 1) / n (all-reduce) or (n - 1) / n. A time is that of one call in a
chain of calls, the slowest rank's: in a CUDA graph, and eager. Contestants take turns within each round. Every result
is checked before anything is timed, ark's also for equal bits on all ranks. "ark registered": the
tensors that are read or written by the peers come from ark_torch.distributed.empty.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

# NVLink multicast stays off, for every contestant.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NVSHMEM_DISABLE_NVLS"] = "1"

import torch
import torch.distributed as dist

import ark_torch.distributed as ark
from harness import summary, write_json

SIZES = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DTYPE = torch.bfloat16
REGISTERED = "ark registered"  # tensors of ark_torch.distributed.empty where it makes a difference
REGISTERED_FROM = 1 << 20
# us, all-reduce in a graph: (world, bytes) -> what must be reached. From 64 MB on it is NCCL's time in the same run.
MUST = {
    (2, 8 << 10): 3.5, (2, 64 << 10): 4, (2, 1 << 20): 8.5, (2, 4 << 20): 18,
    (4, 8 << 10): 4, (4, 64 << 10): 4.5, (4, 1 << 20): 10.5, (4, 4 << 20): 25,
    (8, 8 << 10): 5, (8, 64 << 10): 6.5, (8, 1 << 20): 12, (8, 4 << 20): 27,
}  # fmt: skip


def symmetric_all_reduce(group: dist.ProcessGroup, size: int) -> dict[str, tuple[torch.Tensor, Callable]]:
    """torch.ops.symm_mem's kernels that need no multicast: tensor and call."""
    import torch.distributed._symmetric_memory as symm_mem

    name = group.group_name
    found = {}
    for kind in ("one_shot", "two_shot"):
        if size > (1 << 20 if kind == "one_shot" else 64 << 20):
            continue
        tensor = symm_mem.empty(
            size // DTYPE.itemsize, dtype=DTYPE, device=torch.device("cuda", torch.cuda.current_device())
        )
        symm_mem.rendezvous(tensor, name)
        if kind == "one_shot":
            out = torch.empty_like(tensor)
            call = lambda t=tensor, o=out: torch.ops.symm_mem.one_shot_all_reduce_out(t, "sum", name, o)
            found["symm_mem one_shot"] = (tensor, call, out)
        else:
            call = lambda t=tensor: torch.ops.symm_mem.two_shot_all_reduce_(t, "sum", name)
            found["symm_mem two_shot"] = (tensor, call, tensor)
    return found


def calls_of(op: str, size: int, groups: dict, world: int) -> dict[str, tuple]:
    """Contestant -> (input, call, output)."""
    found = {}
    n = size // DTYPE.itemsize
    ordinary = lambda k: torch.empty(k, dtype=DTYPE, device="cuda")
    for name, group in groups.items():
        if name == REGISTERED and size < REGISTERED_FROM:
            continue
        make = (lambda k: ark.empty(k, dtype=DTYPE)) if name == REGISTERED else ordinary
        if op == "all_reduce":
            x = make(n)
            found[name] = (x, lambda x=x, g=group: dist.all_reduce(x, group=g), x)
            continue
        whole, part = make(n), ordinary(n // world)
        if op == "all_gather":
            found[name] = (part, lambda w=whole, p=part, g=group: dist.all_gather_into_tensor(w, p, group=g), whole)
        elif op == "reduce_scatter":
            found[name] = (whole, lambda w=whole, p=part, g=group: dist.reduce_scatter_tensor(p, w, group=g), part)
        else:
            out, whole = whole, ordinary(n)
            found[name] = (whole, lambda w=whole, o=out, g=group: dist.all_to_all_single(o, w, group=g), out)
    if op == "all_reduce" and "nccl" in groups and world > 1:
        try:
            found |= symmetric_all_reduce(groups["nccl"], size)
        except (RuntimeError, AttributeError) as error:
            if dist.get_rank() == 0:
                print("symm_mem:", str(error).splitlines()[0])
    return found


def pattern(n: int, rank: int) -> torch.Tensor:
    """Small integers: sums are exact in bf16, and every rank's differ."""
    return (torch.arange(n, device="cuda") % 13 + rank).to(DTYPE)


def check(op: str, name: str, case: tuple, rank: int, world: int) -> None:
    x, call, out = case
    x.copy_(pattern(x.numel(), rank))
    if out is not x:
        out.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    if op == "all_reduce":
        wanted = sum(pattern(x.numel(), r).float() for r in range(world)).to(DTYPE)
    elif op == "all_gather":
        wanted = torch.cat([pattern(x.numel(), r) for r in range(world)])
    elif op == "reduce_scatter":
        wanted = sum(pattern(x.numel(), r).float() for r in range(world)).to(DTYPE).chunk(world)[rank]
    else:
        wanted = torch.cat([pattern(x.numel(), r).chunk(world)[rank] for r in range(world)])
    if not torch.equal(out, wanted):
        raise AssertionError(f"{name}, {op} of {x.numel()} elements: wrong result on rank {rank}")
    if name.startswith("ark") and op == "all_reduce":
        # Random values: the same bits everywhere.
        x.normal_(generator=torch.Generator("cuda").manual_seed(rank))
        call()
        words = out.view(torch.int16)[: 1 << 22].long()
        mine = (words * (torch.arange(words.numel(), device="cuda") % 1009 + 1)).sum()
        digests = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(digests, mine)
        if any(d != digests[0] for d in digests):
            raise AssertionError(f"ark, all_reduce of {x.numel()} elements: ranks have different bits")


def graph_of(case: tuple, chain: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        case[1]()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(chain):
            case[1]()
    return graph


def timed(run: Callable, calls: int, scratch: torch.Tensor) -> float:
    """us of one call, the slowest rank's."""
    dist.all_reduce(scratch)  # ranks start together
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    scratch.fill_(begin.elapsed_time(end) * 1e3 / calls)
    dist.all_reduce(scratch, op=dist.ReduceOp.MAX)
    return scratch.item()


def measure(op: str, size: int, groups: dict, rounds: int, eager: bool) -> list[dict]:
    rank, world = dist.get_rank(), dist.get_world_size()
    cases = calls_of(op, size, groups, world)
    failed = {}
    for name, case in list(cases.items()):
        try:
            check(op, name, case, rank, world)
        except RuntimeError as error:
            failed[name] = str(error).splitlines()[0]
            del cases[name]
    for x, _, _ in cases.values():
        x.zero_()
    chain = 20 if size <= 4 << 20 else 4 if size <= 64 << 20 else 2
    scratch = torch.zeros(1, device="cuda")
    rows = []
    for mode in ("graph", "eager") if eager else ("graph",):
        replays = max(1, 100 // chain) if size <= 4 << 20 else 2
        runs = {}
        for name, case in cases.items():
            if mode == "graph":
                graph = graph_of(case, chain)
                runs[name] = lambda g=graph, k=replays: [g.replay() for _ in range(k)]
            else:
                runs[name] = lambda c=case[1], k=chain * replays: [c() for _ in range(k)]
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for round_number in range(rounds + 1):
            names = list(runs)
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                time = timed(runs[name], chain * replays, scratch)
                if round_number:  # the first warms up
                    samples[name].append(time)
        results = {name: summary(s) for name, s in samples.items()}
        must = MUST.get((world, size)) if (op, mode) == ("all_reduce", "graph") else None
        if (op, mode) == ("all_reduce", "eager") and size == 8 << 10 and "nccl" in results:
            must = results["nccl"]["median"] / 2
        elif must is None and mode == "graph" and "nccl" in results:
            must = results["nccl"]["median"]
        factor = (2 if op == "all_reduce" else 1) * (world - 1) / world
        for result in results.values():
            result["busbw"] = size / result["median"] / 1e3 * factor
        row = {"case": f"{op}, {size} bytes, {world} GPUs, {mode}", "op": op, "bytes": size, "mode": mode, "unit": "us"}
        row |= {"better": "lower", "ark": results.pop("ark", None), "registered": results.pop(REGISTERED, None)}
        row |= {"rivals": results, "floor": None, "must": must}
        row |= {"errors": {}} | ({"failed": failed} if failed else {})
        rows.append(row)
        if rank == 0:
            show(row)
        runs.clear()
    return rows


def show(row: dict) -> None:
    columns = {"ark": row["ark"], REGISTERED: row["registered"]} | row["rivals"]
    text = " ".join(
        f"| {name} {r['median']:9.2f} us {row['bytes'] / r['median'] / 1e3:7.1f} {r['busbw']:7.1f} GB/s"
        for name, r in columns.items()
        if r
    )
    must = f"| must {row['must']:.2f}" if row["must"] else ""
    print(f"{row['op']:>15} {row['bytes']:>11} {row['mode']:>6} {text} {must}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ops", nargs="*", default=OPS, choices=OPS)
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--eager-below", type=int, default=1 << 20, help="eager calls up to this size")
    args = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("ark")
    groups = {"ark": dist.group.WORLD, REGISTERED: dist.group.WORLD}
    if dist.is_nccl_available():
        groups["nccl"] = dist.new_group(backend="nccl")
    rows = []
    if dist.get_rank() == 0:
        print("columns of a contestant: time, algbw, busbw")
    for op in args.ops:
        for size in SIZES:
            if size <= args.max_bytes:
                rows += measure(op, size, groups, args.rounds, size <= args.eager_below)
                torch.cuda.empty_cache()
    ark.check()
    if dist.get_rank() == 0:
        write_json(args.json, rows, delegated=ark.delegated_calls(), multicast=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
