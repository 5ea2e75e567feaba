"""Lowering rules of elementwise arithmetic."""

from __future__ import annotations

import math

import torch

from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lower_index import from_zero
from ark_torch.lowering import Lowering, fitting, is_integer, rule, wrap_integer

aten, prims = torch.ops.aten, torch.ops.prims

# Ops whose result is a float for every input: the input is cast to the result's compute type first.
FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf erfc asin acos atan sinh cosh "
    "asinh acosh atanh lgamma"
)
# Ops that keep the type. On integers the rounding ones are copies.
SAME_UNARY = {"neg": "neg", "abs": "abs", "sign": "sign", "sgn": "sign", "relu": "relu"}
ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc"}


def _default(name: str):
    return getattr(aten, name).default


def _no_bool(val: torch.Tensor, what: str) -> None:
    if val.dtype == torch.bool:
        raise Unsupported(f"{what} of bool")


def _float_unary(opcode: str):
    def lower(ctx: Lowering, node, x: Value):
        out = ctx.out(node)
        return ctx.pointwise(opcode, [ctx.to_compute(x, out.dtype)], **ctx.like(out))

    return lower


for _name in FLOAT_UNARY.split():
    rule(_default(_name))(_float_unary(_name))


def _same_unary(opcode: str):
    def lower(ctx: Lowering, node, x: Value):
        out = ctx.out(node)
        _no_bool(out, opcode)
        return ctx.pointwise(opcode, [x], **ctx.like(out))

    return lower


for _name, _opcode in SAME_UNARY.items():
    rule(_default(_name))(_same_unary(_opcode))


def _rounding(opcode: str):
    def lower(ctx: Lowering, node, x: Value):
        out = ctx.out(node)
        return ctx.pointwise(opcode if out.dtype.is_floating_point else "cast", [x], **ctx.like(out))

    return lower


for _name, _opcode in ROUNDING.items():
    rule(_default(_name))(_rounding(_opcode))


@rule(aten.round.default)
def lower_round(ctx: Lowering, node, x):
    return _rounding("round")(ctx, node, x)


@rule(aten.log10.default)
def lower_log10(ctx: Lowering, node, x):
    out = ctx.out(node)
    log = ctx.pointwise("log", [ctx.to_compute(x, out.dtype)], compute_type(out.dtype))
    return ctx.pointwise("div", [log, ctx.scalar(math.log(10), log.dtype)], **ctx.like(out))


@rule(aten.isnan.default)
def lower_isnan(ctx: Lowering, node, x):
    out = ctx.out(node)
    return ctx.pointwise("is_nan", [x], **ctx.like(out)) if x.dtype.is_floating_point else ctx.full(0, **ctx.like(out))


@rule(aten.isinf.default)
def lower_isinf(ctx: Lowering, node, x):
    out = ctx.out(node)
    return ctx.pointwise("is_inf", [x], **ctx.like(out)) if x.dtype.is_floating_point else ctx.full(0, **ctx.like(out))


@rule(aten.bitwise_not.default)
def lower_bitwise_not(ctx: Lowering, node, x):
    return ctx.pointwise("logical_not" if x.dtype == torch.bool else "bit_not", [x], **ctx.like(ctx.out(node)))


@rule(aten.logical_not.default)
def lower_logical_not(ctx: Lowering, node, x):
    return ctx.pointwise("logical_not", [ctx.cast(x, torch.bool)], **ctx.like(ctx.out(node)))


# ---- arithmetic with two operands ----
def _binary(ctx: Lowering, node, opcode: str, a, b):
    out = ctx.out(node)
    return ctx.pointwise(opcode, [ctx.operand(a, out.dtype), ctx.operand(b, out.dtype)], **ctx.like(out))


def _scaled(ctx: Lowering, value, alpha, dtype: torch.dtype):
    if alpha == 1:
        return value
    alpha = fitting(alpha, dtype)
    if not isinstance(value, Value):
        return value * alpha
    return ctx.pointwise("mul", [ctx.operand(value, dtype), ctx.operand(alpha, dtype)], compute_type(dtype))


@rule(aten.add.Tensor, aten.add.Scalar)
def lower_add(ctx: Lowering, node, a, b, alpha=1):
    dtype = ctx.out(node).dtype
    if dtype == torch.bool:
        return _binary(ctx, node, "logical_or", a, b)
    return _binary(ctx, node, "add", a, _scaled(ctx, b, alpha, dtype))


@rule(aten.sub.Tensor, aten.sub.Scalar, prims.sub.default)
def lower_sub(ctx: Lowering, node, a, b, alpha=1):
    _no_bool(ctx.out(node), "sub")
    return _binary(ctx, node, "sub", a, _scaled(ctx, b, alpha, ctx.out(node).dtype))


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def lower_rsub(ctx: Lowering, node, a, b, alpha=1):
    _no_bool(ctx.out(node), "rsub")
    return _binary(ctx, node, "sub", b, _scaled(ctx, a, alpha, ctx.out(node).dtype))


