"""The example of docs/DISTRIBUTED.md with a collective in a compiled graph runs, with the same result on every rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import has_extension

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def test_a_compiled_collective(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/DISTRIBUTED.md").read_text(), re.S)
    (script,) = (block for block in blocks if "torch.compile" in block)
    (tmp_path / "layer.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "layer.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    numbers = re.findall(r"tensor\([^)]+\)", done.stdout)  # two processes write, maybe to one line
    assert len(numbers) == 2 and len(set(numbers)) == 1, done.stdout
