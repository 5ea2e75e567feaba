"""The rooms of csrc include only downwards; torch is met in bindings alone; torch's private modules are imported in
one file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "base": {"base"},
    "ir": {"base", "ir"},
    "device": {"device"},
    "planner": {"base", "ir", "device", "planner"},
    "codegen": {"base", "ir", "device", "planner", "codegen"},
    "comm": {"base", "device", "comm", "targets"},
    "targets": {"base", "ir", "device", "planner", "codegen", "targets"},
    "runtime": {"base", "ir", "device", "planner", "codegen", "comm", "targets", "runtime"},
    "bindings": {"base", "ir", "device", "planner", "codegen", "comm", "targets", "runtime", "bindings"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def sources():
    return [f for f in (ROOT / "csrc").rglob("*") if f.suffix in (".h", ".cpp", ".cuh", ".in")]


def test_includes_go_downwards():
    wrong = []
    for file in sources():
        room = file.relative_to(ROOT / "csrc").parts[0]
        for quote, path in INCLUDE.findall(file.read_text()):
            target = path.split("/")[0]
            if quote == '"' and target in ALLOWED and target not in ALLOWED[room]:
                wrong.append(f"{file.relative_to(ROOT)} includes {path}")
    assert wrong == []


def test_comm_takes_only_the_driver_and_the_compiler():
    """csrc/comm may use targets/cuda/*.h, which knows nothing of plans: no other header of targets."""
    wrong = []
    for file in sources():
        if file.relative_to(ROOT / "csrc").parts[0] == "comm":
            paths = [path for _, path in INCLUDE.findall(file.read_text())]
            wrong += [
                f"{file.name}: {p}" for p in paths if p.startswith("targets/") and not p.startswith("targets/cuda/")
            ]
    assert wrong == []


def test_every_quoted_include_exists():
    missing = []
    for file in sources():
        for quote, path in INCLUDE.findall(file.read_text()):
            places = (ROOT / "csrc" / path, file.parent / path, ROOT / "csrc/device" / path)
            if quote == '"' and not any(p.exists() for p in places):
                missing.append(f"{file.relative_to(ROOT)}: {path}")
    assert missing == []


def test_torch_is_in_bindings_only():
    pattern = re.compile(r'#\s*include\s*[<"](torch/|ATen/|c10/|pybind11/)')
    wrong = [str(f.relative_to(ROOT)) for f in sources() if "bindings" not in f.parts and pattern.search(f.read_text())]
    assert wrong == []


def test_inline_assembly_is_in_files_of_its_own():
    pattern = re.compile(r"\basm\s*(volatile)?\s*\(")
    wrong = [
        str(f.relative_to(ROOT))
        for f in (ROOT / "csrc/device").rglob("*")
        if not f.name.startswith("ptx") and pattern.search(f.read_text())
    ]
    assert wrong == []


def test_private_modules_of_torch_are_in_one_file():
    pattern = re.compile(r"^\s*(from|import)\s+(torch\._|torch\.\w+\._|functorch)", re.M)
    files = [f for f in (ROOT / "ark_torch").glob("*.py") if f.name != "_compat.py"]
    assert files and [f.name for f in files if pattern.search(f.read_text())] == []