@rule(aten.mul.Tensor, aten.mul.Scalar, prims.mul.default)
def lower_mul(ctx: Lowering, node, a, b):
    return _binary(ctx, node, "logical_and" if ctx.out(node).dtype == torch.bool else "mul", a, b)


def _divided(ctx: Lowering, node, opcode: str, a, b):
    """On the CPU eager raises for an integer divided by zero: the divisor goes through a check, as an index does."""
    out = ctx.out(node)
    if out.device.type == "cpu" and is_integer(out.dtype):
        if isinstance(b, int) and wrap_integer(b, out.dtype) == 0:
            raise Unsupported("division of integers by zero")
        if isinstance(b, (int, float)):
            return _binary(ctx, node, opcode, a, b)
        b = ctx.operand(b, out.dtype)  # as it divides: 256 is 0 as a uint8
        zero = ctx.pointwise("eq", [b, ctx.scalar(0, b.dtype)], torch.bool)
        checked = from_zero(ctx, ctx.cast(zero, torch.int64), 1)
        b = ctx.pointwise("add", [b, ctx.operand(checked, out.dtype)], compute_type(out.dtype))
    return _binary(ctx, node, opcode, a, b)


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def lower_div(ctx: Lowering, node, a, b):
    return _binary(ctx, node, "div", a, b)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def lower_div_mode(ctx: Lowering, node, a, b, rounding_mode=None):
    opcodes = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}
    return (_divided if rounding_mode else _binary)(ctx, node, opcodes[rounding_mode], a, b)


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def lower_floor_divide(ctx: Lowering, node, a, b):
    return _divided(ctx, node, "div_floor", a, b)


def _plain_binary(opcode: str, bool_opcode: str | None = None, binary=_binary):
    def lower(ctx: Lowering, node, a, b):
        if ctx.out(node).dtype == torch.bool:
            if bool_opcode is None:
                raise Unsupported(f"{opcode} of bool")
            return _binary(ctx, node, bool_opcode, a, b)
        return binary(ctx, node, opcode, a, b)

    return lower


rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(
    _plain_binary("remainder", binary=_divided)
)
rule(aten.fmod.Tensor, aten.fmod.Scalar)(_plain_binary("fmod", binary=_divided))
rule(aten.maximum.default, prims.maximum.default)(_plain_binary("maximum", "logical_or"))
rule(aten.minimum.default, prims.minimum.default)(_plain_binary("minimum", "logical_and"))
rule(aten.atan2.default)(_plain_binary("atan2"))
rule(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor)(
    _plain_binary("and", "logical_and")
)
rule(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor)(_plain_binary("or", "logical_or"))
rule(aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor)(
    _plain_binary("xor", "logical_xor")
)


def _shift(opcode: str):
    def lower(ctx: Lowering, node, a, b):
        bits = 8 * ctx.out(node).dtype.itemsize
        if isinstance(b, Value) or not 0 <= b < bits:
            raise Unsupported(f"{opcode} by a tensor")  # ATen defines shifts past the width; the ir's opcode does not
        return _binary(ctx, node, opcode, a, b)

    return lower


for _packet, _opcode in ((aten.bitwise_left_shift, "shl"), (aten.bitwise_right_shift, "shr")):
    rule(_packet.Tensor_Scalar, _packet.Tensor)(_shift(_opcode))
for _packet, _opcode in ((aten.__lshift__, "shl"), (aten.__rshift__, "shr")):
    rule(_packet.Scalar)(_shift(_opcode))


@rule(aten.fmax.default, aten.fmin.default)
def lower_fmax(ctx: Lowering, node, a, b):
    """The larger (smaller) operand, numbers before NaN."""
    out = ctx.out(node)
    opcode = "maximum" if node.target == aten.fmax.default else "minimum"
    if not out.dtype.is_floating_point:
        return _plain_binary(opcode)(ctx, node, a, b)
    dtype = compute_type(out.dtype)
    a, b = ctx.operand(a, dtype), ctx.operand(b, dtype)
    best = ctx.pointwise(opcode, [a, b], dtype)
    without_b = ctx.pointwise("where", [ctx.pointwise("is_nan", [b], torch.bool), a, best], dtype)
    return ctx.pointwise("where", [ctx.pointwise("is_nan", [a], torch.bool), b, without_b], **ctx.like(out))


