"""How much of DDP's communication is not hidden? BERT-Large, read off the GPU's timeline.

    torchrun --nproc-per-node=2 benchmarks/ddp.py --json benchmarks/results/h200/ddp_2.json

Exposed: time in which a kernel of the collectives runs and no other does, from the first to the last kernel of a step
(forward, backward, SGD), the largest of the ranks. The step's time is measured without the profiler. The whole step is
captured in a CUDA graph, for both: launched one by one, its kernels wait for the CPU, and collectives for the slowest
of all ranks' CPUs (--eager measures that).
"""

from __future__ import annotations

import argparse
import os
import time

# NVLink multicast stays off, for every contestant.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NVSHMEM_DISABLE_NVLS"] = "1"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ark_torch.distributed as ark
from harness import summary, write_json
from models import bert_batch, bert_large

COLLECTIVE = ("ark_packets", "ark_ring", "ark_exchange", "ark_direct", "ark_point", "ncclDevKernel", "ncclKernel")


class Trainer:
    def __init__(self, group: dist.ProcessGroup, args: argparse.Namespace) -> None:
        local = int(os.environ["LOCAL_RANK"])
        self.stream, self.graph = torch.cuda.Stream(), None
        model = bert_large("cuda", num_hidden_layers=args.layers)
        self.batch = bert_batch(model, args.batch, args.sequence, seed=1 + dist.get_rank())
        with torch.cuda.stream(self.stream):
            self.model = DistributedDataParallel(
                model, device_ids=[local], process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False,
                bucket_cap_mb=args.bucket,
            )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, fused=True)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            loss = self.model(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def warm_up(self) -> list[float]:
        """The first losses. DDP settles its buckets, and measures its first ten steps, before it may be captured."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = [self.step() for _ in range(12)]
        torch.cuda.synchronize()
        return [loss.item() for loss in losses]

    def capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.loss = self.step()
        self.graph = graph

    def run(self) -> torch.Tensor:
        if self.graph is None:
            return self.step()
        self.graph.replay()
        return self.loss


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[list[float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return [(b, e) for b, e in joined]


def uncovered(spans: list[tuple[float, float]], cover: list[tuple[float, float]]) -> float:
    """Length of `spans` that `cover` leaves free; both merged."""
    free, at = 0.0, 0
    for begin, end in spans:
        here = begin
        while at < len(cover) and cover[at][1] <= begin:
            at += 1
        k = at
        while k < len(cover) and cover[k][0] < end:
            free += max(0.0, cover[k][0] - here)
            here = max(here, cover[k][1])
            k += 1
        free += max(0.0, end - here)
    return free


def timeline(trainer: Trainer, steps: int) -> tuple[float, float]:
    """ms a step: communication exposed, communication in all."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            trainer.run()
        torch.cuda.synchronize()
    collectives, others = [], []
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
            continue
        span = (event.time_range.start, event.time_range.end)
        (collectives if any(name in event.name for name in COLLECTIVE) else others).append(span)
    assert collectives and others, f"{len(collectives)} kernels of collectives, {len(others)} others on the timeline"
    collectives, others = merged(collectives), merged(others)
    return uncovered(collectives, others) / 1e3 / steps, sum(e - b for b, e in collectives) / 1e3 / steps


def largest(value: float) -> float:
    scratch = torch.tensor([value], device="cuda", dtype=torch.float64)
    dist.all_reduce(scratch, op=dist.ReduceOp.MAX)
    return scratch.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--sequence", type=int, default=384)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--bucket", type=float, default=25, help="MB, DDP's default")
    parser.add_argument("--eager", action="store_true", help="kernels launched one by one")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("ark")
    groups = {"ark": dist.group.WORLD, "nccl": dist.new_group(backend="nccl")}
    trainers = {name: Trainer(group, args) for name, group in groups.items()}
    losses = {name: trainer.warm_up() for name, trainer in trainers.items()}
    if not args.eager:
        for name, trainer in trainers.items():
            trainer.capture()
            losses[name] += [trainer.run().item() for _ in range(3)]
    for ours, theirs in zip(losses["ark"], losses["nccl"]):
        assert abs(ours - theirs) < 2e-3 * abs(theirs), f"losses differ: {losses}"
    samples = {key: {name: [] for name in trainers} for key in ("exposed", "busy", "step")}
    for _ in range(args.rounds):
        for name, trainer in trainers.items():
            trainer.run()
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(args.steps):
                trainer.run()
            torch.cuda.synchronize()
            samples["step"][name].append(largest((time.perf_counter() - begin) * 1e3 / args.steps))
            exposed, busy = timeline(trainer, args.steps)
            samples["exposed"][name].append(largest(exposed))
            samples["busy"][name].append(largest(busy))
    rows = []
    what = f"BERT-Large DDP, {args.layers} layers, {args.batch} x {args.sequence} per GPU, {dist.get_world_size()} GPUs"
    what += ", launched one by one" if args.eager else ""
    for key, text in (("exposed", "communication exposed"), ("busy", "communication in all"), ("step", "whole step")):
        results = {name: summary(values) for name, values in samples[key].items()}
        row = {"case": f"{what}: {text}", "unit": "ms", "better": "lower", "ark": results.pop("ark"), "rivals": results}
        rows.append(row | {"floor": 0 if key == "exposed" else None, "must": results["nccl"]["median"], "errors": {}})
        if dist.get_rank() == 0:
            print(row["case"], "ark", row["ark"], row["rivals"], flush=True)
    ark.check()
    if dist.get_rank() == 0:
        write_json(args.json, rows, losses=losses, delegated=ark.delegated_calls(), multicast=False)
    for trainer in trainers.values():  # a communicator outlives the graphs that use it
        trainer.graph = None
    trainers.clear()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
