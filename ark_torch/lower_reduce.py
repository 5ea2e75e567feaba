"""Lowering rules of reductions."""

from __future__ import annotations

import torch

import ark_torch.row_select  # noqa: F401 - defines ops that have a rule here
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, canonical_dim, rule
from ark_torch.sizes import numel

aten, prims = torch.ops.aten, torch.ops.prims


def _dims(value: Value, dims) -> list[int]:
    """Ascending, not negative; None or empty means all."""
    rank = len(value.shape)
    if rank == 0:
        return []
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(canonical_dim(d, rank) for d in dims)


def _reduced_shape(shape, dims, keepdim: bool) -> tuple:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def _reduce(ctx: Lowering, op: str, x: Value, dims, keepdim: bool, dtype, shape=None, strides=None) -> Value:
    dims = _dims(x, dims)
    if not x.shape:
        return ctx.pointwise("cast", [x], dtype, shape or (), strides)
    shape = _reduced_shape(x.shape, dims, keepdim) if shape is None else shape
    return ctx.graph.add_node("reduce", [x], dtype, shape, strides, reduce=op, dims=dims, keepdim=bool(keepdim))


def _simple(op: str):
    def lower(ctx: Lowering, node, x, dims=None, keepdim=False, dtype=None):
        out = ctx.out(node)
        return _reduce(ctx, op, ctx.to_compute(x, out.dtype), dims, keepdim, **ctx.like(out))

    return lower


rule(aten.sum.dim_IntList, aten.prod.dim_int)(lambda ctx, node, *a, **k: _simple(_name_of(node))(ctx, node, *a, **k))


@rule(aten.sum.default, aten.prod.default)
def lower_full_sum(ctx: Lowering, node, x, dtype=None):
    return _simple(_name_of(node))(ctx, node, x)


def _name_of(node) -> str:
    return node.target._schema.name.split("::")[1]


@rule(aten.amax.default, aten.amin.default)
def lower_amax(ctx: Lowering, node, x, dims=(), keepdim=False):
    op = "max" if node.target == aten.amax.default else "min"
    if ctx.out(node).dtype == torch.bool:
        op = {"max": "any", "min": "all"}[op]
    return _simple(op)(ctx, node, x, list(dims), keepdim)


@rule(aten.max.default, aten.min.default)
def lower_max(ctx: Lowering, node, x):
    op = "max" if node.target == aten.max.default else "min"
    if ctx.out(node).dtype == torch.bool:
        op = {"max": "any", "min": "all"}[op]
    return _simple(op)(ctx, node, x)


@rule(aten.max.dim, aten.min.dim)
def lower_max_dim(ctx: Lowering, node, x, dim, keepdim=False):
    values, indices = node.meta["val"]
    op = "max" if node.target == aten.max.dim else "min"
    if x.dtype == torch.bool:
        best = _reduce(ctx, {"max": "any", "min": "all"}[op], x, dim, keepdim, **ctx.like(values))
        x = ctx.cast(x, torch.int64)
    else:
        best = _reduce(ctx, op, x, dim, keepdim, **ctx.like(values))
    return best, _arg(ctx, "arg_" + op, x, dim, keepdim, indices)


def _arg(ctx: Lowering, op: str, x: Value, dim, keepdim: bool, out: torch.Tensor) -> Value:
    if not x.shape:
        return ctx.full(0, **ctx.like(out))
    return _reduce(ctx, op, x, dim, keepdim, **ctx.like(out))


@rule(aten.argmax.default, aten.argmin.default)
def lower_argmax(ctx: Lowering, node, x, dim=None, keepdim=False):
    if x.dtype == torch.bool:
        x = ctx.cast(x, torch.int64)
    return _arg(ctx, "arg_max" if node.target == aten.argmax.default else "arg_min", x, dim, keepdim, ctx.out(node))


