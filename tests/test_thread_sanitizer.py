"""Saved plans of a Llama's decode step and of BERT forward and backward, plans with exchanges between ranks, loops,
and the collectives, under ThreadSanitizer: a wait that the planner forgot, or an acquire that the host target lacks, is
a race that it reports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_cpp import ROOT, build, programs  # noqa: F401 - a fixture

BUILD = ROOT / "build/tsan"
pytestmark = pytest.mark.timeout(1800)  # a part of the core is built once more


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    command = [str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):  # addresses too random for libtsan
        command = ["setarch", "-R", *command]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    return done


@pytest.fixture(scope="module")
def sanitized(programs: Path) -> Path:  # noqa: F811
    compiler = os.environ.get("CXX", "c++")
    probe = [compiler, "-fsanitize=thread", "-x", "c++", "-", "-o", os.devnull]
    if subprocess.run(probe, input="int main(){}", text=True, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no ThreadSanitizer")
    targets = ["test_saved_plans", "test_host_exchanges", "test_host_loops", "test_comm", "test_dma"]
    # what one thread runs (planner, codegen, ir), or nobody here (CUDA), comes from the build without the sanitizer
    return build(
        BUILD, targets, "-DARK_SANITIZE=thread", "-DARK_UNITS=ON", f"-DARK_PLAIN_CORE={programs / 'libark_core.a'}"
    )


@pytest.fixture(scope="module")
def plans(programs: Path, tmp_path_factory) -> str:  # noqa: F811
    folder = tmp_path_factory.mktemp("plans")
    saved = subprocess.run([str(programs / "test_saved_plans"), "--save", str(folder)], capture_output=True, text=True)
    assert saved.returncode == 0, saved.stderr
    assert len(list(folder.iterdir())) == 6
    return str(folder)


def test_saved_plans_have_no_race(sanitized: Path, plans: str) -> None:
    done = run(sanitized / "test_saved_plans", "--load", plans, "--seeds", "3")
    assert done.returncode == 0, done.stderr[-8000:]


def test_a_wait_taken_away_is_a_race(sanitized: Path, plans: str) -> None:
    done = run(sanitized / "test_saved_plans", "--load", plans, "--seeds", "3", "--damage")
    assert done.returncode == 66 and "data race" in done.stderr, done.stderr[-8000:]


def test_exchanges_have_no_race(sanitized: Path) -> None:
    done = run(sanitized / "test_host_exchanges", "--short")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_an_exchange_that_nobody_awaits_is_a_race(sanitized: Path) -> None:
    done = run(sanitized / "test_host_exchanges", "--damage")
    assert done.returncode == 66 and "data race" in done.stderr, done.stderr[-8000:]


def test_loops_have_no_race(sanitized: Path) -> None:
    done = run(sanitized / "test_host_loops", "--short")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_a_border_that_nobody_waits_at_is_a_race(sanitized: Path) -> None:
    done = run(sanitized / "test_host_loops", "--damage")
    assert done.returncode == 66 and "data race" in done.stderr, done.stderr[-8000:]


def test_collectives_have_no_race(sanitized: Path) -> None:
    done = run(sanitized / "test_comm")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_the_engine_of_send_requests_has_no_race(sanitized: Path) -> None:
    done = run(sanitized / "test_dma")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
