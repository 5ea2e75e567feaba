"""The sdist holds what a build reads; the wheel made of it works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("ark_torch._C")
BUILT = next(iter((ROOT / "build").glob("temp.*")), None)
pytestmark = pytest.mark.skipif(BUILT is None, reason="the objects of make setup are not there")
READ = (
    "ark_autoload.py",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "configure",
    "Makefile",
    "requirements.txt",
)

# Puts the checkout's object where the compiler would: of the same file by the same options, as the test has compared.
COMPILER = """#!/bin/sh
for word; do
  if [ "$before" = -o ]; then out=$word; fi
  before=$word
done
found={built}/${{out#*/build/temp.*/}}
case $out in
  *.o) [ -f "$found" ] && exec cp "$found" "$out" ;;
esac
exec {compiler} "$@"
"""
MODEL = """
import torch, ark_torch, ark_torch._C as c
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
x = torch.randn(3, 8)
compiled = torch.compile(model, backend="ark", options={"strict": True})
torch.testing.assert_close(compiled(x), model(x))
print(ark_torch.__file__, c.__file__, sep="\\n")
"""


def run(command: list, **kwargs) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=550, **kwargs)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def read_by_a_build() -> list[str]:
    files = [f for f in (ROOT / "csrc").rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    files += [
        *(ROOT / "ark_torch").glob("*.py"),
        *(ROOT / "ark_torch").glob("gpus/*.json"),
        *(ROOT / name for name in READ),
    ]
    return [str(f.relative_to(ROOT)) for f in files]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """What the sdist of the checkout holds."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"  # a copy: setup.py writes beside itself
    for name in read_by_a_build() + ["MANIFEST.in"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run([sys.executable, "setup.py", "-q", "sdist", "-d", folder], cwd=source)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
        archive.extractall(folder, **safe)
    return next(f for f in folder.iterdir() if f.is_dir() and f != source)


def test_the_sdist_holds_what_a_build_reads(unpacked):
    for name in read_by_a_build():
        assert (unpacked / name).is_file(), name
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert not list(unpacked.rglob("*.so")) and not (unpacked / "build").exists()


def test_a_wheel_of_the_sdist_works_away_from_the_checkout(unpacked, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(built=f"'{BUILT}'", compiler=os.environ.get("CXX", "g++")))
    compiler.chmod(0o755)
    environment = os.environ | {"CXX": str(compiler), "TORCH_NO_COMPILER_WRAPPER": "1"}
    environment.pop("PYTHONPATH", None)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    run([*pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path, unpacked], env=environment, cwd="/")
    target = tmp_path / "installed"
    run([*pip, "install", *offline, "--target", target, next(tmp_path.glob("*.whl"))], env=environment, cwd="/")
    (tmp_path / "model.py").write_text(MODEL)
    printed = run([sys.executable, "model.py"], env=environment | {"PYTHONPATH": str(target)}, cwd=tmp_path)
    assert printed.splitlines() and all(line.startswith(str(target)) for line in printed.splitlines()), printed