@rule(aten.pow.Tensor_Scalar)
def lower_pow_scalar(ctx: Lowering, node, x, exponent):
    """The special exponents are those of ATen's kernels."""
    out = ctx.out(node)
    dtype = compute_type(out.dtype)
    if not out.dtype.is_floating_point:
        return _integer_pow(ctx, node, x, exponent)
    x = ctx.to_compute(x, dtype)
    like = ctx.like(out)
    if exponent in (0.5, -0.5, -1):
        return ctx.pointwise({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], [x], **like)
    if exponent in (2, 3, -2):
        square = ctx.pointwise("mul", [x, x], **(like if exponent == 2 else {"dtype": dtype}))
        if exponent == 2:
            return square
        return (
            ctx.pointwise("mul", [square, x], **like)
            if exponent == 3
            else ctx.pointwise("reciprocal", [square], **like)
        )
    if exponent == 1:
        return ctx.pointwise("cast", [x], **like)
    return ctx.pointwise("pow", [x, ctx.operand(exponent, dtype)], **like)


def _integer_pow(ctx: Lowering, node, x, exponent):
    out = ctx.out(node)
    _no_bool(out, "pow")
    if not isinstance(exponent, int) or not 1 <= exponent <= 4:
        raise Unsupported(f"integer pow with exponent {exponent} (native: 1 to 4)")
    x = result = ctx.to_compute(x, out.dtype)
    for _ in range(exponent - 1):
        result = ctx.pointwise("mul", [result, x], torch.int64)
    return ctx.pointwise("cast", [result], **ctx.like(out))


@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def lower_pow(ctx: Lowering, node, x, exponent):
    if not ctx.out(node).dtype.is_floating_point:
        raise Unsupported("integer pow with a tensor exponent (native: a constant of 1 to 4)")
    return _binary(ctx, node, "pow", x, exponent)


# From torch 2.15 on numbers that an integer type does not hold bound nothing, or are an error; before, they wrap.
_BOUNDS_SATURATE = torch.zeros(1, dtype=torch.uint8, device="cpu").clamp(min=-1).item() == 0


def _bound(ctx: Lowering, bound, dtype: torch.dtype, lowest: bool):
    """The bound as an operand; None where no value of the type is beyond it."""
    number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
    if number and is_integer(dtype) and _BOUNDS_SATURATE:
        info = torch.iinfo(dtype)
        if (bound > info.max) if lowest else (bound < info.min):
            raise Unsupported(f"clamp to {bound}, which {str(dtype).removeprefix('torch.')} does not hold")
        if not info.min <= bound <= info.max:
            return None
    return None if bound is None else ctx.fitting_operand(bound, dtype)


@rule(aten.clamp.default, aten.clamp.Tensor)
def lower_clamp(ctx: Lowering, node, x, low=None, high=None):
    out = ctx.out(node)
    _no_bool(out, "clamp")
    x = ctx.to_compute(x, out.dtype)
    low, high = _bound(ctx, low, out.dtype, True), _bound(ctx, high, out.dtype, False)
    if low is None and high is None:
        return ctx.pointwise("cast", [x], **ctx.like(out))
    if low is not None:
        if high is None:
            return ctx.pointwise("maximum", [x, low], **ctx.like(out))
        x = ctx.pointwise("maximum", [x, low], compute_type(out.dtype))
    return ctx.pointwise("minimum", [x, high], **ctx.like(out))


@rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def lower_clamp_min(ctx: Lowering, node, x, low):
    return lower_clamp(ctx, node, x, low=low)


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def lower_clamp_max(ctx: Lowering, node, x, high):
    return lower_clamp(ctx, node, x, high=high)


@rule(prims.fma.default)
def lower_fma(ctx: Lowering, node, a, b, c):
    out = ctx.out(node)
    return ctx.pointwise("fma", [ctx.operand(v, out.dtype) for v in (a, b, c)], **ctx.like(out))


@rule(aten.addcmul.default)
def lower_addcmul(ctx: Lowering, node, x, a, b, value=1):
    out = ctx.out(node)
    dtype = compute_type(out.dtype)
    _no_bool(out, "addcmul")
    product = ctx.pointwise("mul", [_scaled(ctx, ctx.operand(a, dtype), value, dtype), ctx.operand(b, dtype)], dtype)
    return ctx.pointwise("add", [ctx.operand(x, dtype), product], **ctx.like(out))


@rule(aten.addcdiv.default)
def lower_addcdiv(ctx: Lowering, node, x, a, b, value=1):
    out = ctx.out(node)
    dtype = compute_type(out.dtype)
    quotient = ctx.pointwise("div", [_scaled(ctx, ctx.operand(a, dtype), value, dtype), ctx.operand(b, dtype)], dtype)
    return ctx.pointwise("add", [ctx.operand(x, dtype), quotient], **ctx.like(out))
