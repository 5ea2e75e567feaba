"""Lowering rules of constants, counting and random numbers."""

from __future__ import annotations

import math

import torch

from ark_torch._compat import sympy
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, fitting, meta_shape, rule

aten, prims = torch.ops.aten, torch.ops.prims


# ---- constants ----
_FULL = [aten.full.default, aten.full_like.default, aten.new_full.default, aten.scalar_tensor.default, aten.fill.Scalar]


@rule(*_FULL)
def lower_full(ctx: Lowering, node, *args, **kwargs):
    number = args[0] if node.target == aten.scalar_tensor.default else args[-1]
    number = kwargs.get("fill_value", number)
    out = ctx.out(node)
    if isinstance(number, sympy.Expr):
        return ctx.pointwise("cast", [ctx.scalar(number, compute_type(out.dtype))], **ctx.like(out))
    if not isinstance(number, (bool, int, float)):
        raise Unsupported(f"full of {type(number).__name__}")
    rounds = node.target == aten.scalar_tensor.default and out.dtype in (torch.float16, torch.bfloat16)  # to infinity
    return ctx.full(number if rounds else fitting(number, out.dtype), **ctx.like(out))


@rule(aten.fill.Tensor)
def lower_fill_tensor(ctx: Lowering, node, x, value):
    return ctx.pointwise("cast", [value], **ctx.like(ctx.out(node)))


def _constant(number):
    def lower(ctx: Lowering, node, *args, **kwargs):
        return ctx.full(number, **ctx.like(ctx.out(node)))

    return lower


rule(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)(_constant(0))
rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(_constant(1))


@rule(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default)
@rule(aten.new_empty_strided.default, prims.empty_strided.default)
def lower_empty(ctx: Lowering, node, *args, **kwargs):
    """Uninitialised memory may hold anything: zeros cost one store. Deterministic algorithms ask for what eager fills
    in. A change of the mode compiles again."""
    out = ctx.out(node)
    filled = torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory
    return ctx.full(_unlikely(out.dtype) if filled else 0, **ctx.like(out))


def _unlikely(dtype: torch.dtype):
    """What eager fills memory with: NaN, the largest integer, true."""
    if dtype == torch.bool:
        return True
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).max


@rule(prims.iota.default)
def lower_iota(ctx: Lowering, node, length, *, start, step, dtype, device, requires_grad):
    return _iota(ctx, node, start, step)


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def lower_arange(ctx: Lowering, node, *args, **kwargs):
    start = 0 if node.target == aten.arange.default else args[0]
    step = args[2] if len(args) > 2 else 1
    return _iota(ctx, node, start, step)


def _iota(ctx: Lowering, node, start, step):
    out = ctx.out(node)
    if not isinstance(step, int) or isinstance(start, float):
        raise Unsupported(f"iota from {start} by {step}")
    line = ctx.iota(meta_shape(out)[0], start, step)
    return line if out.dtype == torch.int64 else ctx.pointwise("cast", [line], **ctx.like(out))


# ---- random numbers ----
def _uniform(ctx: Lowering, shape, strides=None) -> Value:
    """Uniform [0, 1) in f32: Philox keyed by the seed of this call, a stream per op."""
    stream = ctx.scalar(ctx.num_rands, torch.int64)
    ctx.num_rands += 1
    return ctx.graph.add_node("rand", [ctx.seed(), stream], torch.float32, shape, strides)


def _narrow_uniform(ctx: Lowering, value: Value, like: dict) -> Value:
    """Rounded down to the type's digits: rounding to nearest would give 1."""
    digits = {torch.bfloat16: 8, torch.float16: 11}[like["dtype"]]
    scaled = ctx.pointwise("mul", [value, ctx.scalar(2.0**digits, torch.float32)], torch.float32)
    whole = ctx.pointwise("floor", [scaled], torch.float32)
    return ctx.pointwise("mul", [whole, ctx.scalar(2.0**-digits, torch.float32)], **like)


@rule(aten.rand.default, aten.rand_like.default)
def lower_rand(ctx: Lowering, node, *args, **kwargs):
    if kwargs.get("generator") is not None:
        raise Unsupported("random numbers of a generator that the call names (native: the default one)")
    out = ctx.out(node)
    like = ctx.like(out)
    if out.dtype == torch.float32:
        return _uniform(ctx, like["shape"], like["strides"])
    if out.dtype in (torch.bfloat16, torch.float16):
        return _narrow_uniform(ctx, _uniform(ctx, like["shape"]), like)
    raise Unsupported(f"rand in {out.dtype} (native: float32, bfloat16, float16)")


@rule(aten.randn.default, aten.randn_like.default)
def lower_randn(ctx: Lowering, node, *args, **kwargs):
    """Box-Muller: sqrt(-2 ln(1 - u)) cos(2 pi v)."""
    if kwargs.get("generator") is not None:
        raise Unsupported("random numbers of a generator that the call names (native: the default one)")
    out = ctx.out(node)
    if out.dtype == torch.float64 or not out.dtype.is_floating_point:
        raise Unsupported(f"randn in {out.dtype} (native: float32, bfloat16, float16)")
    shape, f32 = meta_shape(out), torch.float32
    u, v = _uniform(ctx, shape), _uniform(ctx, shape)
    log = ctx.pointwise("log", [ctx.pointwise("sub", [ctx.scalar(1.0, f32), u], f32)], f32)
    radius = ctx.pointwise("sqrt", [ctx.pointwise("mul", [log, ctx.scalar(-2.0, f32)], f32)], f32)
    angle = ctx.pointwise("cos", [ctx.pointwise("mul", [v, ctx.scalar(2 * math.pi, f32)], f32)], f32)
    return ctx.pointwise("mul", [radius, angle], **ctx.like(out))


@rule(aten.bernoulli.p)
def lower_bernoulli(ctx: Lowering, node, x, p=0.5, generator=None):
    if generator is not None:
        raise Unsupported("random numbers of a generator that the call names (native: the default one)")
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise Unsupported(f"bernoulli with a probability of {p}")
    out = ctx.out(node)
    below = [_uniform(ctx, meta_shape(out)), ctx.scalar(float(p), torch.float32)]
    return ctx.pointwise("cast", [ctx.pointwise("lt", below, torch.bool)], **ctx.like(out))


@rule(aten.native_dropout.default)
def lower_native_dropout(ctx: Lowering, node, x, p, train):
    out, mask = node.meta["val"]
    if not train:
        keep = ctx.full(1, **ctx.like(mask))
        return ctx.pointwise("cast", [x], **ctx.like(out)), keep
    u = _uniform(ctx, meta_shape(out))
    keep = ctx.pointwise("ge", [u, ctx.scalar(float(p), torch.float32)], **ctx.like(mask))
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    scaled = ctx.pointwise(
        "mul", [ctx.to_compute(x, out.dtype), ctx.scalar(scale, compute_type(out.dtype))], compute_type(out.dtype)
    )
    zero = ctx.scalar(0.0, compute_type(out.dtype))
    return ctx.pointwise("where", [keep, scaled, zero], **ctx.like(out)), keep
