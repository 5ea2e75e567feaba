"""How much does communication disturb computation? A loop of GEMMs beside 64 MB all-reduces, and the other way round.

    torchrun --nproc-per-node=2 benchmarks/interference.py --json benchmarks/results/h200/interference.json

Of the GEMM loop: how much longer it takes while all-reduces follow each other on another stream all the time. Of the
all-reduces: their rate while GEMMs run all the time, as a part of their rate alone. Contestants take turns within each
round; the slowest rank counts.
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

DTYPE = torch.bfloat16


class Load:
    """What runs on one stream: calls, the last of which may return a work; timed by events of that stream."""

    def __init__(self, call: Callable) -> None:
        self.call = call
        self.stream = torch.cuda.Stream()

    def start(self, count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            begin.record()
            work = None
            for _ in range(count):
                work = self.call()
            if work is not None:
                work.wait()
            end.record()
        return begin, end


def slowest(ms: float, scratch: torch.Tensor) -> float:
    scratch.fill_(ms)
    dist.all_reduce(scratch, op=dist.ReduceOp.MAX)
    return scratch.item()


def together(first: Load, first_count: int, second: Load | None, second_count: int, scratch: torch.Tensor) -> float:
    """Milliseconds of one call of `first` while `second`, started before it, runs for longer."""
    for _ in range(6):
        dist.all_reduce(scratch)  # ranks start together
        torch.cuda.synchronize()
        covered = second.start(second_count) if second else None
        begin, end = first.start(first_count)
        end.synchronize()
        too_short = covered is not None and covered[1].query()
        torch.cuda.synchronize()
        if not slowest(float(too_short), scratch):
            return slowest(begin.elapsed_time(end) / first_count, scratch)
        second_count *= 2
    raise AssertionError(f"{second_count // 2} calls of the load ended before what was measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=4096, help="of the square matrices")
    parser.add_argument("--gemms", type=int, default=60)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("ark")
    world = dist.get_world_size()
    groups = {"ark": dist.group.WORLD, "ark registered": dist.group.WORLD, "nccl": dist.new_group(backend="nccl")}
    a, b = (torch.randn(args.size, args.size, device="cuda", dtype=DTYPE) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)

    gemm = Load(multiply)
    loads = {}
    for name, group in groups.items():
        n = args.bytes // DTYPE.itemsize
        x = ark.empty(n, dtype=DTYPE) if "registered" in name else torch.empty(n, dtype=DTYPE, device="cuda")
        x.zero_()
        loads[name] = Load(lambda x=x, g=group: dist.all_reduce(x, group=g, async_op=True))
    scratch = torch.zeros(1, device="cuda")
    for load in (gemm, *loads.values()):  # warm up
        load.start(5)
        torch.cuda.synchronize()
    alone = {name: together(load, 20, None, 0, scratch) for name, load in loads.items()}
    gemm_alone = together(gemm, args.gemms, None, 0, scratch)
    slow = {name: [] for name in loads}
    rate = {name: [] for name in loads}
    for _ in range(args.rounds):
        gemm_alone_now = together(gemm, args.gemms, None, 0, scratch)
        for name, load in loads.items():
            # Enough all-reduces to last longer than the GEMMs, though these take twice their time.
            cover = int(2 * gemm_alone * args.gemms / alone[name]) + 4
            slow[name].append((together(gemm, args.gemms, load, cover, scratch) / gemm_alone_now - 1) * 100)
            count = max(4, int(0.4 * args.gemms * gemm_alone / alone[name] / 4))
            rate[name].append(alone[name] / together(load, count, gemm, args.gemms, scratch))
    rows = []
    for case, unit, better, samples in (
        ("GEMM loop beside all-reduces: slow-down", "%", "lower", slow),
        ("all-reduce beside a GEMM loop: part of its rate alone", "1", "higher", rate),
    ):
        results = {name: summary(values) for name, values in samples.items()}
        row = {"case": f"{case}, {args.bytes >> 20} MB, GEMM of {args.size}^3, {world} GPUs", "unit": unit}
        row |= {"better": better, "ark": results.pop("ark"), "rivals": results, "floor": None}
        row |= {"must": results["nccl"]["median"], "errors": {}}
        rows.append(row)
    busbw = {name: args.bytes / ms / 1e6 * 2 * (world - 1) / world for name, ms in alone.items()}
    if dist.get_rank() == 0:
        print(f"GEMM alone {gemm_alone:.4f} ms; all-reduce alone ms: {alone}; GB/s: {busbw}", flush=True)
        for row in rows:
            print(row["case"], "ark", row["ark"]["median"], {k: v["median"] for k, v in row["rivals"].items()})
        write_json(args.json, rows, alone_ms={"gemm": gemm_alone, **alone}, busbw=busbw, multicast=False)
    ark.check()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
