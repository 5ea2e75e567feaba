"""A report is kept for the same text, options and compiler alone. The compiler is a script here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import kernel_reports
from tests.support.kernel_reports import report_of

# Preprocesses by copying, without lines that begin with //; counts its compilations and prints its name.
NVCC = """#!/bin/sh
case "$*" in
  -V) echo "$0" ;;
  *-E*) for file; do :; done; sed '/^\\/\\//d' "$file" ;;
  *) echo x >> {count}; echo "report of $*" | sed 's| -cubin.*||'; exit {code} ;;
esac
"""


@pytest.fixture
def compiler(tmp_path):
    kernel_reports.compiler_identity.cache_clear()
    yield made(tmp_path, "nvcc")
    kernel_reports.compiler_identity.cache_clear()


def made(folder: Path, name: str, code: int = 0) -> str:
    file = folder / name
    file.write_text(NVCC.format(count=folder / "count", code=code))
    file.chmod(0o755)
    return str(file)


def compiled(folder: Path) -> int:
    count = folder / "count"
    return count.read_text().count("x") if count.exists() else 0


def source(folder: Path, text: str, name: str = "kernel.cu") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_same_text_is_compiled_once(compiler, tmp_path):
    """By another name, with other comments, from another checkout."""
    kept = tmp_path / "kept"
    first = report_of(compiler, ["-O3", "-I/one"], source(tmp_path, "int x;\n// of one\n"), kept)
    second = report_of(compiler, ["-O3", "-I/two"], source(tmp_path, "int x;\n", "other.cu"), kept)
    assert first == second == "report of -O3 -I/one\n" and compiled(tmp_path) == 1
    assert len(list(kept.iterdir())) == 1


def test_another_text_option_or_compiler_compiles(compiler, tmp_path, monkeypatch):
    kept, kernel = tmp_path / "kept", source(tmp_path, "int x;\n")
    report_of(compiler, ["-O3"], kernel, kept)
    report_of(compiler, ["-O2"], kernel, kept)
    report_of(compiler, ["-O3"], source(tmp_path, "int y;\n", "y.cu"), kept)
    report_of(made(tmp_path, "newer"), ["-O3"], kernel, kept)
    kernel_reports.compiler_identity.cache_clear()
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    report_of(compiler, ["-O3"], kernel, kept)
    assert compiled(tmp_path) == 5


def test_errors_are_not_kept(tmp_path):
    broken, kernel = made(tmp_path, "broken", code=1), source(tmp_path, "int x;\n")
    for _ in range(2):
        with pytest.raises(AssertionError, match="report of"):
            report_of(broken, ["-O3"], kernel, tmp_path / "kept")
    assert compiled(tmp_path) == 2 and not (tmp_path / "kept").exists()


def test_a_damaged_report_is_made_again(compiler, tmp_path):
    kept, kernel = tmp_path / "kept", source(tmp_path, "int x;\n")
    report = report_of(compiler, ["-O3"], kernel, kept)
    file = next(kept.iterdir())
    file.write_text(file.read_text()[:-3])
    assert report_of(compiler, ["-O3"], kernel, kept) == report and compiled(tmp_path) == 2
    assert report_of(compiler, ["-O3"], kernel, kept) == report and compiled(tmp_path) == 2


def test_a_report_that_nobody_asks_for_goes(compiler, tmp_path):
    kept = tmp_path / "kept"
    report_of(compiler, ["-O3"], source(tmp_path, "int x;\n"), kept)
    old = next(kept.iterdir())
    os.utime(old, (0, 0))
    report_of(compiler, ["-O3"], source(tmp_path, "int y;\n"), kept)
    assert not old.exists() and len(list(kept.iterdir())) == 1


def test_without_a_folder_every_run_compiles(compiler, tmp_path):
    kernel = source(tmp_path, "int x;\n")
    (tmp_path / "file").write_text("")
    for folder in (None, None, tmp_path / "file/kept"):
        report_of(compiler, ["-O3"], kernel, folder)
    assert compiled(tmp_path) == 3
