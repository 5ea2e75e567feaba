"""Lowering rules of gathers, scatters, concatenation and padding."""

from __future__ import annotations

import torch

from ark_torch._compat import size_expr
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value
from ark_torch.lowering import Lowering, broadcast, canonical_dim, fitting, meta_shape, rule, stored

aten = torch.ops.aten

MOST = 2**63 - 1  # where a slice without an end ends


def check_index(index: Value) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        if index.dtype in (torch.bool, torch.uint8):
            raise Unsupported("a mask as index: the result's size depends on values (torch.where keeps the size)")
        raise Unsupported(f"index of {index.dtype} (native: int32, int64)")


def from_zero(ctx: Lowering, index: Value, size) -> Value:
    """The index of an op that takes no negative ones: out of [0, size) is an error."""
    limit = ctx.scalar(size, torch.int64)
    return ctx.graph.add_node("pointwise", [index, limit], index.dtype, index.shape, opcode="check_index")


def _load(ctx: Lowering, src: Value, indices: list[Value], mapping: list[int], like: dict) -> Value:
    return ctx.graph.add_node("index_load", [src, *indices], like["dtype"], like["shape"], like["strides"], map=mapping)


def _store(ctx: Lowering, dst: Value, src: Value, indices: list[Value], mapping: list[int], like: dict) -> Value:
    src = ctx.cast(src, dst.dtype)
    return ctx.graph.add_node(
        "index_store", [dst, src, *indices], like["dtype"], like["shape"], like["strides"], map=mapping
    )


@rule(aten.embedding.default)
def lower_embedding(ctx: Lowering, node, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    check_index(indices)
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    indices = from_zero(ctx, indices, weight.shape[0])
    return _load(ctx, weight, [ctx.reshape_rank(indices, rank, 1)], [-1, rank - 1], like)


@rule(aten.index_select.default)
def lower_index_select(ctx: Lowering, node, x, dim, index):
    check_index(index)
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    if rank == 0:
        raise Unsupported("index_select of a scalar")
    dim = canonical_dim(dim, rank)
    mapping = [-1 if d == dim else d for d in range(rank)]
    index = from_zero(ctx, index, x.shape[dim])
    index = ctx.reshape_rank(index, 1) if not index.shape else index
    return _load(ctx, x, [ctx.reshape_rank(index, rank, rank - 1 - dim)], mapping, like)


@rule(aten.gather.default)
def lower_gather(ctx: Lowering, node, x, dim, index, sparse_grad=False):
    check_index(index)
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    if rank == 0:
        return ctx.pointwise("cast", [x], **like)
    if len(x.shape) != rank:
        raise Unsupported("gather of ranks that differ")
    dim = canonical_dim(dim, rank)
    index = from_zero(ctx, index, x.shape[dim])
    return _load(ctx, x, [index], [-1 if d == dim else d for d in range(rank)], like)


class _Indexing:
    """Where the dimensions of x[indices] come from (NumPy's rules): dimensions before, the indices' own, dimensions
    after."""

    def __init__(self, ctx: Lowering, x: Value, indices):
        indices = list(indices) + [None] * (len(x.shape) - len(indices))
        given = [d for d, index in enumerate(indices) if index is not None]
        if not given:
            raise Unsupported("index without an index")
        for d in given:
            check_index(indices[d])
        self.index_shape = broadcast(*[indices[d].shape for d in given])
        adjacent = given == list(range(given[0], given[-1] + 1))
        before = given[0] if adjacent else 0
        kept = [d for d in range(len(indices)) if indices[d] is None]
        num_index = len(self.index_shape)
        position = {d: i if i < before else i + num_index for i, d in enumerate(kept)}
        self.rank = len(kept) + num_index
        trailing = len(kept) - before
        self.shape = (
            tuple(x.shape[d] for d in kept[:before]) + self.index_shape + tuple(x.shape[d] for d in kept[before:])
        )
        self.map = [~given.index(d) if d in given else position[d] for d in range(len(indices))]
        self.indices = [ctx.reshape_rank(indices[d], self.rank, trailing) for d in given]


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def lower_index(ctx: Lowering, node, x, indices):
    plan = _Indexing(ctx, x, indices)
    return _load(ctx, x, plan.indices, plan.map, ctx.like(ctx.out(node)))


def put(ctx: Lowering, node, x: Value, indices, values: Value) -> Value:
    """x[indices] = values."""
    if any(index is not None and index.dtype == torch.bool for index in indices):
        return _masked_put(ctx, node, x, indices, values)
    plan = _Indexing(ctx, x, indices)
    return _store(ctx, x, ctx.expand(values, plan.shape), plan.indices, plan.map, ctx.like(ctx.out(node)))


def _masked_put(ctx: Lowering, node, x: Value, indices, values: Value) -> Value:
    """x[mask] = values, a choice where all chosen places get the same: then no size depends on the mask."""
    (first, mask), *others = [(d, index) for d, index in enumerate(indices) if index is not None]
    trailing = len(x.shape) - first - len(mask.shape)
    per_place = values.shape[0] if len(values.shape) > trailing else 1
    if others or len(values.shape) > trailing + 1 or per_place != 1:
        raise Unsupported("index_put of a mask with a value for each place (native: the same for all, torch.where)")
    if len(values.shape) > trailing:
        values = ctx.view(values, values.shape[1:], values.strides[1:])
    chosen = ctx.expand(values, x.shape[len(x.shape) - trailing :])
    mask = ctx.reshape_rank(mask, len(x.shape), trailing)
    operands = [mask, ctx.to_compute(chosen, x.dtype), ctx.to_compute(x, x.dtype)]
    return ctx.pointwise("where", operands, **ctx.like(ctx.out(node)))


@rule(aten.slice_scatter.default)
def lower_slice_scatter(ctx: Lowering, node, x, src, dim=0, start=None, end=None, step=1):
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    dim = canonical_dim(dim, rank)
    size = x.shape[dim]
    start = 0 if start is None else start
    if not all(isinstance(s, int) for s in (size, start, step)):
        if start == 0 and step == 1 and (end is None or end == MOST):  # all of it
            return ctx.pointwise("cast", [ctx.expand(src, like["shape"])], **like)
        raise Unsupported("slice_scatter into a part of a dynamic size (native: known sizes)")
    start = min(max(start + size if start < 0 else start, 0), size)
    fill = _constant_of(node.args[0], x.dtype)
    if fill is not None and step == 1 and isinstance(src.shape[dim], int):
        pads = [0] * (2 * rank)
        pads[2 * dim], pads[2 * dim + 1] = start, size - start - src.shape[dim]
        return ctx.graph.add_node("pad", [ctx.cast(src, x.dtype)], **like, ints=pads, imm=fill)
    line = ctx.iota(src.shape[dim], start, step)
    index = ctx.reshape_rank(line, rank, rank - 1 - dim)
    return _store(ctx, x, src, [index], [-1 if d == dim else d for d in range(rank)], like)


def _constant_of(node, dtype: torch.dtype) -> float | None:
    """The value of a constant tensor node, if a float holds it."""
    target = getattr(node, "target", None)
    if target in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default):
        return 0.0
    if target not in (aten.full.default, aten.full_like.default, aten.new_full.default):
        return None
    value = node.args[-1]
    if not isinstance(value, (bool, int, float)):
        return None
    number = stored(value, dtype)
    return float(number) if isinstance(number, float) or int(float(number)) == number else None


