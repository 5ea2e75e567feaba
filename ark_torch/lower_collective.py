"""Functional collectives of a process group `ark` as exchanges between ranks (docs/ARCHITECTURE.md): what each rank has
sent arrives in a value of its own, the rest is ordinary nodes.

Reductions combine in the order of ranks, in the compute type, and round once: the bits of the group's own calls. A
large all-reduce goes in two steps (`_in_two_steps`), with the same bits.
"""

from __future__ import annotations

import math

import torch

from ark_torch._compat import sympy
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value, compute_type
from ark_torch.groups import COLLECTIVES, Group, group_of
from ark_torch.lowering import Lowering, is_integer, meta_shape, rule
from ark_torch.sizes import contiguous_strides

# From this size and this many ranks on an all-reduce has two steps: in one, boxes and traffic are the value times the
# number of ranks. Two take as long from here on (`benchmarks/plan_collectives.py --steps`, processes on one host); of
# fewer ranks or of less they take longer.
TWO_STEP_BYTES = 2 * 1024 * 1024
TWO_STEP_RANKS = 4

_OPCODES = {"sum": "add", "avg": "add", "product": "mul", "min": "minimum", "max": "maximum"}
# What is missing: places of parts that a launch takes as arguments. A plan for each set of sizes would be made, and
# given memory by all ranks, at nearly every call.
_SYMBOLS = "native: splits that are numbers, which a plan is made for"
_BITWISE = {"band": "and", "bor": "or", "bxor": "xor"}


def collective(name: str):
    """Registers the rule of torch.ops._c10d_functional.<name>."""

    def register(function):
        if not torch.distributed.is_available():
            return function
        packet = getattr(torch.ops._c10d_functional, name)
        COLLECTIVES.update(getattr(packet, overload) for overload in packet.overloads())
        return rule(packet)(function)

    return register


def exchange(ctx: Lowering, sent: list[Value], group: Group, **attrs) -> list[Value]:
    """What each rank has sent to this one; `sent`: one value, or one for each rank. Contiguous."""
    first = sent[0]
    if group.size == 1:
        return [ctx.pointwise("cast", [first], first.dtype)]
    boxes = [ctx.graph.add_value(first.dtype, first.shape, contiguous_strides(first.shape)) for _ in range(group.size)]
    attrs = {"splits": "met", **attrs} if ctx.meets else attrs
    ctx.graph.emit("exchange", sent, boxes, {"group": group.name, **attrs})
    return boxes


def parts(ctx: Lowering, value: Value, size: int, part_shape: tuple) -> list[Value]:
    """Equal parts along dimension 0, one for each rank."""
    step = part_shape[0] * value.strides[0]
    return [ctx.view(value, part_shape, value.strides, r * step) for r in range(size)]


def reduced(ctx: Lowering, values: list[Value], op: str, like: dict) -> Value:
    """`values` combined in their order; `like`: dtype, shape and strides of the result."""
    dtype = like["dtype"]
    if dtype == torch.bool:
        return _reduced_bool(ctx, values, op, like)
    if op in _BITWISE and is_integer(dtype):
        opcode = _BITWISE[op]
    elif op in _OPCODES:
        opcode = _OPCODES[op]
    else:
        raise Unsupported(f"collective with reduction {op} of {str(dtype).removeprefix('torch.')}")
    wide = compute_type(dtype)
    total = ctx.to_compute(values[0], dtype)
    for value in values[1:]:
        total = _combined(ctx, opcode, total, ctx.to_compute(value, dtype), wide)
    if op == "avg":
        total = _averaged(ctx, total, len(values), dtype)
    return ctx.pointwise("cast", [total], **like)


def _combined(ctx: Lowering, opcode: str, a: Value, b: Value, dtype: torch.dtype) -> Value:
    both = ctx.pointwise(opcode, [a, b], dtype)
    if opcode not in ("minimum", "maximum") or not dtype.is_floating_point:
        return both
    without_b = ctx.pointwise("where", [ctx.pointwise("is_nan", [b], torch.bool), a, both], dtype)
    return ctx.pointwise("where", [ctx.pointwise("is_nan", [a], torch.bool), b, without_b], dtype)


def _averaged(ctx: Lowering, total: Value, size: int, dtype: torch.dtype) -> Value:
    """Integers wrap before they are divided, and truncate."""
    wide = compute_type(dtype)
    if dtype.is_floating_point:
        return ctx.pointwise("div", [total, ctx.scalar(float(size), wide)], wide)
    wrapped = ctx.cast(ctx.cast(total, dtype), wide)
    return ctx.pointwise("div_trunc", [wrapped, ctx.scalar(size, wide)], wide)


