"""The rooms of csrc include only downwards; torch is met in bindings alone; torch's private modules are imported in
one file."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_imports import circle

ROOT = Path(__file__).resolve().parent.parent
PLAN = {"base", "ir", "device/abi", "plan"}
WAIT = {"device/abi", "device/ptx", "device/wait"}
LOOP = WAIT | {"device/loop"}
PASSES = {"planner", "planner/fuse", "planner/tile", "planner/order", "planner/verify"}
ALLOWED = {
    "base": {"base"},
    "ir": {"base", "ir"},
    "device/abi": {"device/abi"},
    "device/ptx": {"device/abi", "device/ptx"},
    "device/wait": WAIT,
    "device/loop": LOOP,
    "device/program": LOOP | {"device/program"},
    "device/matmul": LOOP | {"device/program", "device/matmul"},
    "device/attention": LOOP | {"device/program", "device/attention"},
    "device/collective": WAIT | {"device/collective"},
    "plan": PLAN,
    "planner/fuse": PLAN | {"planner", "planner/fuse"},
    "planner/tile": PLAN | {"planner", "planner/fuse", "planner/tile"},
    "planner/order": PLAN | {"planner", "planner/fuse", "planner/order"},
    "planner/verify": PLAN | {"planner/verify"},
    "planner": PLAN | PASSES,
    "codegen": PLAN | {"codegen"},
    "cuda": {"base", "device/abi", "cuda"},
    "comm": {"base", "device/abi", "cuda", "comm"},
    "targets": PLAN | {"codegen", "cuda", "targets"},
    "runtime": PLAN | PASSES | {"codegen", "comm", "cuda", "targets", "runtime"},
    "bindings": PLAN | PASSES | {"codegen", "comm", "cuda", "targets", "runtime", "bindings"},
}
TOP = "planner/planner.h"  # the list of passes: no pass knows it
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def sources():
    return [f for f in (ROOT / "csrc").rglob("*") if f.suffix in (".h", ".cpp", ".cuh", ".in")]


def room(path: str) -> str:
    """The innermost room that a path under csrc lies in; none: empty."""
    return next((folder for folder in map(str, Path(path).parents) if folder in ALLOWED), "")


def test_includes_go_downwards():
    wrong = set()
    for file in sources():
        allowed = ALLOWED[room(str(file.relative_to(ROOT / "csrc")))]
        for quote, path in INCLUDE.findall(file.read_text()):
            if quote == '"' and room(path) and room(path) not in allowed:
                wrong.add(f"{file.relative_to(ROOT)} includes {path}")
    assert wrong == set()


def test_no_pass_includes_the_list_of_passes():
    folder = ROOT / "csrc/planner"
    wrong = [f for f in sources() if folder in f.parents and f.stem != "planner" and f'"{TOP}"' in f.read_text()]
    assert wrong == []


def units(files: dict[str, str]) -> dict[str, set[str]]:
    """What a header and the source of its name include, as one: by the name that they share."""
    names = {name.rpartition(".")[0] for name in files}
    below: dict[str, set[str]] = {name: set() for name in names}
    for name, text in files.items():
        unit = name.rpartition(".")[0]
        included = {path.rpartition(".")[0] for quote, path in INCLUDE.findall(text) if quote == '"'}
        below[unit] |= (included & names) - {unit}
    return below


def test_no_circle_of_includes():
    """Nor one that closes through a source: x.h and x.cpp count as one."""
    below = units({str(f.relative_to(ROOT / "csrc")): f.read_text() for f in sources()})
    assert len(below) > 300 and sum(map(len, below.values())) > 1000
    assert circle(below) == [], "a circle of includes"


def test_circles_through_sources_are_found():
    files = {"a.h": '#include "b.h"\n', "a.cpp": '#include "a.h"\n#include <c.h>\n', "b.h": "", "b.cpp": ""}
    assert circle(units(files)) == []
    files["b.cpp"] = '#include "b.h"\n#include "c.h"\n'
    files["c.h"] = ""
    assert circle(units(files)) == []
    files["c.cpp"] = '#include "c.h"\n#include "a.h"\n'
    assert circle(units(files)) == ["a", "b", "c", "a"]


def test_device_code_includes_nothing_of_the_system():
    """NVRTC compiles it with no folder of headers."""
    found = [
        f"{file.relative_to(ROOT)} includes <{path}>"
        for file in sorted((ROOT / "csrc/device").rglob("*.*h"))
        for bracket, path in INCLUDE.findall(file.read_text())
        if bracket == "<"
    ]
    assert not found


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
        for f in sources()
        if "device" in f.parts and f.parent.name != "ptx" and pattern.search(f.read_text())
    ]
    assert wrong == []


def test_device_code_looks_at_deadlines_in_one_room():
    pattern = re.compile(r"global_time_ns\(\)\s*-|\bnow\s*-\s*start\b")
    found = {
        str(f.relative_to(ROOT / "csrc")) for f in sources() if pattern.search(f.read_text()) and "device" in f.parts
    }
    assert found == {"device/wait/poll.cuh"}


def test_private_modules_of_torch_are_in_one_file():
    pattern = re.compile(r"^\s*(from|import)\s+(torch\._|torch\.\w+\._|functorch)", re.M)
    files = [f for f in (ROOT / "ark_torch").glob("*.py") if f.name != "_compat.py"]
    assert files and [f.name for f in files if pattern.search(f.read_text())] == []


def test_a_type_has_one_definition():
    """Of a name and a namespace, in headers: units that see one each would break the one-definition rule silently."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "csrc").rglob("*.h"):
        text = file.read_text()
        spaces = re.findall(r"^namespace (ark[\w:]*) {", text, re.M)
        for name in re.findall(r"^(?:struct|class|enum class|union) (\w+)(?: final)?(?: : [^;{]*)? {$", text, re.M):
            found.setdefault(f"{spaces[0] if spaces else ''}::{name}", set()).add(str(file.relative_to(ROOT)))
    assert len(found) > 100
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