@rule(aten.select_scatter.default)
def lower_select_scatter(ctx: Lowering, node, x, src, dim, index):
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    dim = canonical_dim(dim, rank)
    if not isinstance(index, int):
        raise Unsupported("select_scatter at an index that is no constant")
    where = ctx.reshape_rank(ctx.scalar(index, torch.int64), rank)
    return _store(ctx, x, ctx.unsqueeze(src, dim), [where], [-1 if d == dim else d for d in range(rank)], like)


def _sides(offset):
    """How far a diagonal lies above and below the main one."""
    if isinstance(offset, int):
        return max(offset, 0), max(-offset, 0)
    if offset.is_nonnegative:
        return offset, 0
    if offset.is_nonpositive:
        return 0, -offset
    raise Unsupported(f"diagonal_scatter at offset {offset} (native: one whose sign is known)")


@rule(aten.diagonal_scatter.default)
def lower_diagonal_scatter(ctx: Lowering, node, x, src, offset=0, dim1=0, dim2=1):
    """src has the diagonal last; the two dimensions become one of its index and one of size 1."""
    above, below = _sides(offset)
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    dim1, dim2 = canonical_dim(dim1, rank), canonical_dim(dim2, rank)
    first, last = min(dim1, dim2), max(dim1, dim2)
    line_shape, line_strides = list(src.shape[:-1]), list(src.strides[:-1])
    line_shape.insert(first, src.shape[-1])
    line_strides.insert(first, src.strides[-1])
    line = ctx.unsqueeze(ctx.view(src, tuple(line_shape), tuple(line_strides)), last)
    starts = {dim1: below, dim2: above}
    places = [ctx.reshape_rank(ctx.iota(src.shape[-1], starts[d]), rank, rank - 1 - first) for d in (first, last)]
    mapping = list(range(rank))
    mapping[first], mapping[last] = -1, -2
    return _store(ctx, x, line, places, mapping, like)


def _one_per_row(x: Value, index: Value, dim: int) -> bool:
    return index.shape[dim] == 1 and all(a == b for d, (a, b) in enumerate(zip(x.shape, index.shape)) if d != dim)


def _scatter(ctx: Lowering, node, x: Value, dim: int, index: Value, value) -> Value:
    """With one index per row a scatter is a choice: where(position == index, value, x). Else elements that share a
    place would race."""
    out = ctx.out(node)
    like = ctx.like(out)
    rank = len(x.shape)
    if rank == 0 or len(index.shape) != rank:
        raise Unsupported("scatter into a scalar")
    dim = canonical_dim(dim, rank)
    if not _one_per_row(x, index, dim):
        raise Unsupported("scatter of several indices per row, which may be equal (native: one per row)")
    line = ctx.reshape_rank(ctx.iota(x.shape[dim]), rank, rank - 1 - dim)
    index = from_zero(ctx, index, x.shape[dim])
    hit = ctx.pointwise("eq", [line, ctx.to_compute(index, torch.int64)], torch.bool)
    return ctx.pointwise("where", [hit, ctx.fitting_operand(value, out.dtype), ctx.to_compute(x, out.dtype)], **like)


