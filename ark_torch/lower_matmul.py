"""Lowering rules of matrix products."""

from __future__ import annotations

import torch

from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, meta_shape, rule

aten = torch.ops.aten


def _check(a: Value, b: Value) -> None:
    if not a.dtype.is_floating_point or a.dtype != b.dtype:
        raise Unsupported(f"matmul of {a.dtype} and {b.dtype}")


def _product(ctx: Lowering, a: Value, b: Value, dtype, shape, strides=None) -> Value:
    _check(a, b)
    return ctx.graph.add_node("matmul", [a, b], dtype, shape, strides)


@rule(aten.mm.default, aten.bmm.default)
def lower_mm(ctx: Lowering, node, a, b):
    return _product(ctx, a, b, **ctx.like(ctx.out(node)))


@rule(aten.addmm.default, aten.baddbmm.default)
def lower_addmm(ctx: Lowering, node, bias, a, b, *, beta=1, alpha=1):
    """The product stays in the compute type until bias, alpha and beta are in."""
    out = ctx.out(node)
    wide = compute_type(out.dtype)
    total = _product(ctx, a, b, wide, meta_shape(out))
    if alpha != 1:
        total = ctx.pointwise("mul", [total, ctx.operand(alpha, wide)], wide)
    if beta == 0:
        return ctx.pointwise("cast", [total], **ctx.like(out))
    bias = ctx.to_compute(bias, wide)
    if beta != 1:
        bias = ctx.pointwise("mul", [bias, ctx.operand(beta, wide)], wide)
    return ctx.pointwise("add", [total, bias], **ctx.like(out))
