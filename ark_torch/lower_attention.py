"""Lowering rules of ark::attention and its backward."""

from __future__ import annotations

import math

import torch

from ark_torch import attention  # noqa: F401  (defines torch.ops.ark)
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, meta_shape, meta_strides, rule
from ark_torch.sizes import floordiv

ark = torch.ops.ark


def _causal_mask(ctx: Lowering, q: Value, k: Value) -> Value:
    """Key <= query, as [1, 1, S, T]."""
    queries, keys = ctx.iota(q.shape[2]), ctx.iota(k.shape[2])
    row = ctx.view(keys, (1, keys.shape[0]), (1, 1))
    return ctx.reshape_rank(ctx.pointwise("le", [row, ctx.unsqueeze(queries, 1)], torch.bool), 4)


def _mask_inputs(ctx: Lowering, q: Value, k: Value, mask: Value | None, causal: bool) -> tuple[list[Value], bool]:
    """The mask as an input list, and whether the causal flag remains: with unequal lengths torch's causal (the upper
    left corner) is given as a mask."""
    if mask is not None:
        if causal:
            raise Unsupported("attention with a mask and causal (native: one of them)")
        if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
            raise Unsupported(f"attention mask of {mask.dtype} (native: bool and floating types)")
        return [ctx.reshape_rank(mask, 4)], False
    if causal and q.shape[2] != k.shape[2]:
        return [_causal_mask(ctx, q, k)], False
    return [], causal


def _outputs(ctx: Lowering, vals) -> list[Value]:
    return [ctx.graph.add_value(val.dtype, meta_shape(val), meta_strides(val)) for val in vals]


@rule(ark.attention.default)
def lower_attention(ctx: Lowering, node, q, k, v, mask, scale, causal, order=None):
    if q.dtype == torch.float64:
        raise Unsupported("attention in float64 (native: float32, bfloat16, float16)")
    masks, causal = _mask_inputs(ctx, q, k, mask, causal)
    outputs = _outputs(ctx, node.meta["val"])
    attrs = {"scale": scale, "causal": causal, "has_mask": bool(masks)}
    ctx.graph.emit("attention", [q, k, v, *masks], outputs, attrs)
    return tuple(outputs)


def _is_readable(x: Value) -> bool:
    """Whether rows of 16-bit elements lie so that tensor maps read them. Strides that are expressions of sizes are
    taken for such; the planner looks again."""

    def fits(stride, size=2):
        return not isinstance(stride, int) or size == 1 or (stride > 0 and stride % 8 == 0)

    aligned = not isinstance(x.offset, int) or x.offset % 8 == 0
    return aligned and x.strides[3] == 1 and all(fits(*pair) for pair in zip(x.strides[:3], x.shape[:3]))


def _has_backward_task(dout: Value, q: Value, k: Value, v: Value) -> bool:
    """The operands that the tensor-core tasks of the backward take; the others are composed of matrix products and
    pointwise ops."""
    size = q.shape[3]
    takes = isinstance(size, int) and 0 < size <= 128 and size % 8 == 0
    half = q.dtype in (torch.bfloat16, torch.float16)
    return takes and half and v.shape[3] == size and all(_is_readable(x) for x in (dout, q, k, v))


@rule(ark.attention_backward.default)
def lower_attention_backward(ctx: Lowering, node, dout, q, k, v, out, logsumexp, mask, scale, causal):
    if not _has_backward_task(dout, q, k, v):
        return _Backward(ctx, q, k, v, scale).run(node, dout, out, logsumexp, mask, causal)
    masks, causal = _mask_inputs(ctx, q, k, mask, causal)
    outputs = _outputs(ctx, node.meta["val"])
    attrs = {"scale": scale, "causal": causal, "has_mask": bool(masks)}
    ctx.graph.emit("attention_backward", [dout, q, k, v, out, logsumexp, *masks], outputs, attrs)
    return tuple(outputs)


