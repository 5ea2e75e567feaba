"""Powers of bools with a bool as exponent. Eager's result is bool; the tracer's, and what AOTAutograd makes of it, is
int64."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx


def power(input: Tensor, exponent: bool) -> Tensor:
    return input.clone() if exponent else torch.ones_like(input)


def replace_bool_powers(gm: fx.GraphModule) -> None:
    """In a Dynamo graph."""
    for node in gm.graph.nodes:
        if not _is_power(node) or len(node.args) + len(node.kwargs) != 2:
            continue
        base, exponent = (*node.args, *node.kwargs.values())
        val = base.meta.get("example_value") if isinstance(base, fx.Node) else None
        if isinstance(exponent, bool) and isinstance(val, Tensor) and val.dtype == torch.bool:
            node.op, node.target, node.args, node.kwargs = "call_function", power, (base, exponent), {}
    gm.recompile()


def _is_power(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ("pow", "__pow__")
    return node.op == "call_function" and node.target in (torch.pow, torch.Tensor.pow, operator.pow)
