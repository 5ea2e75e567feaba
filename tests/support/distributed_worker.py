"""Runs functions of the form f(rank, world) in processes that form one group of the backend `ark`: on the host, or one
GPU for each rank. With TESTS_RANKS_PER_GPU so many ranks share each GPU: their processes take turns there, some 2 ms
each, so that kernels which wait for each other get on slowly, but do. For correctness alone."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support import dynamo_costs
from tests.support.prepared_python import prepared_python

# Multicast objects are never made; torch and NCCL are told so too.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")


START_SECONDS = 90  # for eight processes to start: importing torch and making CUDA contexts
FUNCTION_SECONDS = 150  # for one of `run_each`: a rank that takes longer ends, and its name is told
if "PYTEST_XDIST_WORKER" in os.environ:
    FUNCTION_SECONDS *= 2  # kernels are compiled beside those of other workers
RANKS_PER_GPU = int(os.environ.get("TESTS_RANKS_PER_GPU", "1"))

_tell_begin: Callable[[str], None] = lambda name: None  # in a rank: what it does now, told to who started it
_on_gpus = False  # in a rank: it has a GPU


def room_for_ranks() -> int:
    """On the GPUs that there are."""
    return torch.cuda.device_count() * RANKS_PER_GPU


def own_device() -> str:
    """Of the tensors of this rank."""
    return "cuda" if _on_gpus else "cpu"


def own_backend() -> str:
    """Of groups of such tensors."""
    return "ark" if _on_gpus else "cpu:ark"


@dataclasses.dataclass
class Job:
    """What every rank does, and in which group. `options` go to the group (first_step, first_epoch, first_message,
    early_launch)."""

    function: Callable
    world: int
    backend: str
    seconds: float
    options: dict
    prepared: bool = False
    path: str = ""

    @property
    def on_gpus(self) -> bool:
        return self.backend == "ark"


def _main(rank: int, job: Job, queue) -> None:
    global _tell_begin, _on_gpus
    _on_gpus = job.on_gpus
    dynamo_costs.leave_out()
    gc.freeze()  # what is imported stays: the collector of cycles need not walk it
    gc.set_threshold(50000, 20, 20)
    if not job.on_gpus:
        dynamo_costs.leave_out_collection()
    faulthandler.dump_traceback_later(START_SECONDS + 1.5 * job.seconds)  # where a rank that hangs does so
    _tell_begin = lambda name: queue.put((rank, "begin", name))
    try:
        if job.on_gpus:
            torch.cuda.set_device(rank // RANKS_PER_GPU)
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


def _collect(queue, processes: list, job: Job, number: int) -> dict:
    """The first `number` results. What no rank is left to send, or has not come in time, is an error that says what the
    ranks were doing."""
    results, doing = {}, {}
    deadline = time.monotonic() + START_SECONDS + 2 * job.seconds
    while len(results) < number:
        ended = [rank for rank, process in enumerate(processes) if process.exitcode is not None]
        try:
            rank, status, value = queue.get(timeout=1)
        except Empty:
            alive = job.world - len({*ended, *results})
            if time.monotonic() < deadline and alive >= number - len(results):
                continue
            silent = {r: doing.get(r, "starting") for r in range(job.world) if r not in results}
            codes = {r: processes[r].exitcode for r in ended}
            raise AssertionError(f"no result of ranks that were in {silent}; exit codes {codes}") from None
        if status == "begin":
            deadline = max(deadline, time.monotonic() + FUNCTION_SECONDS + 10)
            doing[rank] = value
        else:
            results[rank] = (status, value)
    return results


# A server imports it once and forks the ranks.
PRELOADED = ["tests.support.preloaded"]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


_server_environment = _environment()  # the server's own: it is started by ranks of this environment alone


def _context(job: Job):
    """Ranks on the host are forked from a server, which saves each the imports: 4 s of a core. Those on GPUs start from
    nothing. The second value: what they are started by, in turns."""
    if job.on_gpus:
        return mp.get_context("spawn"), [sys.executable]
    if job.prepared or _environment() != _server_environment:
        hashes = len({e.get("PYTHONHASHSEED") for e in (os.environ, _server_environment)})
        return mp.get_context("spawn"), [prepared_python(number) for number in range(hashes)]
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context, [sys.executable]


def _run(job: Job, expect_missing: int, exit_codes: list | None) -> dict:
    context, executables = _context(job)
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        job.path = os.path.join(folder, "store")
        processes = [context.Process(target=_main, args=(rank, job, queue)) for rank in range(job.world)]
        results = {}
        try:
            for rank, process in enumerate(processes):
                mp.set_executable(executables[rank % len(executables)])
                process.start()
            results = _collect(queue, processes, job, job.world - expect_missing)
        finally:
            # Where nobody answers, who dies may still be starting.
            last = START_SECONDS if expect_missing == job.world else 10
            mp.set_executable(sys.executable)
            for process in filter(lambda p: p.pid is not None, processes):
                process.join(last)
                if exit_codes is not None:
                    exit_codes.append(process.exitcode)
                if process.is_alive():
                    process.kill()
    return results


def run_ranks(
    function: Callable,
    world: int,
    backend: str = "cpu:ark",
    seconds: float = 60,
    expect_missing: int = 0,
    exit_codes: list | None = None,
    prepared: bool = False,
    **options: int,
) -> dict:
    """Results by rank: (status, value). Kills what is left after START_SECONDS + `seconds` * 2. `exit_codes` gets how
    every rank ended; None: it had not, ten seconds after the results were there. `prepared`: on the host, forked from a
    process that has imported transformers too."""
    return _run(Job(function, world, backend, seconds, options, prepared), expect_missing, exit_codes)


def run_gpus(function: Callable, world: int, seconds: float = 40, expect_missing: int = 0, **options) -> dict:
    """The same, one GPU for each rank, or for RANKS_PER_GPU."""
    return run_ranks(function, world, "ark", seconds, expect_missing, **options)


def run_each(
    functions: Sequence[Callable], rank: int, world: int, seconds: float = FUNCTION_SECONDS
) -> dict[str, tuple[str, object]]:
    """All of them in one group, one after the other: name -> ("ok", result) or ("error", traceback). Starting processes
    takes longer than most of them. Each has a deadline of its own, at which the rank says where it is, and ends."""
    results = {}
    for function in functions:
        begin = time.monotonic()
        _tell_begin(function.__name__)
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            results[function.__name__] = ("ok", function(rank, world))
        except Exception:
            results[function.__name__] = ("error", traceback.format_exc())
        print(f"rank {rank}, {function.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    faulthandler.dump_traceback_later(seconds, exit=True)  # for what comes after them
    return results


def values(results: dict) -> list:
    for rank, (status, value) in sorted(results.items()):
        assert status == "ok", f"rank {rank}: {value}"
    return [value for _, (_, value) in sorted(results.items())]


def shared_run(functions: Sequence[Callable], asked: Callable) -> list[Callable]:
    """Which of a test's functions one set of processes runs: all, since starting it takes longer than most. Under xdist
    only what is asked for: then workers share the kernels that are to be compiled, most of the time on GPUs."""
    return [asked] if "PYTEST_XDIST_WORKER" in os.environ else list(functions)
