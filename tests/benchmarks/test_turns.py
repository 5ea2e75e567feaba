"""Two programs take turns, a step each (benchmarks/turns.py); here programs of two ranks, with stand-ins for CUDA's
events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from tests.support.prepared_python import prepared_python
from turns import Table

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")

LIBRARY = """
import torch
def tune():
    return [torch.cuda.Event(enable_timing=True) for _ in range(3)]
"""
PROGRAM = """
import os, sys, time, torch
sys.path[:0] = [{benchmarks!r}, {folder!r}]
import library, turns
class Event:
    def __new__(cls, enable_timing=False):
        return super().__new__(cls)
    def record(self):
        self.at = time.monotonic()
    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)
torch.cuda.Event, torch.cuda.synchronize = Event, lambda: None
name = os.environ[turns.NAME]
with turns.take_turns(("a", "b"), __file__):
    for step in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        library.tune()
        if step == 2 and os.environ.get("FAILS") == name:
            raise ValueError("as asked")
        with open({log!r}, "a") as log:
            log.write(f"{{name}}{{step}} ")
        time.sleep(0.01)
        end.record()
"""


def launch(folder: Path, **environment: str) -> tuple[Table, list[subprocess.Popen]]:
    (folder / "library.py").write_text(LIBRARY)
    script = folder / "program.py"
    names = dict(benchmarks=BENCHMARKS, folder=str(folder), log=str(folder / "log"))
    script.write_text(PROGRAM.format(**names))
    table = Table()
    processes = []
    for program in "ab":
        for rank in range(2):
            own = {"RANK": str(rank), "WORLD_SIZE": "2"} | table.environment(program) | environment
            command = [prepared_python(), str(script)]
            processes.append(subprocess.Popen(command, env=os.environ | own, stderr=subprocess.PIPE, text=True))
    return table, processes


def test_steps_alternate(tmp_path):
    table, processes = launch(tmp_path)
    for process in processes:
        assert process.wait(timeout=100) == 0, process.stderr.read()
    assert (tmp_path / "log").read_text().split() == [f"{p}{step}" for step in range(4) for p in "aabb"]
    for program in "ab":
        times = table.times(program, 2)
        assert len(times) == 4 and min(times) >= 10


@pytest.mark.parametrize("fails", ["a", "b"])
def test_nobody_waits_for_one_that_has_failed(tmp_path, fails):
    _, processes = launch(tmp_path, FAILS=fails)
    for process in processes:
        assert process.wait(timeout=100) != 0
    errors = "".join(process.stderr.read() for process in processes)
    assert "as asked" in errors and "another rank has failed" in errors
