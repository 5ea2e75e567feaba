"""A checkout with the project's own set-up files around an extension that compiles in a moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "ark_torch/versions.py",
    "configure",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "requirements.txt",
    "ark_autoload.py",
    "csrc/embed.py",
)
MODULE = """#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C"};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
"""


def make(folder: Path, units: int = 1) -> Path:
    """The folder with `units` C++ files beside the embedded one."""
    for name in (*FILES, "csrc/base/embedded.h"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "csrc/device").mkdir()
    (folder / "csrc/device/some.h").write_text("#pragma once\n")
    (folder / "ark_torch").mkdir(exist_ok=True)
    (folder / "ark_torch/__init__.py").write_text("")
    (folder / "csrc/module.cpp").write_text(MODULE)
    for number in range(units - 1):
        (folder / f"csrc/unit{number}.cpp").write_text(f"int unit{number}() {{ return {number}; }}\n")
    return folder


def configure(folder: Path, user: int | None = None, **env: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CCACHE")}
    environment |= {"ARK_PYTHON": sys.executable, "CCACHE_DIR": str(folder.parent / "ccache")} | env
    return subprocess.run(
        ["./configure"], cwd=folder, env=environment, user=user, capture_output=True, text=True, timeout=550
    )
