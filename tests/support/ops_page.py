"""docs/OPS.md, read off the lowering table, the planner and the sweep of torch's operator database:

python -m tests.support.ops_page --write
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType

from ark_torch.graph_json import DTYPE_NAMES
from ark_torch.lowering import RULES, Lowering
from ark_torch.ops import family_of, name_of, supported
from tests.support.ops_samples import task_table

ROOT = Path(__file__).resolve().parents[2]
PAGE, OPDB = ROOT / "docs/OPS.md", ROOT / "benchmarks/results/host/opdb.json"
HEAD = """# Ops that run natively

Written by `python -m tests.support.ops_page --write`, checked by `tests/frontend/test_ops.py`.
`python -m ark_torch ops` prints the ops of the version that is installed.

An op is native where the lowering table has a rule for it. Rules look at dtypes, sizes and layouts too; what a rule
refuses runs through ATen, with a message that says why. Everything else runs through ATen as well.

Tensors may be of these types: {types}. Half types are computed in f32,
f64 in f64, integers in i64. Tensors of other types, sparse and empty tensors run through ATen; a `cat`
leaves empty pieces out.
"""
TASKS = """A task kind is what a tile of the kernel does (docs/ARCHITECTURE.md). The planner fuses neighbouring nodes:
pointwise nodes run inside the task of a product or reduction where they can. The kinds below are what it chooses for
one op by itself. "-" means that the op runs through ATen."""
LEFT = """Of {samples} operators of torch's operator database (one float32 sample each, on the host target;
`benchmarks/results/host/opdb.json`, commit {commit}, torch {torch}) {native} ran native, {mixed} in part,
{fallback} through ATen; {skipped} had nothing to run. Ops that ran through ATen there and have no rule today:
"""


def node_kinds() -> list[str]:
    """Names of the kinds of nodes, of csrc/ir/graph.h."""
    text = (ROOT / "csrc/ir/graph.h").read_text()
    enumeration = text[text.index("enum class OpKind") : text.index("kNumOpKinds")]
    return [re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in re.findall(r"^  k(\w+),", enumeration, re.M)]


def _codes(code: CodeType):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _strings(value: object):
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _strings(item)


def emitted(function: FunctionType, kinds: set[str], seen: set) -> set[str]:
    """The kinds of nodes that a rule, or a helper that it calls, names where it emits nodes."""
    if function in seen:
        return set()
    seen.add(function)
    codes = list(_codes(function.__code__))
    names = {name for code in codes for name in code.co_names}
    constants = {s for code in codes for c in code.co_consts for s in _strings(c)}
    found = constants & kinds if names & {"add_node", "emit", "add_view"} else set()
    inner = [cell.cell_contents for cell in function.__closure__ or ()]
    inner += [g for name in names if getattr(g := function.__globals__.get(name), "__module__", "") in _LOWERS]
    inner += [getattr(Lowering, name, None) for name in names]
    for other in inner:
        if isinstance(other, FunctionType):
            found |= emitted(other, kinds, seen)
    return found


_LOWERS = {function.__module__ for function in RULES.values()}


def op_tables() -> str:
    """Per family: which kinds of nodes rules emit, and for which ops."""
    kinds = node_kinds()
    families: dict[str, dict] = {family: defaultdict(set) for family in supported()}
    for overload, function in RULES.items():
        found = emitted(function, set(kinds), set())
        nodes = tuple(k for k in kinds if k in found - {"view", "full"}) or ("full",) * ("full" in found)
        families[family_of(function)][nodes or ("view",)].add(name_of(overload))
    lines = ["| family | nodes of the graph | ops |", "|---|---|---|"]
    for family, rows in families.items():
        for nodes, names in sorted(rows.items()):
            listed = " ".join(f"`{n}`" for n in sorted(names, key=lambda n: n.lstrip("_")))
            lines.append(f"| {family} | {', '.join(nodes)} | {listed} |")
    return "\n".join(lines)


def left_to_aten() -> str:
    """What torch's operator database has that ran through ATen, of the result file, and has no rule today."""
    found = json.loads(OPDB.read_text())
    ruled = {str(overload) for overload in RULES}
    names = sorted(c for c in found["causes"] if re.fullmatch(r"[a-z_]+\.\w+\.\w+", c) and c not in ruled)
    head = LEFT.format(**found["kinds"], samples=found["samples"], commit=found["commit"][:7], torch=found["torch"])
    listed = " ".join(f"`{n.removeprefix('aten.')}`" for n in names)
    return head + "\n" + textwrap.fill(listed, 120, break_on_hyphens=False)


def page() -> str:
    head = HEAD.format(types=", ".join(DTYPE_NAMES.values())).rstrip()
    parts = [head, "## Ops and nodes", op_tables(), "## Nodes and tasks", TASKS, task_table()]
    return "\n\n".join([*parts, "## What goes to ATen", left_to_aten()]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="docs/OPS.md (else printed)")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
