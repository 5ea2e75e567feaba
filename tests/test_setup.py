"""`make setup` on a small checkout: progress, paths with spaces, errors, ccache, other users."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.small_checkout import configure, make

NOBODY = 65534
needs_ccache = pytest.mark.skipif(not shutil.which("ccache"), reason="needs ccache")


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Path, subprocess.CompletedProcess]]:
    """A checkout of 12 units with a space in its path, and what its set-up said; a ccache of its own beside it. In a
    folder that every user may enter, unlike pytest's. Tests read it."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    folder = make(above / "a b", units=11)
    yield folder, configure(folder)
    shutil.rmtree(above)


def steps(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(m)) for n, m in re.findall(r"building \[(\d+)/(\d+)\]", text)]


def test_a_path_with_spaces_builds_and_says_how_far_it_is(built):
    """At most a line per tenth where nobody looks on; nothing when nothing is built."""
    folder, done = built
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert 5 <= len(steps(done.stderr)) <= 10 and steps(done.stderr)[-1] == (12, 12), done.stderr
    assert "[12/12]" in (folder / "build/build.log").read_text()
    assert (folder / "build/python").read_text().strip() == shutil.which(sys.executable)
    imported = "import ark_torch._C as c; print(c.__file__)"
    found = subprocess.run([sys.executable, "-c", imported], cwd=folder, capture_output=True, text=True).stdout
    assert found.startswith(str(folder)), found


def test_on_a_terminal_progress_stays_in_one_line(tmp_path):
    folder = make(tmp_path / "checkout", units=3)
    ours, theirs = pty.openpty()
    environment = os.environ | {"ARK_PYTHON": sys.executable}
    subprocess.run(["./configure"], cwd=folder, env=environment, stderr=theirs, check=True, timeout=550)
    os.close(theirs)
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert steps(text) == [(n, 4) for n in range(1, 5)], text
    assert text.count("\rbuilding") == 4 and text.count("\n") == 1 + ("no cmake" in text), repr(text)


def test_an_error_of_the_compiler_is_shown(tmp_path):
    folder = make(tmp_path / "checkout")
    (folder / "csrc/wrong.cpp").write_text("int wrong() { return undeclared; }\n")
    done = configure(folder)
    assert done.returncode == 1
    assert "'undeclared' was not declared" in done.stderr.replace("‘", "'").replace("’", "'"), done.stderr
    assert "the build failed; its output is in build/build.log" in done.stderr
    assert not (folder / "build/python").exists()


def test_a_compiler_that_is_not_there_is_named(tmp_path):
    done = configure(make(tmp_path / "checkout"), CXX="no-such-compiler -m64")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("no C++ compiler (no-such-compiler): install g++"), done.stderr


def stub(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_compiler_that_is_too_old_is_named(tmp_path):
    old = stub(tmp_path / "g++", "echo 9.4.0")
    done = configure(make(tmp_path / "checkout"), CXX=f"{old} -m64")
    assert done.returncode == 1
    assert done.stderr == f"{old} -m64 is version 9.4.0: install g++ 12 or newer, or name one in CXX\n"


def test_an_interpreter_that_is_not_there_or_does_not_run_is_named(tmp_path):
    folder = make(tmp_path / "checkout")
    done = configure(folder, ARK_PYTHON="/nowhere/python")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("no /nowhere/python: install"), done.stderr
    broken = stub(tmp_path / "broken", "exit 3")
    done = configure(folder, ARK_PYTHON=str(broken))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last == f"ark needs Python 3.11 or newer; {broken} does not run", done.stderr


def test_a_torch_that_cannot_be_imported_is_told(tmp_path):
    """Its files say a version that would do. Then packages are installed, as where there is no torch."""
    folder = tmp_path / "broken/torch"
    folder.mkdir(parents=True)
    (folder / "version.py").write_text(f"__version__ = {torch.__version__!r}\n")
    (folder / "__init__.py").write_text("raise ImportError('libc10.so')\n")
    python = f'PYTHONPATH="{folder.parent}" exec "{sys.executable}" "$@"'
    bare = stub(tmp_path / "bare", f'case "$*" in "-m venv"*) exit 1;; *) {python};; esac')
    done = configure(make(tmp_path / "checkout"), ARK_PYTHON=str(bare))
    assert done.returncode == 1
    told, last = done.stderr.splitlines()[-2:]
    assert told == f"{bare} has a torch that cannot be imported", done.stderr
    assert last.startswith(f"{bare} cannot make a virtual environment"), done.stderr


@pytest.mark.parametrize("foreign", [False, True], ids=["no .venv", "a folder of the user's"])
def test_no_half_of_a_virtual_environment_is_left(tmp_path, foreign):
    """As Debian's Python without python3-venv makes it."""
    folder = make(tmp_path / "checkout")
    half = 'mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit 1'
    half = f'case "$*" in "-m venv"*) {half};; "-c "*) exit 0;; *) exit 1;; esac'
    bare = stub(tmp_path / "bare", half)
    if foreign:
        (folder / ".venv").mkdir()
        (folder / ".venv/mine").write_text("notes")
    for _ in range(2):
        done = configure(folder, ARK_PYTHON=str(bare))
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"{bare} cannot make a virtual environment"), done.stderr
        assert not (folder / ".venv/bin/python").exists()
        assert (folder / ".venv/mine").exists() == (folder / ".venv").exists() == foreign


