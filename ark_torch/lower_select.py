"""Lowering rules of comparisons, choices, casts and copies."""

from __future__ import annotations

import torch

from ark_torch._compat import sympy
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, is_integer, rule, wrap_integer

aten, prims = torch.ops.aten, torch.ops.prims
HALVES = (torch.float16, torch.bfloat16)
CONVERSIONS = ("aten._to_copy.default", "prims.convert_element_type.default")


# ---- comparisons and choices ----
def _common_type(a, b) -> torch.dtype:
    """ATen's promotion of the two operands of a comparison."""

    def probe(x):
        if isinstance(x, Value):
            return torch.empty((1,) * len(x.shape), dtype=x.dtype, device="meta")
        return 1 if isinstance(x, sympy.Expr) else x

    return torch.result_type(probe(a), probe(b))


def _compared(ctx: Lowering, x, common: torch.dtype, dtype: torch.dtype) -> Value:
    """An operand of a comparison in `dtype`; numbers are rounded (wrapped) to `common` as ATen does."""
    if isinstance(x, Value):
        return ctx.to_compute(ctx.cast(x, common) if x.dtype != common else x, dtype)
    if isinstance(x, (int, float)) and not isinstance(x, bool) and common.is_floating_point:
        x = torch.tensor(x, dtype=common).item()
    return ctx.scalar(wrap_integer(x, common), compute_type(dtype))


def _compare(opcode: str):
    def lower(ctx: Lowering, node, a, b):
        common = _common_type(a, b)
        if common.is_complex:
            raise Unsupported("comparison of complex numbers")
        dtype = common
        if common == torch.bool and opcode not in ("eq", "ne"):
            dtype = torch.int64
        return ctx.pointwise(
            opcode, [_compared(ctx, a, common, dtype), _compared(ctx, b, common, dtype)], **ctx.like(ctx.out(node))
        )

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_compare(_name))


def _logical(opcode: str):
    def lower(ctx: Lowering, node, a, b):
        return ctx.pointwise(opcode, [ctx.cast(a, torch.bool), ctx.cast(b, torch.bool)], **ctx.like(ctx.out(node)))

    return lower


for _name in ("logical_and", "logical_or", "logical_xor"):
    rule(getattr(aten, _name).default)(_logical(_name))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, prims.where.default)
def lower_where(ctx: Lowering, node, condition, a, b):
    out = ctx.out(node)
    operand = ctx.fitting_operand if is_integer(out.dtype) else ctx.operand
    inputs = [ctx.cast(condition, torch.bool), operand(a, out.dtype), operand(b, out.dtype)]
    return ctx.pointwise("where", inputs, **ctx.like(out))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def lower_masked_fill(ctx: Lowering, node, x, mask, value):
    out = ctx.out(node)
    value = ctx.fitting_operand(value, out.dtype)
    return ctx.pointwise("where", [mask, value, ctx.to_compute(x, out.dtype)], **ctx.like(out))


# ---- casts and copies ----
@rule(
    prims.convert_element_type.default,
    prims.device_put.default,  # to the device that the tensor is on: others are no tensors of this graph
    aten._to_copy.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
)
def lower_cast(ctx: Lowering, node, x, *args, **kwargs):
    if kwargs.get("pin_memory"):
        raise Unsupported("pinned memory")
    out = ctx.out(node)
    if _is_users(node) and x.dtype in HALVES and out.dtype.is_floating_point and out.dtype != x.dtype:
        return ctx.graph.add_node("pointwise", [x], **ctx.like(out), opcode="cast", rounds=True)
    return ctx.pointwise("cast", [x], **ctx.like(out))


def _is_users(node) -> bool:
    """A conversion that the user (or autocast) asks for, none of an op's decomposition: eager has rounded by then."""
    return str(node.meta.get("original_aten", node.target)) in CONVERSIONS  # the meta holds a copy of the op


@rule(aten.copy.default)
def lower_functional_copy(ctx: Lowering, node, target, source, non_blocking=False):
    return ctx.pointwise("cast", [source], **ctx.like(ctx.out(node)))


@rule(aten.copy_.default)
def lower_copy_to(ctx: Lowering, node, target: Value, source: Value, non_blocking=False):
    """Writes a graph input in place; the result is a view of that input."""
    if target.owner not in ctx.graph.inputs:
        raise Unsupported("copy_ into what is no argument of the graph")
    if any(size != 1 and stride == 0 for size, stride in zip(target.shape, target.strides)):
        raise Unsupported("copy_ into an expanded tensor")
    source = ctx.cast(source, target.dtype)
    source = ctx.expand(source, target.shape)
    return ctx.graph.store(target, source)
