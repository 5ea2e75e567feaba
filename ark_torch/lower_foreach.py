"""Lowering rules of the foreach ops: the elementwise ops over lists of tensors that optimizers are made of."""

from __future__ import annotations

import torch

from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.lowering import Lowering, rule

aten = torch.ops.aten

_UNARY = {
    "neg": "neg",
    "abs": "abs",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "exp": "exp",
    "log": "log",
    "reciprocal": "reciprocal",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "erf": "erf",
    "sin": "sin",
    "cos": "cos",
    "sign": "sign",
}
_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "pow": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "clamp_min": "maximum",
    "clamp_max": "minimum",
}


def _packet(name: str):
    return getattr(aten, f"_foreach_{name}")


def _outputs(node) -> list[torch.Tensor]:
    outputs = list(node.meta["val"])
    for out in outputs:
        if not out.dtype.is_floating_point:
            raise Unsupported(f"{node.target} in {out.dtype}")
    return outputs


def _each(argument, count: int) -> list:
    """A list as it is; a number or a single tensor once per element."""
    items = list(argument) if isinstance(argument, (list, tuple)) else [argument] * count
    if len(items) != count:
        raise Unsupported(f"foreach over {count} tensors with {len(items)} operands")
    return items


def _unary(opcode: str):
    def lower(ctx: Lowering, node, tensors):
        outputs = _outputs(node)
        return tuple(
            ctx.pointwise(opcode, [ctx.to_compute(x, out.dtype)], **ctx.like(out)) for x, out in zip(tensors, outputs)
        )

    return lower


for _name, _opcode in _UNARY.items():
    rule(_packet(_name).default)(_unary(_opcode))


def _scaled(ctx: Lowering, value, alpha, dtype: torch.dtype):
    if alpha == 1:
        return value
    return ctx.pointwise("mul", [ctx.operand(value, dtype), ctx.operand(alpha, dtype)], compute_type(dtype))


def _binary(opcode: str):
    def lower(ctx: Lowering, node, first, second, alpha=1):
        outputs = _outputs(node)
        pairs = zip(_each(first, len(outputs)), _each(second, len(outputs)), outputs)
        return tuple(
            ctx.pointwise(
                opcode,
                [ctx.operand(a, out.dtype), ctx.operand(_scaled(ctx, b, alpha, out.dtype), out.dtype)],
                **ctx.like(out),
            )
            for a, b, out in pairs
        )

    return lower


for _name, _opcode in _BINARY.items():
    rule(_packet(_name))(_binary(_opcode))


def _product_added(opcode: str):
    def lower(ctx: Lowering, node, tensors, first, second, scalars=1):
        outputs = _outputs(node)
        count = len(outputs)
        if isinstance(scalars, Value):
            raise Unsupported(f"{node.target} with a tensor of scalars")
        results = []
        for x, a, b, scale, out in zip(tensors, first, second, _each(scalars, count), outputs):
            wide = compute_type(out.dtype)
            product = ctx.pointwise(
                opcode, [_scaled(ctx, ctx.operand(a, wide), scale, wide), ctx.operand(b, wide)], wide
            )
            results.append(ctx.pointwise("add", [ctx.operand(x, wide), product], **ctx.like(out)))
        return tuple(results)

    return lower


rule(aten._foreach_addcmul.Scalar, aten._foreach_addcmul.ScalarList)(_product_added("mul"))
rule(aten._foreach_addcdiv.Scalar, aten._foreach_addcdiv.ScalarList)(_product_added("div"))


@rule(aten._foreach_lerp.Scalar, aten._foreach_lerp.List)
def lower_lerp(ctx: Lowering, node, tensors, ends, weight):
    """x + w (e - x) below one half, e - (e - x) (1 - w) above, as ATen has it, so that both ends are exact."""
    outputs, results = _outputs(node), []
    for x, end, w, out in zip(tensors, ends, _each(weight, len(outputs)), outputs):
        wide = compute_type(out.dtype)
        x, end = ctx.operand(x, wide), ctx.operand(end, wide)
        delta = ctx.pointwise("sub", [end, x], wide)
        if isinstance(w, Value):
            results.append(_tensor_lerp(ctx, x, end, delta, ctx.operand(w, wide), out))
        elif abs(w) < 0.5:
            step = ctx.pointwise("mul", [delta, ctx.scalar(float(w), wide)], wide)
            results.append(ctx.pointwise("add", [x, step], **ctx.like(out)))
        else:
            step = ctx.pointwise("mul", [delta, ctx.scalar(1.0 - w, wide)], wide)
            results.append(ctx.pointwise("sub", [end, step], **ctx.like(out)))
    return tuple(results)


def _tensor_lerp(ctx: Lowering, x: Value, end: Value, delta: Value, weight: Value, out: torch.Tensor) -> Value:
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    rest = ctx.pointwise("sub", [ctx.scalar(1.0, wide), weight], wide)
    low = ctx.pointwise("add", [x, ctx.pointwise("mul", [delta, weight], wide)], wide)
    high = ctx.pointwise("sub", [end, ctx.pointwise("mul", [delta, rest], wide)], wide)
    near = ctx.pointwise("lt", [ctx.pointwise("abs", [weight], wide), ctx.scalar(0.5, wide)], torch.bool)
    return ctx.pointwise("where", [near, low, high], **ctx.like(out))


@rule(aten._foreach_copy.default)
def lower_copy(ctx: Lowering, node, tensors, sources, non_blocking=False):
    return tuple(ctx.pointwise("cast", [s], **ctx.like(out)) for s, out in zip(sources, node.meta["val"]))


@rule(aten._foreach_norm.Scalar)
def lower_norm(ctx: Lowering, node, tensors, order=2, dtype=None):
    if order != 2:
        raise Unsupported(f"foreach norm of order {order}")
    results = []
    for x, out in zip(tensors, _outputs(node)):
        wide = compute_type(out.dtype)
        x = ctx.to_compute(x, wide)
        square = ctx.pointwise("mul", [x, x], wide)
        dims = list(range(len(x.shape)))
        if dims:
            square = ctx.graph.add_node("reduce", [square], wide, (), reduce="sum", dims=dims, keepdim=False)
        results.append(ctx.pointwise("sqrt", [square], **ctx.like(out)))
    return tuple(results)