@rule(aten.scatter.value)
def lower_scatter_value(ctx: Lowering, node, x, dim, index, value):
    return _scatter(ctx, node, x, dim, index, value)


@rule(aten.scatter.src)
def lower_scatter_src(ctx: Lowering, node, x, dim, index, src):
    if src.shape != index.shape:
        raise Unsupported("scatter from a larger source")
    return _scatter(ctx, node, x, dim, index, src)


@rule(aten.cat.default)
def lower_cat(ctx: Lowering, node, tensors, dim=0):
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    parts = [ctx.cast(t, like["dtype"]) for t in tensors if t.shape != (0,)]
    if any(len(t.shape) != rank for t in parts):
        raise Unsupported("cat of ranks that differ")
    if len(parts) == 1:
        return ctx.pointwise("cast", parts, **like)
    return _cat(ctx, parts, like, canonical_dim(dim, rank))


_MOST_PARTS = 16  # of one cat: an op has operands for that many and a little more


def _cat(ctx: Lowering, parts: list[Value], like: dict, dim: int) -> Value:
    """Many parts are joined in pieces, which the planner puts into memory where one op cannot read them all."""
    while len(parts) > _MOST_PARTS:
        pieces = [parts[i : i + _MOST_PARTS] for i in range(0, len(parts), _MOST_PARTS)]
        parts = [_cat(ctx, piece, _joined(piece, like, dim), dim) for piece in pieces]
    return parts[0] if len(parts) == 1 else ctx.graph.add_node("cat", parts, **like, dim=dim)


def _joined(parts: list[Value], like: dict, dim: int) -> dict:
    shape = list(like["shape"])
    shape[dim] = sum(part.shape[dim] for part in parts)
    return {"dtype": like["dtype"], "shape": tuple(shape)}


@rule(aten.constant_pad_nd.default)
def lower_pad(ctx: Lowering, node, x, pad, value=0):
    """Negative pads crop: a view."""
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    if not all(isinstance(p, int) for p in pad):
        raise Unsupported("pad by an amount that is no constant")
    ints, shape, shift = [0] * (2 * rank), list(x.shape), 0
    for i in range(len(pad) // 2):
        d, low, high = rank - 1 - i, pad[2 * i], pad[2 * i + 1]
        shape[d] = shape[d] + min(low, 0) + min(high, 0)
        shift = shift - min(low, 0) * x.strides[d]
        ints[2 * d], ints[2 * d + 1] = max(low, 0), max(high, 0)
    if any(isinstance(s, int) and s <= 0 for s in shape):
        raise Unsupported("pad that crops everything")
    if tuple(shape) != x.shape:
        x = ctx.view(x, shape, x.strides, shift)
    fill = fitting(value, x.dtype)
    if x.dtype == torch.uint8 and value < 0:
        raise Unsupported(f"pad of uint8 with {value}")
    if isinstance(fill, int) and float(fill) != fill:
        raise Unsupported(f"pad with {fill}")
    return ctx.graph.add_node("pad", [x], **like, ints=ints, imm=float(stored(fill, x.dtype)))


@rule(aten.repeat.default)
def lower_repeat(ctx: Lowering, node, x, repeats):
    """Tiling through a view [r0, s0, r1, s1, ...] that is then copied."""
    out = ctx.out(node)
    lead = len(repeats) - len(x.shape)
    shape, strides = [], []
    for d, times in enumerate(repeats):
        size = x.shape[d - lead] if d >= lead else 1
        stride = x.strides[d - lead] if d >= lead else 0
        shape += [times, size]
        strides += [0, stride]
    tiled = ctx.pointwise("cast", [ctx.view(x, shape, strides)], x.dtype, tuple(shape))
    final = meta_shape(out)
    return ctx.view(tiled, final, [size_expr(s) for s in out.stride()])


@rule(aten.flip.default, torch.ops.prims.rev.default)
def lower_flip(ctx: Lowering, node, x, dims):
    like = ctx.like(ctx.out(node))
    rank = len(like["shape"])
    dims = sorted({canonical_dim(d, max(rank, 1)) for d in dims})
    if rank == 0 or not dims:
        return ctx.pointwise("cast", [x], **like)
    indices = []
    for d in dims:
        if not isinstance(x.shape[d], int):
            raise Unsupported("flip of a dynamic size (native: known sizes)")
        indices.append(ctx.reshape_rank(ctx.iota(x.shape[d], x.shape[d] - 1, -1), rank, rank - 1 - d))
    return _load(ctx, x, indices, [~dims.index(d) if d in dims else d for d in range(rank)], like)
