"""Lowering rules of sums by index: rows of a source, added up where their indices say; and of index_put, which may be
one."""

from __future__ import annotations

import math

import torch

from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value
from ark_torch.lower_index import check_index, from_zero, put
from ark_torch.lowering import Lowering, canonical_dim, compute_type, rule
from ark_torch.sizes import contiguous_strides

aten = torch.ops.aten

_NONE = -1  # no index is left out


def _needs_float(x: Value) -> None:
    if not x.dtype.is_floating_point or x.dtype.itemsize == 1:
        raise Unsupported(f"a sum by index of {x.dtype} (native: float16, bfloat16, float32, float64)")


def _joined(ctx: Lowering, x: Value, split: int) -> Value:
    """[product of the first `split` sizes, product of the others]; a copy where the memory is not like that."""
    if x.strides != contiguous_strides(x.shape):
        x = ctx.pointwise("cast", [x], x.dtype, x.shape, contiguous_strides(x.shape))
    rows, columns = math.prod(x.shape[:split]), math.prod(x.shape[split:])
    return ctx.view(x, (rows, columns), (columns, 1))


def _line(ctx: Lowering, index: Value) -> Value:
    joined = _joined(ctx, index, len(index.shape))
    return ctx.view(joined, joined.shape[:1], (1,))


def _sum(ctx: Lowering, source: Value, index: Value, rows, without: int = _NONE) -> Value:
    """[rows, columns] of [terms, columns] and [terms]."""
    shape = (rows, source.shape[1])
    if source.shape[0] == 0:
        return ctx.full(0, source.dtype, shape)
    return ctx.graph.add_node("scatter_sum", [source, index], source.dtype, shape, imm_int=without)


def _add(ctx: Lowering, node, x: Value, index: Value, source: Value) -> Value:
    """x with source's rows added where the index says, rounded once: `source` [*index's sizes, *x's but the first]."""
    if source.dtype != x.dtype:
        raise Unsupported(f"a sum by index of {source.dtype} into {x.dtype}")
    like, wide = ctx.like(ctx.out(node)), ctx.cast(source, compute_type(x.dtype))
    total = _sum(ctx, _joined(ctx, wide, len(index.shape)), _line(ctx, index), x.shape[0])
    total = ctx.view(total, x.shape, contiguous_strides(x.shape))
    return ctx.pointwise("add", [ctx.to_compute(x, x.dtype), total], **like)


@rule(aten.embedding_dense_backward.default)
def lower_embedding_backward(ctx: Lowering, node, gradient, indices, num_weights, padding_idx, scale_grad_by_freq):
    check_index(indices)
    _needs_float(gradient)
    if scale_grad_by_freq:
        raise Unsupported("embedding's gradient by frequency (native: scale_grad_by_freq=False)")
    if not isinstance(padding_idx, int):
        raise Unsupported("embedding's gradient with a padding_idx that is no constant")
    source = _joined(ctx, gradient, len(gradient.shape) - 1)
    return ctx.finish_as(_sum(ctx, source, _line(ctx, indices), num_weights, padding_idx), ctx.out(node))


@rule(aten.index_add.default)
def lower_index_add(ctx: Lowering, node, x, dim, index, source, *, alpha=1):
    check_index(index)
    _needs_float(x)
    rank = len(x.shape)
    if rank == 0 or canonical_dim(dim, rank) != 0 or alpha != 1:
        raise Unsupported("index_add (native: along the first dimension, alpha 1)")
    if len(index.shape) != 1 or source.shape != index.shape + x.shape[1:]:
        raise Unsupported("index_add (native: an index of one dimension, a source of as many rows of x's sizes)")
    return _add(ctx, node, x, from_zero(ctx, index, x.shape[0]), source)


@rule(aten.scatter_add.default)
def lower_scatter_add(ctx: Lowering, node, x, dim, index, source):
    check_index(index)
    _needs_float(x)
    rank = len(x.shape)
    same = all(stride == 0 or size == 1 for size, stride in zip(index.shape[1:], index.strides[1:]))
    if rank == 0 or canonical_dim(dim, rank) != 0 or not same:
        raise Unsupported("scatter_add (native: along the first dimension, an index that is expanded from one per row)")
    if index.shape != source.shape or index.shape[1:] != x.shape[1:]:
        raise Unsupported("scatter_add of a part (native: index and source of the same sizes, of whole rows)")
    line = ctx.view(index, index.shape[:1], index.strides[:1])
    return _add(ctx, node, x, from_zero(ctx, line, x.shape[0]), source)


def _accumulate(ctx: Lowering, node, x: Value, indices: list, values: Value) -> Value:
    """x[index] += values."""
    _needs_float(x)
    if not indices or indices[0] is None or any(index is not None for index in indices[1:]):
        raise Unsupported("index_put with accumulate (native: one index, of the first dimension)")
    index, size = indices[0], ctx.scalar(x.shape[0], torch.int64)
    check_index(index)
    place = index.shape + x.shape[1:]
    fits = all(have in (1, want) for have, want in zip(reversed(values.shape), reversed(place)))
    if not fits or len(values.shape) > len(place):
        raise Unsupported(f"index_put of values {values.shape} at places {place}")
    wide = ctx.to_compute(index, torch.int64)
    negative = ctx.pointwise("lt", [wide, ctx.scalar(0, torch.int64)], torch.bool, index.shape)
    wrapped = ctx.pointwise("add", [wide, size], torch.int64, index.shape)
    index = from_zero(ctx, ctx.pointwise("where", [negative, wrapped, wide], torch.int64, index.shape), x.shape[0])
    return _add(ctx, node, x, index, ctx.expand(values, place))


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def lower_index_put(ctx: Lowering, node, x, indices, values, accumulate=False):
    return (_accumulate if accumulate else put)(ctx, node, x, list(indices), values)
