"""torch knows the backend's name by itself (the entry point torch.backends), and imports ark_torch for a group only."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

from tests.conftest import has_extension

pytestmark = [
    pytest.mark.skipif(not has_extension(), reason="the extension is not built"),
    pytest.mark.skipif(
        "ark" not in {e.name for e in importlib.metadata.entry_points(group="torch.backends")},
        reason="the package is not installed",
    ),
]
GROUP = """
dist.init_process_group({name!r}, store=dist.HashStore(), rank=0, world_size=1)
ones = torch.ones(3)
dist.all_reduce(ones)
assert ones.tolist() == [1, 1, 1] and "ark_torch._C" in sys.modules
dist.destroy_process_group()
"""


def run(code: str, autoload: str = "1") -> subprocess.CompletedProcess:
    code = "import sys, torch, torch.distributed as dist\n" + code
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize("name", ["ark", "cpu:ark"])
def test_a_group_without_an_import(name):
    done = run("assert 'ark_torch' not in sys.modules and 'torch._dynamo' not in sys.modules" + GROUP.format(name=name))
    assert done.returncode == 0, done.stderr


def test_defaults_of_torch_stay():
    """No device gets ark as its backend without being asked."""
    done = run("assert 'ark' not in dist.Backend.default_device_backend_map.values()\nimport ark_torch")
    assert done.returncode == 0, done.stderr


def test_without_autoload_the_import_is_needed():
    code = GROUP.format(name="ark")
    assert "ark" in run(code, autoload="0").stderr.splitlines()[-1].lower()
    done = run("import ark_torch" + code, autoload="0")
    assert done.returncode == 0, done.stderr


def test_ark_first():
    """An import of torch on the way of ark_torch's own."""
    done = subprocess.run(
        [sys.executable, "-c", "import ark_torch, torch.distributed as d; assert d.Backend.ARK == 'ark'"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
