"""The examples that stand on torch.distributed, as their first lines say, between two processes of the host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import has_extension

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

ROOT = Path(__file__).resolve().parent.parent


def torchrun(*command: str) -> str:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, *command], cwd=ROOT, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_allreduce_quickstart():
    assert "2 ranks on cpu: ok" in torchrun("examples/allreduce_quickstart.py")


def test_train_ddp():
    text = torchrun("examples/train_ddp.py", "--steps", "11", "--width", "64", "--depth", "2")
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]
    assert len(losses) == 2 and losses[1] < losses[0], text
