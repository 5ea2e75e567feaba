"""The shape symbols of an FX graph: which argument or node each one is read from, which sizes follow from them."""

from __future__ import annotations

import math

import torch
from torch import fx

from ark_torch._compat import size_expr
from ark_torch.errors import Unsupported
from ark_torch.size_source import to_python


def is_unbacked_source(node: fx.Node) -> bool:
    """A number that is taken out of a tensor: known at run time only."""
    return node.target in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class SymbolTable:
    """Where each shape symbol's value comes from at run time, and what it was when the graph was traced."""

    def __init__(self, graph: fx.Graph):
        self.sources: dict[str, str] = {}  # symbol -> Python expression
        self.nodes: dict[str, fx.Node] = {}  # symbol -> node that the expression reads
        self.hints: dict[str, int] = {}
        for node in graph.nodes:
            self._add_scalar(node)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._add_tensor(node)

    def _put(self, expr, source: str, node: fx.Node, size) -> None:
        if not isinstance(expr, int) and expr.is_Symbol and expr.name not in self.sources:
            self.sources[expr.name], self.nodes[expr.name] = source, node
            hint = getattr(size.node, "hint", None)
            if isinstance(hint, int):
                self.hints[expr.name] = hint

    def _add_scalar(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt) and (node.op == "placeholder" or is_unbacked_source(node)):
            self._put(size_expr(val), node.name, node, val)

    def _add_tensor(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.layout == torch.strided:
            for d, size in enumerate(val.shape):
                if not isinstance(size, int):
                    self._put(size_expr(size), f"{node.name}.size({d})", node, size)

    def knows(self, node: fx.Node) -> bool:
        """Whether the node is a size that follows from known symbols."""
        val = node.meta.get("val")
        if node.op != "call_function" or not isinstance(val, torch.SymInt) or is_unbacked_source(node):
            return False
        return self.source_of(val) is not None

    def carries(self, node: fx.Node) -> bool:
        """Whether the node is an argument that is a size (a segment's stand-in gets the symbols instead)."""
        val = node.meta.get("val")
        return node.op == "placeholder" and isinstance(val, torch.SymInt) and self.source_of(val) is not None

    @property
    def variables(self) -> dict[str, str]:
        return {name: f"s_{name}" for name in self.sources}

    def hint_of(self, expr) -> int | None:
        """What a derived size was when the graph was traced."""
        if not {s.name for s in expr.free_symbols} <= self.hints.keys():
            return None
        return eval(to_python(expr, {name: f"({hint})" for name, hint in self.hints.items()}), {"math": math})

    def source_of(self, val) -> str | None:
        try:
            return to_python(size_expr(val), self.variables)
        except (KeyError, Unsupported):
            return None
