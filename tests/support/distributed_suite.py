"""PyTorch's own tests of torch.distributed, unedited, on the backend `ark` (needs expecttest; pytest-xdist for -n).

    python -m tests.support.distributed_suite_runs  # all of it: 2 and 8 ranks, CPU and GPUs
    WORLD_SIZE=8 python -m pytest -rs -n 4 tests/support/distributed_suite.py     # one of these runs
    CUDA_VISIBLE_DEVICES= WORLD_SIZE=2 python -m pytest tests/support/distributed_suite.py -k all_reduce_sum

The ranks of a test fork from a process that has imported everything and never touched CUDA. Tests that run at the same
time share nothing: a folder for each test, GPUs of their own where there are enough. A test that takes longer than
DISTRIBUTED_TESTS_DEFAULT_TIMEOUT seconds (100) fails with the stacks of its ranks.

What is left out, and why: tests/support/distributed_left_out.py; what the suite skips by itself is listed by -rs. Not
collected by `make test`, which runs the part for CPU tensors (test_distributed_suite.py), in two processes for all of
it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import re
import shutil
import signal
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

os.environ.setdefault("BACKEND", "ark")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "100")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting GPUs must not start CUDA: ranks are forked
os.environ.setdefault("NUMBA_DISABLE_CUDA", "1")  # nor may numba, which the suite asks when it is imported
sys.modules.setdefault("numba", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # nor may there be threads of OpenMP
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")
if "TEMP_DIR" not in os.environ:  # the module of the tests wants a folder when it is imported
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="ark-suite-")
    atexit.register(shutil.rmtree, os.environ["TEMP_DIR"], ignore_errors=True)

# ruff: noqa: E402
import pytest
import torch

WORLD = int(os.environ["WORLD_SIZE"])


def take_gpus() -> None:
    """With more GPUs than ranks, every worker of pytest-xdist has GPUs of its own, as far as they go."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    count = torch.cuda.device_count()
    if count < 2 * WORLD:
        return
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = names or [str(i) for i in range(count)]
    first = worker % (count // WORLD) * WORLD
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + WORLD])


take_gpus()

from torch.testing._internal import common_distributed, common_utils

import ark_torch  # noqa: F401  (registers the backend)
from tests.support.distributed_features import introduce_ark
from tests.support.distributed_left_out import why_left_out

ON_GPUS = torch.cuda.device_count() >= WORLD
LIMIT_S = common_distributed.TIMEOUT_DEFAULT
common_distributed.TIMEOUT_OVERRIDE.clear()
common_utils.check_if_enable = lambda test: (
    None
)  # asks for Triton, which starts CUDA; only lists of PyTorch's CI matter

introduce_ark()

from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import Barrier, DistributedTest, TestDistBackend

torch.set_num_threads(1)
rank_temp_file = getattr(distributed_test, "_rank_temp_file", None)  # none from torch 2.15 on


@contextlib.contextmanager
def kept_file():
    """Rank 0 removes the file that all read, in some tests while others have not opened it yet."""
    with rank_temp_file() as name:
        yield name
        distributed_test.dist.barrier()


if rank_temp_file is not None:
    distributed_test._rank_temp_file = kept_file


def cuda_is_in_use() -> bool:
    """Whether this process has started CUDA through torch: those that fork from it cannot."""
    if torch.cuda.is_initialized():
        return True
    child = os.fork()
    if child == 0:
        os._exit(int(bool(getattr(torch._C, "_cuda_isInBadFork", bool)())))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


FORK = not cuda_is_in_use()
if not FORK:
    warnings.warn("CUDA is already in use: every rank imports torch anew, which is slow", stacklevel=1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """In place of that of conftest.py, which resets torch.compile: this imports inductor, which starts CUDA."""


def end_with(parent: int) -> None:
    """No rank outlives the process that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


class TestArk(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        why = why_left_out(self._testMethodName, ON_GPUS, WORLD)
        if why:
            self.skipTest(why)
        super().setUp()
        assert not FORK or not torch.cuda.is_initialized(), "the process that forks the ranks has started CUDA"
        with warnings.catch_warnings():  # of forking with a thread around: that of xdist waits in a read
            warnings.simplefilter("ignore", DeprecationWarning)
            if FORK:
                self._fork_processes()
            else:
                self._spawn_processes()

    def _fork_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _barrier(self, *args, **kwargs) -> None:
        """Ten seconds, the suite's limit, are short where several tests start CUDA at a time."""
        Barrier.sync(*args, **{"timeout": LIMIT_S / 2, **kwargs})

    def tearDown(self) -> None:
        super().tearDown()
        Path(self.file_name).unlink(missing_ok=True)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe, **kwargs) -> None:
        end_with(os.getppid())
        faulthandler.dump_traceback_later(LIMIT_S - 2)
        super()._run(rank, test_name, file_name, pipe, **kwargs)

    def run_test(self, test_name: str, parent_pipe) -> None:
        """Keeps why a rank skips its test, for the process that reports it."""
        test = getattr(self, test_name)

        def run() -> None:
            try:
                test()
            except unittest.SkipTest as skip:
                Path(os.environ["TEMP_DIR"], "skipped").write_text(str(skip))
                raise

        setattr(self, test_name, run)
        super().run_test(test_name, parent_pipe)

    def _check_return_codes(self, fn, elapsed_time) -> None:
        """With reasons for skipping and failing up front."""
        try:
            super()._check_return_codes(fn, elapsed_time)
        except RuntimeError as error:
            causes = dict.fromkeys(re.findall(r"^\w[\w.]*(?:Error|Exception)\b.*", str(error), re.MULTILINE))
            raise RuntimeError(f"{'; '.join(causes)}\n{error}") from None
        except unittest.SkipTest:
            reason = Path(os.environ["TEMP_DIR"], "skipped")
            if reason.exists():
                raise unittest.SkipTest(reason.read_text()) from None
            raise
