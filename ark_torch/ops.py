"""The ops that run natively, read off the lowering table: `python -m ark_torch ops`, and the README's section."""

from __future__ import annotations

import ark_torch.compile  # noqa: F401  (fills the table)
from ark_torch.lowering import RULES

BEGIN, END = "<!-- ops: begin -->", "<!-- ops: end -->"
_FAMILIES = {
    "lower_pointwise": "elementwise arithmetic",
    "lower_select": "comparisons, choices, casts",
    "lower_create": "constants, random numbers",
    "lower_reduce": "reductions",
    "lower_matmul": "matrix products",
    "lower_attention": "attention",
    "lower_index": "gathers, scatters, joins",
    "lower_view": "views",
    "lower_foreach": "foreach (optimizers)",
    "lower_collective": "collectives (CPU tensors, groups of backend ark)",
}


def supported() -> dict[str, list[str]]:
    """Family -> names of ops, without the overload, `aten` left out."""
    found: dict[str, set[str]] = {family: set() for family in _FAMILIES.values()}
    for overload, function in RULES.items():
        module = function.__module__.rpartition(".")[2]
        family = _FAMILIES.get(module, module.removeprefix("lower_"))
        found.setdefault(family, set()).add(overload._schema.name.replace("::", ".").removeprefix("aten."))
    return {family: sorted(names, key=lambda n: n.lstrip("_")) for family, names in found.items()}


def table() -> str:
    """As Markdown: a row per family."""
    rows = ["| family | ops |", "|---|---|"]
    for family, names in supported().items():
        rows.append(f"| {family} ({len(names)}) | {' '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows)


def replaced(text: str) -> str:
    """`text` with the table of today between the two marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
