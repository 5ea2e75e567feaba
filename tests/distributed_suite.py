"""PyTorch's own tests of torch.distributed, unedited, on the backend `ark` (needs the package expecttest).

    WORLD_SIZE=2 python -m pytest tests/distributed_suite.py                    # all of it, new processes for each test
    WORLD_SIZE=2 python -m pytest tests/distributed_suite.py -k all_reduce_sum  # a part

Not collected by `make test`, which runs the part named in test_distributed_suite.py, in two processes for all of it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("BACKEND", "ark")
os.environ.setdefault("WORLD_SIZE", "2")
if "TEMP_DIR" not in os.environ:  # the module of the tests wants a folder when it is imported; the ranks inherit it
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="ark-suite-")
    atexit.register(shutil.rmtree, os.environ["TEMP_DIR"], ignore_errors=True)

import torch
from torch.testing._internal.common_distributed import DistTestCases

import ark_torch  # noqa: F401  (registers the backend, in the spawned ranks too)

# The suite asks per backend what it can do; ark does on CUDA what NCCL does.
if torch.cuda.is_available():
    for feature in ("gpu", "cuda", "ddp", "subgroup"):
        DistTestCases.backend_feature[feature].add("ark")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestArk(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
