"""Whether ark works with an interpreter's torch: `python tests/versions.py PYTHON...` builds a copy of the checkout for
each, imports it and compiles an MLP and attention, forward and backward, on the host target. A line each; exit status 1
where one fails. The interpreter needs torch, numpy, setuptools and ninja; nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = """
import sys, torch
import torch.nn.functional as F
import ark_torch

def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

def check(model, *args):
    ours = [a.clone().requires_grad_() for a in args]
    theirs = [a.clone().requires_grad_() for a in args]
    out, expected = torch.compile(model, backend="ark", options={"strict": True})(*ours), model(*theirs)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad)

torch.manual_seed(0)
check(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)), torch.randn(5, 32))
check(attention, *torch.randn(3, 2, 4, 16, 32).unbind())
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}: built, imported, compiled")
"""


def run(command: list[str], folder: Path, python: str) -> tuple[bool, str]:
    path = f"{Path(python).parent}:{os.environ['PATH']}"  # torch calls ninja by name
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([python, *command], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def whole_path(python: str) -> str:
    """It is run in another folder. Links stay: an environment's interpreter is one."""
    return os.path.abspath(shutil.which(python) or python)


def copy_checkout(folder: Path) -> None:
    """What git knows, as it lies in the work tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    archive = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, check=True, input=names.encode(), capture_output=True
    )
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)


def check(python: str) -> bool:
    """Side by side with the checkout: ccache finds what both compile."""
    python = whole_path(python)
    with tempfile.TemporaryDirectory(prefix="ark-versions-", dir=ROOT.parent) as name:
        folder = Path(name)
        copy_checkout(folder)
        good, text = run(["setup.py", "-q", "egg_info", "build_ext", "--inplace"], folder, python)
        if good:
            good, text = run(["-W", "ignore", "-c", COMPILE], folder, python)
    print(text.splitlines()[-1] if good else f"{python}: {text[-4000:]}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(not all([check(python) for python in sys.argv[1:]]))
