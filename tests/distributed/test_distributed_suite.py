"""PyTorch's own tests of torch.distributed on the backend `ark`: two processes of this host run all that the suite
offers for CPU tensors (90 tests pass; most of the rest skip themselves for want of GPUs)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import has_extension
from tests.support.distributed_left_out import LEFT_OUT, LEFT_OUT_ON_CPU, why_left_out
from tests.support.prepared_python import prepared_python

pytest.importorskip("expecttest", reason="torch.testing's distributed tests need it")
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2
LIMIT_S = 170


def names() -> list[str]:
    code = (
        "from tests.support.distributed_suite import TestArk as T; print(*[n for n in dir(T) if n.startswith('test_')])"
    )
    out = subprocess.run([prepared_python(), "-c", code], env=environment(), capture_output=True, text=True, check=True)
    return out.stdout.split()


def environment() -> dict[str, str]:
    own = {
        "BACKEND": "ark",
        "WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | own | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def run_ranks(folder: Path, tests: list[str]) -> list[list[dict]]:
    """The outcomes by rank; ranks that have not ended after LIMIT_S are killed and their lines are what there is."""
    logs = [open(folder / f"{rank}.log", "w") for rank in range(WORLD)]
    command = [prepared_python(), "-m", "tests.support.distributed_ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(folder), *tests], env=environment(), cwd=ROOT, stdout=log, stderr=log
        )
        for rank, log in enumerate(logs)
    ]
    end = time.monotonic() + LIMIT_S
    for process in ranks:
        try:
            process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    [log.close() for log in logs]
    files = [folder / f"{rank}.jsonl" for rank in range(WORLD)]
    return [[json.loads(line) for line in f.read_text().splitlines()] if f.exists() else [] for f in files]


def test_the_suite_passes(tmp_path):
    everything = names()
    assert set(LEFT_OUT | LEFT_OUT_ON_CPU) <= set(everything), "a test that is left out is gone from the suite"
    chosen = [name for name in everything if not why_left_out(name, on_gpus=False, world=WORLD)]
    outcomes = run_ranks(tmp_path, chosen)
    wrong = [line for lines in outcomes for line in lines if line["outcome"] == "failed"]
    assert not wrong, "\n\n".join(f"{line['test']}: {line['text']}" for line in wrong)
    logs = [(tmp_path / f"{rank}.log").read_text()[-3000:] for rank in range(WORLD)]
    assert all(len(lines) == len(chosen) for lines in outcomes), f"a rank ended early: {logs}"
    passed = [a["test"] for a, *rest in zip(*outcomes) if all(x["outcome"] == "passed" for x in (a, *rest))]
    reasons: dict[str, int] = {}
    for line in outcomes[0]:
        if line["outcome"] == "skipped":
            reasons[line["text"]] = reasons.get(line["text"], 0) + 1
    print(f"{len(passed)} passed, skipped by the suite itself: {reasons}")
    assert len(passed) >= 85
    for collective in ("all_reduce_sum", "all_gather", "broadcast", "reduce_sum", "scatter", "gather", "all_to_all"):
        assert f"test_{collective}" in passed


FORKING = """
import torch
def start():
    raise AssertionError("the process that forks the ranks starts CUDA")
torch.cuda.is_available, torch.cuda.device_count, torch.cuda._lazy_init = lambda: True, lambda: 2, start
torch.cuda.random._lazy_init = start
import unittest
import tests.support.preloaded
from tests.support import distributed_suite as suite
suite.TestArk._start_processes = lambda self, process: print("forked" if "Fork" in process.__name__ else "spawned")
result = unittest.TestResult()
suite.TestArk("test_all_reduce_sum").run(result)
print(result.errors, result.failures)
"""


def test_process_that_forks_never_starts_cuda():
    """As on a machine with GPUs: neither importing the suite, or what a server imports before it forks the ranks, nor
    what runs before a test asks a GPU for anything."""
    own = environment() | {"CUDA_VISIBLE_DEVICES": "0,1"}
    out = subprocess.run([sys.executable, "-c", FORKING], env=own, cwd=ROOT, capture_output=True, text=True)
    assert out.stdout.splitlines()[-2:] == ["forked", "[] []"], out.stdout + out.stderr