def _reduced_bool(ctx: Lowering, values: list[Value], op: str, like: dict) -> Value:
    opcodes = dict.fromkeys(("sum", "max", "bor"), "or") | dict.fromkeys(("product", "min", "band"), "and")
    opcodes["bxor"] = "xor"
    if op not in opcodes:
        raise Unsupported(f"collective with reduction {op} of bool")
    total = values[0]
    for value in values[1:]:
        total = ctx.pointwise(opcodes[op], [total, value], torch.bool)
    return ctx.pointwise("cast", [total], **like)


def _all_reduce(ctx: Lowering, x: Value, op: str, group: Group, out: torch.Tensor) -> Value:
    if _is_large(x, group):
        return _in_two_steps(ctx, x, op, group, out)
    return reduced(ctx, exchange(ctx, [x], group), op, ctx.like(out))


def _is_large(x: Value, group: Group) -> bool:
    """Of sizes that differ from call to call nobody knows it at compilation."""
    if group.size < TWO_STEP_RANKS or not all(isinstance(s, int) for s in x.shape):
        return False
    elements = math.prod(x.shape)
    return elements * x.dtype.itemsize >= TWO_STEP_BYTES and elements >= group.size**2


def _in_two_steps(ctx: Lowering, x: Value, op: str, group: Group, out: torch.Tensor) -> Value:
    """Each rank combines a part of the value and sends the result to all: equal bits, for one rank computes them.

    Parts are of equal size, the last one ends where the value does: some elements of it may be in the one before too.
    """
    elements = math.prod(x.shape)
    size = -(-elements // group.size)
    begins = [min(r * size, elements - size) for r in range(group.size)]
    if x.strides != contiguous_strides(x.shape):
        x = ctx.pointwise("cast", [x], x.dtype, x.shape, contiguous_strides(x.shape))
    sent = [ctx.view(x, (size,), (1,), begin) for begin in begins]
    part = {"dtype": out.dtype, "shape": (size,), "strides": (1,)}
    results = exchange(ctx, [reduced(ctx, exchange(ctx, sent, group), op, part)], group)
    joined = _joined(ctx, results, elements)
    return ctx.finish_as(ctx.view(joined, x.shape, contiguous_strides(x.shape)), out)


def _joined(ctx: Lowering, results: list[Value], elements: int) -> Value:
    """Parts of equal size, of which the last one may begin in the one before. Rows are joined faster than elements."""
    (size,), ranks = results[0].shape, len(results)
    if elements == ranks * size:
        rows = [ctx.view(x, (1, size), (size, 1)) for x in results]
        return ctx.graph.add_node("cat", rows, results[0].dtype, (ranks, size), dim=0)
    known = elements - (ranks - 1) * size
    last = ctx.view(results[-1], (known,), (1,), size - known)
    return ctx.graph.add_node("cat", [*results[:-1], last], last.dtype, (elements,), dim=0)


def _all_gather(ctx: Lowering, x: Value, size: int, group: Group, out: torch.Tensor) -> Value:
    _check_size(size, group)
    if not x.shape:
        x = ctx.view(x, (1,), (1,))
    boxes = exchange(ctx, [x], group)
    return ctx.graph.add_node("cat", boxes, out.dtype, **_place(ctx, out), dim=0)


def _reduce_scatter(ctx: Lowering, x: Value, op: str, size: int, group: Group, out: torch.Tensor) -> Value:
    _check_size(size, group)
    rows = x.shape[0] if x.shape else 1
    if isinstance(rows, int) and rows % size:
        raise Unsupported(f"reduce_scatter_tensor of {rows} rows among {size} ranks")  # ATen says what is wrong
    return reduced(ctx, exchange(ctx, parts(ctx, x, size, meta_shape(out)), group), op, ctx.like(out))


def _place(ctx: Lowering, out: torch.Tensor) -> dict:
    like = ctx.like(out)
    return {"shape": like["shape"], "strides": like["strides"]}


def _check_size(size: int, group: Group) -> None:
    if size != group.size:
        raise Unsupported(f"collective for {size} ranks of a group of {group.size}")


@collective("all_reduce")
def lower_all_reduce(ctx: Lowering, node, x, op, group_name):
    return _all_reduce(ctx, x, op, group_of(node, ctx.device), ctx.out(node))


@collective("all_reduce_coalesced")
def lower_all_reduce_coalesced(ctx: Lowering, node, xs, op, group_name):
    group = group_of(node, ctx.device)
    return tuple(_all_reduce(ctx, x, op, group, out) for x, out in zip(xs, node.meta["val"]))


@collective("all_gather_into_tensor")
def lower_all_gather(ctx: Lowering, node, x, size, group_name):
    return _all_gather(ctx, x, size, group_of(node, ctx.device), ctx.out(node))


@collective("all_gather_into_tensor_coalesced")
def lower_all_gather_coalesced(ctx: Lowering, node, xs, size, group_name):
    group = group_of(node, ctx.device)
    return tuple(_all_gather(ctx, x, size, group, out) for x, out in zip(xs, node.meta["val"]))


@collective("reduce_scatter_tensor")
def lower_reduce_scatter(ctx: Lowering, node, x, op, size, group_name):
    return _reduce_scatter(ctx, x, op, size, group_of(node, ctx.device), ctx.out(node))


@collective("reduce_scatter_tensor_coalesced")
def lower_reduce_scatter_coalesced(ctx: Lowering, node, xs, op, size, group_name):
    group = group_of(node, ctx.device)
    return tuple(_reduce_scatter(ctx, x, op, size, group, out) for x, out in zip(xs, node.meta["val"]))


@collective("all_to_all_single")
def lower_all_to_all(ctx: Lowering, node, x, output_splits, input_splits, group_name):
    """Splits that differ also differ from rank to rank (`_uneven`)."""
    group, out = group_of(node, ctx.device), ctx.out(node)
    splits = [*output_splits, *input_splits]
    if len(output_splits) != group.size or len(input_splits) != group.size:
        raise Unsupported(f"all_to_all_single of {len(input_splits)} and {len(output_splits)} splits")
    even = all(sympy.simplify(s - splits[0]) == 0 for s in splits)
    if not even or splits[0] == 0 or (ctx.uneven and all(isinstance(s, int) for s in splits)):
        return _uneven(ctx, x, input_splits, output_splits, group, out)
    boxes = exchange(ctx, parts(ctx, x, group.size, (splits[0], *x.shape[1:])), group, splits="even")
    return ctx.graph.add_node("cat", boxes, out.dtype, **_place(ctx, out), dim=0)


def _uneven(ctx: Lowering, x: Value, sent: list, received: list, group: Group, out: torch.Tensor) -> Value:
    """A part for each rank, none where a split is 0. Places follow from what ranks say before the first launch."""
    if group.size == 1:
        return ctx.pointwise("cast", [x], **ctx.like(out))
    if not all(isinstance(s, int) for s in (*sent, *received, *x.shape)):
        raise Unsupported(f"all_to_all_single with uneven splits of sizes that are symbols ({_SYMBOLS})")
    if sum(sent) != x.shape[0] or sum(received) != out.shape[0] or min(*sent, *received) < 0:
        raise Unsupported(f"all_to_all_single of {x.shape[0]} rows in splits {sent}")  # ATen says what is wrong
    row = tuple(x.shape[1:])
    graph, posted, to, begin = ctx.graph, [], [], 0
    for rank, rows in enumerate(sent):
        if rows * math.prod(row):
            part = ctx.view(x, (rows, *row), x.strides, begin * x.strides[0])
            posted.append(graph.add_node("post", [part], x.dtype, part.shape))
            to.append(rank)
        begin += rows
    come = [rank for rank, rows in enumerate(received) if rows * math.prod(row)]
    parts = [graph.add_value(out.dtype, (received[r], *row), contiguous_strides((received[r], *row))) for r in come]
    marks = [graph.add_value(torch.int32, (1,), (1,)) for _ in range(group.size)]
    attrs = {"group": group.name, "splits": "uneven", "ints": to, "map": come}
    mark = ctx.full(1, torch.int32, (1,))
    graph.emit("exchange", [mark, *posted], [*marks, *parts], attrs)
    if not parts:
        return ctx.finish_as(ctx.full(0, out.dtype, tuple(out.shape)), out)
    if len(parts) == 1:
        return ctx.pointwise("cast", parts, **ctx.like(out))
    return graph.add_node("cat", parts, out.dtype, **_place(ctx, out), dim=0)


@collective("broadcast")
def lower_broadcast(ctx: Lowering, node, x, source, group_name):
    """All send, all read the box of `source`."""
    group, out = group_of(node, ctx.device), ctx.out(node)
    if not 0 <= source < group.size:
        raise Unsupported(f"broadcast from rank {source} of {group.size}")
    return ctx.pointwise("cast", [exchange(ctx, [x], group)[source]], **ctx.like(out))


if torch.distributed.is_available():

    @rule(torch.ops._c10d_functional.wait_tensor)
    def lower_wait(ctx: Lowering, node, x):
        """A plan ends when its exchanges have: the value itself. Of other collectives probing leaves it to ATen."""
        return x
