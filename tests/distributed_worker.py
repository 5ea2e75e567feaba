"""Runs functions of the form f(rank, world) in processes that form one group of the backend `ark` (host target)."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _main(rank: int, world: int, path: str, backend: str, seconds: float, function: Callable, queue) -> None:
    torch.set_num_threads(1)
    try:
        import ark_torch  # noqa: F401  (registers the backend)

        store = dist.FileStore(path, world)
        timeout = timedelta(seconds=seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        result = function(rank, world)
        queue.put((rank, "ok", result))
    except BaseException as error:
        queue.put((rank, "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_ranks(function: Callable, world: int, backend: str = "cpu:ark", seconds: float = 60, expect_missing: int = 0):
    """Results by rank. Raises with the text of the first rank that failed; kills what is left after `seconds` * 2."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        arguments = lambda rank: (rank, world, path, backend, seconds, function, queue)
        processes = [context.Process(target=_main, args=arguments(rank)) for rank in range(world)]
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
