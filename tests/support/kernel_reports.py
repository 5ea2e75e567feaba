"""What nvcc says of a generated kernel, kept from run to run as ccache keeps objects: the same preprocessed text,
options and compiler give the same machine code and report. ARK_CACHE_DIR=off: nothing is kept."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

KEPT_SECONDS = 30 * 86400  # a report that no run has asked for is removed


def default_folder() -> Path | None:
    if os.environ.get("ARK_CACHE_DIR") == "off":
        return None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ark_tests"


@functools.cache
def compiler_identity(nvcc: str) -> str:
    """Versions of nvcc and of the compiler that preprocesses for it, and the options that the environment adds."""
    versions = [subprocess.run(c, capture_output=True, text=True).stdout for c in ([nvcc, "-V"], ["gcc", "-v"])]
    return "\n".join([*versions, *(os.environ.get(f"NVCC_{place}_FLAGS", "") for place in ("PREPEND", "APPEND"))])


def key_of(nvcc: str, options: Sequence[str], source: Path) -> str | None:
    """None: the source cannot be preprocessed."""
    command = [nvcc, *options, "-E", "-Xcompiler", "-P", source]  # -P: no line numbers, no paths
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        return None
    fields = [compiler_identity(nvcc).encode(), *(o.encode() for o in options if not o.startswith("-I")), done.stdout]
    return hashlib.sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).hexdigest()


def load(file: Path) -> str | None:
    """None where there is none, or a damaged one."""
    try:
        digest, _, report = file.read_text().partition("\n")
    except OSError:
        return None
    if hashlib.sha256(report.encode()).hexdigest() != digest:
        return None
    os.utime(file)
    return report


def save(file: Path, report: str) -> None:
    """Several processes may save at once. A folder that cannot be written is done without."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob("*.report"):
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
            new.write(f"{hashlib.sha256(report.encode()).hexdigest()}\n{report}")
        os.replace(new.name, file)
    except OSError:
        pass


def report_of(nvcc: str, options: Sequence[str], source: Path, folder: Path | None) -> str:
    """Compiles to a cubin, unless a run before has. Fails on errors, which are never kept."""
    key = key_of(nvcc, options, source) if folder else None
    file = folder / f"{key}.report" if key else None
    if file and (kept := load(file)) is not None:
        return kept
    command = [nvcc, *options, "-cubin", source, "-o", source.with_suffix(".cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    if file:
        save(file, report)
    return report