def test_an_environment_of_the_user_is_not_made_again(tmp_path):
    """The interpreter has a torch and lacks transformers, and so does a .venv that was there before."""
    folder = make(tmp_path / "checkout")
    lacking = stub(tmp_path / "lacking", 'case "$*" in "-c "*) echo transformers;; esac')
    theirs = stub(folder / ".venv/bin/python", "exit 1")
    done = configure(folder, ARK_PYTHON=str(lacking))
    assert done.returncode == 1 and theirs.exists()
    want = f"{folder}/.venv is not of this build, and lacks transformers: install it there, or move the folder away"
    assert done.stderr.splitlines()[-1] == want, done.stderr


def test_an_empty_environment_builds(tmp_path):
    """Not even a PATH."""
    folder = make(tmp_path / "checkout")
    environment = {"ARK_PYTHON": sys.executable, "CCACHE_DISABLE": "1"}
    bash = shutil.which("bash")
    done = subprocess.run([bash, "configure"], cwd=folder, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr


def test_packages_that_cannot_be_had_are_one_line(tmp_path):
    """No torch, and an index that is not there."""
    bare = tmp_path / "bare/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare.parents[1])], check=True)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    done = configure(make(tmp_path / "checkout"), ARK_PYTHON=str(bare), PIP_CONFIG_FILE=os.devnull, **nowhere)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "is there a network?" in last and "ARK_PYTHON" in last and str(bare) in last, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_than_the_builder_is_told(built):
    folder, first = built
    assert first.returncode == 0, first.stderr
    log = (folder / "build/build.log").read_text()
    done = configure(folder, user=NOBODY)
    assert done.returncode == 1
    assert re.fullmatch(rf"\S+ cannot write {folder}, which belongs to root: .*\n", done.stderr), done.stderr
    assert (folder / "build/build.log").read_text() == log


@needs_ccache
def test_a_second_checkout_takes_the_objects_of_the_first(built):
    done = configure(make(built[0].parent / "two", units=11))
    assert done.returncode == 0, done.stderr
    environment = os.environ | {"CCACHE_DIR": str(built[0].parent / "ccache")}
    text = subprocess.run(["ccache", "--print-stats"], env=environment, capture_output=True, text=True).stdout
    counts = {name: int(n) for name, n in re.findall(r"^(\w+)\t(\d+)", text, re.M)}
    assert counts["cache_miss"] == 12 and counts["direct_cache_hit"] + counts["preprocessed_cache_hit"] == 12, text


def test_a_second_set_up_builds_nothing(built):
    again = configure(built[0])
    assert again.returncode == 0 and "building" not in again.stderr, again.stderr


@needs_ccache
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    done = configure(make(tmp_path / "checkout"), CCACHE_DIR=str(tmp_path / "file/ccache"))
    assert done.returncode == 0, done.stderr
