"""Builds the torch-free core with CMake and runs every C++ test program of tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted(f.stem for f in (ROOT / "tests").rglob("test_*.cpp"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)} returned {done.returncode}:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    )


def build(folder: Path, targets: list[str], *definitions: str) -> Path:
    """An incremental build of the targets (none: all) in the folder; test processes that run at once take turns."""
    if not shutil.which("cmake"):
        warnings.warn("no cmake: the C++ tests are left out", stacklevel=1)  # in pytest's last lines, unlike a skip
        pytest.skip("needs cmake")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count()))
    wanted = ["--target", *targets] if targets else []
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "CMakeCache.txt").exists():
            _run(["cmake", "-S", "csrc", "-B", str(folder), *generator, *definitions])
        _run(["cmake", "--build", str(folder), "-j", jobs, *wanted])
    return folder


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the built test programs."""
    return build(ROOT / "build/cpp", [])


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(programs: Path, name: str) -> None:
    _run([str(programs / name)])