class _Backward:
    """dv = P^T dout, dS = P * (dout v^T - rowsum(dout * out)) * scale, dq = dS k, dk = dS^T q, with P = exp(scores -
    logsumexp)."""

    def __init__(self, ctx: Lowering, q: Value, k: Value, v: Value, scale: float):
        self.ctx, self.q, self.k, self.v, self.scale = ctx, q, k, v, scale
        self.wide = compute_type(q.dtype)
        self.batch, self.heads, self.queries, _ = q.shape
        self.groups, self.keys = k.shape[1], k.shape[2]
        self.square = (self.batch, self.heads, self.queries, self.keys)

    def _packed(self, x: Value) -> Value:
        """[B, H, R, C] as [B H, R, C]."""
        ctx, (batch, heads, rows, columns) = self.ctx, x.shape
        if batch != 1 and x.strides[0] != x.strides[1] * heads:
            x = ctx.pointwise("cast", [x], x.dtype, x.shape)
        return ctx.view(x, (batch * heads, rows, columns), x.strides[1:])

    def _unpacked(self, x: Value) -> Value:
        """The inverse, of a contiguous value."""
        rows, columns = x.shape[1:]
        return self.ctx.view(
            x, (self.batch, self.heads, rows, columns), (self.heads * rows * columns, rows * columns, columns, 1)
        )

    def _transposed(self, x: Value) -> Value:
        return self.ctx.view(
            x, (*x.shape[:-2], x.shape[-1], x.shape[-2]), (*x.strides[:-2], x.strides[-1], x.strides[-2])
        )

    def _repeated(self, x: Value) -> Value:
        """Each key-value head once per query head of its group."""
        if self.groups == self.heads:
            return x
        ctx, (batch, groups, rows, columns) = self.ctx, x.shape
        times = floordiv(self.heads, groups)
        strides = (x.strides[0], x.strides[1], 0, x.strides[2], x.strides[3])
        copy = ctx.pointwise("cast", [ctx.view(x, (batch, groups, times, rows, columns), strides)], x.dtype)
        return ctx.view(
            copy, (batch, self.heads, rows, columns), (self.heads * rows * columns, rows * columns, columns, 1)
        )

    def _product(self, a: Value, b: Value) -> Value:
        """[B, H, R, K] x [B, H, K, C] in the compute type."""
        a, b = self._packed(a), self._packed(b)
        return self._unpacked(
            self.ctx.graph.add_node("matmul", [a, b], self.wide, (a.shape[0], a.shape[1], b.shape[2]))
        )

    def _pointwise(self, opcode: str, *inputs: Value) -> Value:
        return self.ctx.pointwise(opcode, list(inputs), self.wide)

    def _probabilities(self, keys: Value, logsumexp: Value, mask: Value | None, causal: bool) -> Value:
        ctx = self.ctx
        scores = self._pointwise(
            "mul", self._product(self.q, self._transposed(keys)), ctx.scalar(self.scale, self.wide)
        )
        if causal:
            mask = _causal_mask(ctx, self.q, self.k)
        minus_infinity = ctx.scalar(-math.inf, self.wide)
        if mask is not None and mask.dtype == torch.bool:
            scores = ctx.pointwise("where", [mask, scores, minus_infinity], self.wide, self.square)
        elif mask is not None:
            scores = self._pointwise("add", scores, ctx.to_compute(mask, self.wide))
        logsumexp = ctx.to_compute(logsumexp, self.wide)
        dead = ctx.pointwise("eq", [logsumexp, minus_infinity], torch.bool)
        logsumexp = self._pointwise("where", dead, ctx.scalar(0.0, self.wide), logsumexp)
        return self._pointwise("exp", self._pointwise("sub", scores, ctx.unsqueeze(logsumexp, 3)))

    def _of_groups(self, x: Value, val: torch.Tensor) -> Value:
        """Sums the query heads of each group, in the layout of `val`."""
        ctx = self.ctx
        if self.groups != self.heads:
            rows, columns = x.shape[2:]
            times = floordiv(self.heads, self.groups)
            apart = ctx.view(
                x, (self.batch, self.groups, times, rows, columns), (x.strides[0], x.strides[1] * times, *x.strides[1:])
            )
            shape = (self.batch, self.groups, rows, columns)
            x = ctx.graph.add_node("reduce", [apart], self.wide, shape, reduce="sum", dims=[2], keepdim=False)
        return ctx.pointwise("cast", [x], **ctx.like(val))

    def run(
        self, node, dout: Value, out: Value, logsumexp: Value, mask: Value | None, causal: bool
    ) -> tuple[Value, ...]:
        ctx, dtype = self.ctx, self.q.dtype
        if mask is not None:
            mask = ctx.reshape_rank(mask, 4)
        keys, values = self._repeated(self.k), self._repeated(self.v)
        probabilities = self._probabilities(keys, logsumexp, mask, causal)
        product = self._pointwise("mul", ctx.to_compute(dout, self.wide), ctx.to_compute(out, self.wide))
        delta = ctx.graph.add_node(
            "reduce", [product], self.wide, (*product.shape[:3], 1), reduce="sum", dims=[3], keepdim=True
        )
        slopes = self._pointwise("sub", self._product(dout, self._transposed(values)), delta)
        slopes = self._pointwise(
            "mul", self._pointwise("mul", probabilities, slopes), ctx.scalar(self.scale, self.wide)
        )
        slopes, probabilities = ctx.cast(slopes, dtype), ctx.cast(probabilities, dtype)
        dq = ctx.pointwise("cast", [self._product(slopes, keys)], **ctx.like(node.meta["val"][0]))
        dk = self._of_groups(self._product(self._transposed(slopes), self.q), node.meta["val"][1])
        dv = self._of_groups(self._product(self._transposed(probabilities), dout), node.meta["val"][2])
        return dq, dk, dv
