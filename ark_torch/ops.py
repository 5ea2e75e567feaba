"""The ops that run natively, read off the lowering table: `python -m ark_torch ops`, and docs/OPS.md."""

from __future__ import annotations

from collections.abc import Callable

import torch

import ark_torch.compile  # noqa: F401  (fills the table)
from ark_torch.lowering import RULES

_FAMILIES = {
    "lower_pointwise": "elementwise arithmetic",
    "lower_select": "comparisons, choices, casts",
    "lower_create": "constants, random numbers",
    "lower_reduce": "reductions",
    "lower_matmul": "matrix products",
    "lower_attention": "attention",
    "lower_index": "gathers, scatters, joins",
    "lower_scatter": "sums by index",
    "lower_view": "views",
    "lower_foreach": "foreach (optimizers)",
    "lower_collective": "collectives (CPU tensors, groups of backend ark)",
}


def family_of(function: Callable) -> str:
    """Of a rule."""
    module = function.__module__.rpartition(".")[2]
    return _FAMILIES.get(module, module.removeprefix("lower_"))


def name_of(overload: torch._ops.OpOverload) -> str:
    """Without the overload, `aten` left out."""
    return overload._schema.name.replace("::", ".").removeprefix("aten.")


def supported() -> dict[str, list[str]]:
    """Family -> names of ops."""
    found: dict[str, set[str]] = {family: set() for family in _FAMILIES.values()}
    for overload, function in RULES.items():
        found.setdefault(family_of(function), set()).add(name_of(overload))
    return {family: sorted(names, key=lambda n: n.lstrip("_")) for family, names in found.items()}


def table() -> str:
    """As Markdown: a row per family."""
    rows = ["| family | ops |", "|---|---|"]
    for family, names in supported().items():
        rows.append(f"| {family} ({len(names)}) | {' '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows)
