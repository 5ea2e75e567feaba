"""Lowering rules of matrix products and attention."""

from __future__ import annotations

import torch

from ark_torch import attention  # noqa: F401  (defines torch.ops.ark)
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, meta_shape, meta_strides, rule

aten, ark = torch.ops.aten, torch.ops.ark


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


def _causal_mask(ctx: Lowering, q: Value, k: Value) -> Value:
    """Key <= query, for the shapes where the ir's causal flag would need to know which corner is meant."""
    queries, keys = ctx.iota(q.shape[2]), ctx.iota(k.shape[2])
    mask = ctx.pointwise("le", [ctx.view(keys, (1, keys.shape[0]), (1, 1)), ctx.unsqueeze(queries, 1)], torch.bool)
    return ctx.reshape_rank(mask, 4)


def _mask_inputs(ctx: Lowering, q: Value, k: Value, mask: Value | None, causal: bool) -> tuple[list[Value], bool]:
    """The mask as an input list, and whether the causal flag remains."""
    if mask is not None:
        if causal:
            raise Unsupported("attention with a mask and causal")
        if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
            raise Unsupported(f"attention mask of {mask.dtype}")
        return [ctx.reshape_rank(mask, 4)], False
    if causal and q.shape[2] != k.shape[2]:
        return [_causal_mask(ctx, q, k)], False
    return [], causal


def _outputs(ctx: Lowering, vals) -> list[Value]:
    return [ctx.graph.add_value(val.dtype, meta_shape(val), meta_strides(val)) for val in vals]


@rule(ark.attention.default)
def lower_attention(ctx: Lowering, node, q, k, v, mask, scale, causal):
    masks, causal = _mask_inputs(ctx, q, k, mask, causal)
    outputs = _outputs(ctx, node.meta["val"])
    attrs = {"scale": scale, "causal": causal, "has_mask": bool(masks)}
    ctx.graph.emit("attention", [q, k, v, *masks], outputs, attrs)
    return tuple(outputs)


@rule(ark.attention_backward.default)
def lower_attention_backward(ctx: Lowering, node, dout, q, k, v, out, logsumexp, mask, scale, causal):
    masks, causal = _mask_inputs(ctx, q, k, mask, causal)
    outputs = _outputs(ctx, node.meta["val"])
    attrs = {"scale": scale, "causal": causal, "has_mask": bool(masks)}
    ctx.graph.emit("attention_backward", [dout, q, k, v, out, logsumexp, *masks], outputs, attrs)
    return tuple(outputs)
