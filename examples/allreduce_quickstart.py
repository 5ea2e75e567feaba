"""All-reduce over the GPUs of a host (or processes on its CPUs) by naming `ark` instead of `nccl`.

torchrun --nproc-per-node=2 examples/allreduce_quickstart.py
"""

import os
import time

import torch
import torch.distributed as dist

import ark_torch.distributed as ark


def main() -> None:
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("ark")
    world = dist.get_world_size()

    x = torch.full((1 << 20,), float(rank), device=device)
    dist.all_reduce(x)
    assert (x == sum(range(world))).all()

    # Asynchronous: the stream goes on; wait() makes it wait for the result.
    y = torch.ones(1 << 20, device=device)
    work = dist.all_reduce(y, async_op=True)
    z = torch.full_like(y, 2.0)
    work.wait()
    assert ((y + z) == world + 2).all()

    if on_gpus:  # in a CUDA graph, as often as you like
        small = torch.ones(4096, device=device, dtype=torch.bfloat16)
        dist.all_reduce(small)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                dist.all_reduce(small, op=dist.ReduceOp.AVG)
        graph.replay()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        ark.check()  # raises if a rank did not come
        if rank == 0:
            print(f"all-reduce of 8 KB in a graph: {(time.perf_counter() - begin) / 1000 * 1e6:.2f} us")
    if rank == 0:
        print(f"{world} ranks on {device.type}: ok; handed to NCCL: {ark.delegated_calls()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
