"""Runs functions of the form f(rank, world) in processes that form one group of the backend `ark`: on the host, or one
GPU for each rank."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Multicast objects are never made; torch and NCCL are told so too.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")


START_SECONDS = 90  # for eight processes to start: importing torch and making CUDA contexts


@dataclasses.dataclass
class Job:
    """What every rank does, and in which group. `options` go to the group (first_step, first_epoch, first_message,
    early_launch)."""

    function: Callable
    world: int
    backend: str
    seconds: float
    options: dict
    path: str = ""

    @property
    def on_gpus(self) -> bool:
        return self.backend == "ark"


def _main(rank: int, job: Job, queue) -> None:
    faulthandler.dump_traceback_later(START_SECONDS + 1.5 * job.seconds)  # where a rank that hangs does so
    try:
        if job.on_gpus:
            torch.cuda.set_device(rank)
        else:
            torch.set_num_threads(1)
        import ark_torch.distributed  # registers the backend

        ark_torch.distributed._group_options.update(job.options)
        store = dist.FileStore(job.path, job.world)
        timeout = timedelta(seconds=job.seconds)
        dist.init_process_group(job.backend, store=store, rank=rank, world_size=job.world, timeout=timeout)
        result = job.function(rank, job.world)
        queue.put((rank, "ok", result))
    except BaseException as error:
        queue.put((rank, "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _run(job: Job, expect_missing: int) -> dict:
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        job.path = os.path.join(folder, "store")
        processes = [context.Process(target=_main, args=(rank, job, queue)) for rank in range(job.world)]
        for process in processes:
            process.start()
        results = {}
        try:
            while len(results) < job.world - expect_missing:
                rank, status, value = queue.get(timeout=START_SECONDS + 2 * job.seconds)
                results[rank] = (status, value)
        finally:
            last = (
                START_SECONDS if expect_missing == job.world else 10
            )  # nobody answers: who dies may still be starting
            for process in processes:
                process.join(last)
                if process.is_alive():
                    process.kill()
    return results


def run_ranks(
    function: Callable,
    world: int,
    backend: str = "cpu:ark",
    seconds: float = 60,
    expect_missing: int = 0,
    **options: int,
) -> dict:
    """Results by rank: (status, value). Kills what is left after START_SECONDS + `seconds` * 2."""
    return _run(Job(function, world, backend, seconds, options), expect_missing)


def run_gpus(function: Callable, world: int, seconds: float = 40, expect_missing: int = 0, **options: int) -> dict:
    """The same, one GPU for each rank."""
    return _run(Job(function, world, "ark", seconds, options), expect_missing)


def run_each(functions: Sequence[Callable], rank: int, world: int) -> dict[str, tuple[str, object]]:
    """All of them in one group, one after the other: name -> ("ok", result) or ("error", traceback). Starting processes
    takes longer than most of them."""
    results = {}
    for function in functions:
        begin = time.monotonic()
        try:
            results[function.__name__] = ("ok", function(rank, world))
        except Exception:
            results[function.__name__] = ("error", traceback.format_exc())
        print(f"rank {rank}, {function.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    return results


def values(results: dict) -> list:
    for rank, (status, value) in sorted(results.items()):
        assert status == "ok", f"rank {rank}: {value}"
    return [value for _, (_, value) in sorted(results.items())]
