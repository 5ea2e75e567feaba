"""Builds the torch-free core with CMake and runs every C++ test program of tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
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
        configured, wanted_now = folder / ".definitions", "\n".join(definitions)
        ready = (folder / "CMakeCache.txt").exists() and configured.exists()
        if not ready or configured.read_text() != wanted_now:
            _run(["cmake", "-S", "csrc", "-B", str(folder), *generator, *definitions])
            configured.write_text(wanted_now)
        _run(["cmake", "--build", str(folder), "-j", jobs, *wanted])
    return folder


def build_tests(targets: list[str]) -> Path:
    """The test programs (none named: all) with checks of indices, in `build/cpp`. Under ARK_CHECK_BOUNDS=1 `make setup`
    has compiled the core with them too; then `build/cpp_setup` links its objects, as old or new as that build is."""
    if os.environ.get("ARK_CHECK_BOUNDS", "0") != "1":
        return build(ROOT / "build/cpp", targets)
    objects = ROOT / f"build/temp.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    assert "-D_GLIBCXX_ASSERTIONS" in (objects / "build.ninja").read_text(), (
        f"ARK_CHECK_BOUNDS=1, but {objects} is of a build without it: run make setup"
    )
    return build(ROOT / "build/cpp_setup", targets, "-DARK_UNITS=ON", f"-DARK_CORE_OBJECTS={objects}")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the built test programs."""
    return build_tests([])


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(programs: Path, name: str) -> None:
    _run([str(programs / name)])
