"""Runs functions f(rank, world) in processes, one GPU each, that form one group of the backend `ark`."""

from __future__ import annotations

import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Multicast objects are never made; torch and NCCL are told so too.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")


def _main(rank, world, path, seconds, options, function, queue) -> None:
    torch.cuda.set_device(rank)
    try:
        import ark_torch.distributed

        ark_torch.distributed._group_options.update(options)
        store = dist.FileStore(path, world)
        dist.init_process_group("ark", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))
        result = function(rank, world)
        queue.put((rank, "ok", result))
    except BaseException as error:
        queue.put((rank, "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_gpus(function, world: int, seconds: float = 40, expect_missing: int = 0, **options) -> dict:
    """Results by rank: (status, value). `options` go to the group (first_epoch, first_message, early_launch)."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        processes = [
            context.Process(target=_main, args=(r, world, path, seconds, options, function, queue))
            for r in range(world)
        ]
        for process in processes:
            process.start()
        results = {}
        try:
            while len(results) < world - expect_missing:
                rank, status, value = queue.get(timeout=2 * seconds)
                results[rank] = (status, value)
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
    return results


def values(results: dict) -> list:
    for rank, (status, value) in sorted(results.items()):
        assert status == "ok", f"rank {rank}: {value}"
    return [value for _, (_, value) in sorted(results.items())]