@rule(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def lower_any(ctx: Lowering, node, x, dims=None, keepdim=False):
    out = ctx.out(node)
    result = _reduce(
        ctx,
        _name_of(node),
        ctx.cast(x, torch.bool),
        dims,
        keepdim,
        torch.bool,
        ctx.like(out)["shape"],
        ctx.like(out)["strides"],
    )
    return result if out.dtype == torch.bool else ctx.pointwise("cast", [result], **ctx.like(out))  # u8 in, u8 out


def _count(x: Value, dims: list[int]):
    return numel(tuple(x.shape[d] for d in dims))


@rule(aten.mean.default)
def lower_full_mean(ctx: Lowering, node, x, dtype=None):
    return lower_mean(ctx, node, x, None, False, dtype)


@rule(aten.mean.dim)
def lower_mean(ctx: Lowering, node, x, dims=None, keepdim=False, dtype=None):
    out = ctx.out(node)
    wide = compute_type(out.dtype)
    total = _reduce(ctx, "sum", ctx.to_compute(x, wide), dims, keepdim, wide)
    return ctx.pointwise("div", [total, ctx.scalar(_count(x, _dims(x, dims)), wide)], **ctx.like(out))


def _moments(ctx: Lowering, x: Value, dims, keepdim: bool, correction) -> tuple[Value, Value]:
    """Variance and mean in the compute type: two passes, as the second pass is what keeps the digits."""
    if not x.dtype.is_floating_point:
        raise Unsupported(f"variance of {x.dtype} (native: floating types)")
    wide = compute_type(x.dtype)
    dims = _dims(x, dims)
    x = ctx.to_compute(x, wide)
    count = ctx.scalar(_count(x, dims), wide)
    mean = ctx.pointwise("div", [_reduce(ctx, "sum", x, dims, True, wide), count], wide)
    delta = ctx.pointwise("sub", [x, mean], wide)
    squares = _reduce(ctx, "sum", ctx.pointwise("mul", [delta, delta], wide), dims, keepdim, wide)
    correction = 1 if correction is None else correction
    freedom = ctx.pointwise("sub", [count, ctx.scalar(float(correction), wide)], wide)
    freedom = ctx.pointwise("maximum", [freedom, ctx.scalar(0.0, wide)], wide)
    variance = ctx.pointwise("div", [squares, freedom], wide)
    if not keepdim:
        shape = _reduced_shape(x.shape, dims, False)
        strides = tuple(s for d, s in enumerate(mean.strides) if d not in dims) if x.shape else ()
        mean = ctx.view(mean, shape, strides)
    return variance, mean


@rule(aten.var_mean.correction)
def lower_var_mean(ctx: Lowering, node, x, dims=None, *, correction=None, keepdim=False):
    variance, mean = _moments(ctx, x, dims, keepdim, correction)
    out_variance, out_mean = node.meta["val"]
    return ctx.finish_as(variance, out_variance), ctx.finish_as(mean, out_mean)


@rule(aten.var.correction)
def lower_var(ctx: Lowering, node, x, dims=None, *, correction=None, keepdim=False):
    return ctx.finish_as(_moments(ctx, x, dims, keepdim, correction)[0], ctx.out(node))


@rule(aten._softmax.default, aten._log_softmax.default)
def lower_softmax(ctx: Lowering, node, x, dim, half_to_float):
    out = ctx.out(node)
    wide = compute_type(out.dtype)
    x = ctx.to_compute(x, wide)
    if not x.shape:
        return ctx.full(1.0 if node.target == aten._softmax.default else 0.0, **ctx.like(out))
    shifted = ctx.pointwise("sub", [x, _reduce(ctx, "max", x, dim, True, wide)], wide)
    exps = ctx.pointwise("exp", [shifted], wide)
    total = _reduce(ctx, "sum", exps, dim, True, wide)
    if node.target == aten._softmax.default:
        return ctx.pointwise("div", [exps, total], **ctx.like(out))
    return ctx.pointwise("sub", [shifted, ctx.pointwise("log", [total], wide)], **ctx.like(out))


# A prefix sum is a masked sum over pairs of positions: more additions, but one row task. Up to so many pairs (a few us
# spread over the SMs) it costs no more than cutting the loop kernel in two.
MAX_PREFIX_PAIRS = 1 << 22


@rule(aten.cumsum.default)
def lower_cumsum(ctx: Lowering, node, x, dim, dtype=None):
    out = ctx.out(node)
    if not x.shape:
        return ctx.pointwise("cast", [x], **ctx.like(out))
    dim = canonical_dim(dim, len(x.shape))
    pairs = numel(x.shape) * x.shape[dim]
    if not isinstance(pairs, int) or pairs > MAX_PREFIX_PAIRS or len(x.shape) > 4:
        raise Unsupported(
            f"cumsum (native: of known sizes, at most 4 dimensions, elements x length at most {MAX_PREFIX_PAIRS})"
        )
    length, rank = x.shape[dim], len(x.shape)
    x = ctx.to_compute(x, out.dtype)
    wide = compute_type(out.dtype)
    # [..., length (result), ...] x [length (summed)], the summed position innermost
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :], length)
    strides = (*x.strides[:dim], 0, *x.strides[dim + 1 :], x.strides[dim])
    source = ctx.iota(length)
    target = ctx.view(source, (length,) + (1,) * (rank - dim), (1,) * (rank - dim + 1))
    visible = ctx.pointwise("le", [source, target], torch.bool)
    chosen = ctx.pointwise("where", [visible, ctx.view(x, shape, strides), ctx.scalar(0, wide)], wide, shape)
    return _reduce(ctx, "sum", chosen, rank, False, **ctx.like(out))


@rule(torch.ops.ark.select_by_count.default, torch.ops.ark.select_by_mass.default)
def lower_row_select(ctx: Lowering, node, distances, bound):
    return ctx.finish_as(ctx.graph.add_node("row_select", [distances, bound], torch.int64, bound.shape), ctx.out(node))


@rule(torch.ops.ark.draw_by_mass.default)
def lower_row_draw(ctx: Lowering, node, values, noise, share):
    outputs = [ctx.graph.add_value(x.dtype, tuple(share.shape), (1,)) for x in node.meta["val"]]
    ctx.graph.emit("row_draw", [values, noise, share], outputs, {})
    return tuple(outputs)
