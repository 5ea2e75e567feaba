"""The backend by its name, found through the entry point: in a process of its own, as it is found once."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

INSTALLED = any(point.name == "ark" for point in entry_points(group="torch_dynamo_backends"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="ark is not installed")

THREADS = """
import threading, torch
x, start, results = torch.randn(100), threading.Barrier(4), {}

def first_use(number):
    start.wait()
    results[number] = torch.compile(lambda x: (x * number).sin(), backend="ark")(x)

threads = [threading.Thread(target=first_use, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(results) == [0, 1, 2, 3], results
for number, result in results.items():
    torch.testing.assert_close(result, (x * number).sin())
"""
AFTER_IMPORT = """
import torch
from ark_torch.backend import ark
x = torch.randn(100)
torch.testing.assert_close(torch.compile(torch.sin, backend=ark)(x), x.sin())
assert "ark" in torch._dynamo.list_backends()
torch.testing.assert_close(torch.compile(torch.cos, backend="ark", options={"strict": True})(x), x.cos())
"""


@pytest.mark.parametrize("script", [THREADS, AFTER_IMPORT], ids=["threads", "after an import"])
def test_by_name(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
