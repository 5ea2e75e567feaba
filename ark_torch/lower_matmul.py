"""Lowering rules of matrix products."""

from __future__ import annotations

import torch

from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, meta_shape, rule
from ark_torch.sizes import contiguous_strides

aten = torch.ops.aten


def _check(a: Value, b: Value) -> None:
    if not a.dtype.is_floating_point or a.dtype != b.dtype:
        raise Unsupported(f"matmul of {a.dtype} and {b.dtype} (native: one floating type)")


def _product(ctx: Lowering, a: Value, b: Value, dtype, shape, strides=None) -> Value:
    _check(a, b)
    if a.shape[-1] == 1:  # an outer product (rotary frequencies times positions) is no work for a matrix unit
        return ctx.pointwise("mul", [ctx.expand(a, shape), ctx.expand(b, shape)], dtype, shape, strides)
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


@rule(aten.convolution.default)
def lower_patches(ctx: Lowering, node, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """The convolution of a patch embedding (kernel = stride, no padding) is a product of patches and weights."""
    kernel = weight.shape[2:]
    plain = not transposed and groups == 1 and set(padding) == {0} and set(dilation) == {1}
    if not plain or len(kernel) != 2 or tuple(stride) != kernel or kernel == (1, 1):
        raise Unsupported(
            f"{node.target} (native: of 2 dimensions, with stride = kernel, not 1 x 1, padding 0, dilation 1, groups 1)"
        )
    out = ctx.out(node)
    batch, channels, (rows, columns), (high, wide) = x.shape[0], x.shape[1], meta_shape(out)[2:], kernel
    # [batch, rows, columns, channels, high, wide]: every patch becomes a row
    sn, sc, sh, sw = x.strides
    patches = ctx.view(x, (batch, rows, columns, channels, high, wide), (sn, sh * high, sw * wide, sc, sh, sw))
    patches = ctx.pointwise("cast", [patches], x.dtype)
    length = channels * high * wide
    patches = ctx.view(patches, (batch * rows * columns, length), (length, 1))
    if weight.strides != contiguous_strides(weight.shape):
        weight = ctx.pointwise("cast", [weight], weight.dtype, weight.shape)
    features = weight.shape[0]
    accumulate = compute_type(out.dtype)
    total = _product(
        ctx, patches, ctx.view(weight, (length, features), (1, length)), accumulate, (patches.shape[0], features)
    )
    strides = (rows * columns * features, 1, columns * features, features)
    total = ctx.view(total, (batch, features, rows, columns), strides)
    if bias is None:
        return ctx.pointwise("cast", [total], **ctx.like(out))
    bias = ctx.reshape_rank(ctx.to_compute(bias, accumulate), 3, 2)
    return ctx.pointwise("add", [total, bias], **ctx.like(out))
