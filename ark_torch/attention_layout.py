"""In which order the dimensions of attention's result lie in memory. Eager's backends differ in that, and what comes
after (`.view`) was written for the order that eager has."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx

from ark_torch._compat import ONE_BATCH_IS_FUSED

ROWS_FIRST = (0, 2, 1, 3)  # [B, H, S, D] stored as [B, S, H, D]
DENSE = (0, 1, 2, 3)


def same_size(a, b) -> bool:
    """Equality that adds no guard on symbolic sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    a, b = (x if isinstance(x, int) else x.node.expr for x in (a, b))
    return a == b


def empty_in_order(like: Tensor, sizes, order) -> Tensor:
    """A fresh tensor of these sizes whose dimensions lie in memory in this order, the last one innermost."""
    return like.new_empty([sizes[dim] for dim in order]).permute(_inverse(order))


def in_order(x: Tensor, order) -> Tensor:
    """Values of x in that layout."""
    return x.permute(*order).contiguous().permute(_inverse(order))


def dense_in_order(x: Tensor, order) -> Tensor:
    """The same as a copy in any case, whose strides are those of the sizes even where a size is 1."""
    return x.permute(*order).clone(memory_format=torch.contiguous_format).permute(_inverse(order))


def order_of(node: fx.Node) -> tuple[int, ...]:
    """The order of eager's result, a node of a Dynamo graph; rows first where nobody can tell."""
    return ROWS_FIRST if _is_copied_rows_first(node) else _order_of_strides(node.meta.get("example_value"))


def orders_of_gradients(q, k, v) -> tuple[tuple[int, ...], ...] | None:
    """The orders of eager's gradients, where its mathematics make them (CPU: the fused kernel takes heads of one width,
    contiguous within, of four dimensions, since torch 2.14 of three too); None: rows first."""
    vals = (q, k, v)
    if not all(isinstance(x, Tensor) and x.device.type == "cpu" for x in vals):
        return None
    if any(x.dim() not in (3, 4) or x.dim() != q.dim() for x in vals):
        return None
    fused = (q.dim() == 4 or ONE_BATCH_IS_FUSED) and same_size(q.shape[-1], v.shape[-1])
    if fused and all(same_size(x.stride(-1), 1) for x in vals):
        return None
    of_keys = (0, 1, 3, 2) if same_size(q.shape[-3], k.shape[-3]) else DENSE  # a transposed product; a sum over groups
    return DENSE, of_keys, DENSE


def _order_of_strides(val) -> tuple[int, ...]:
    if not isinstance(val, Tensor) or val.dim() not in (3, 4) or val.layout != torch.strided:
        return ROWS_FIRST
    shape, strides = list(val.shape), list(val.stride())
    if val.dim() == 3:  # those of one batch; an op would fail, as the vmap that the tensor is of has ended
        shape, strides = [1, *shape], [shape[0] * strides[0], *strides]
    orders = (ROWS_FIRST, *((*outer, 3) for outer in itertools.permutations(range(3))))
    for sizes in (shape, _padded(shape)):
        for order in orders:
            if all(map(same_size, strides, _dense_strides(sizes, order))):
                return order
    return ROWS_FIRST


def _padded(sizes) -> list:
    """As a GPU's kernels allocate heads whose width they round up, to return a part of each row: the order is theirs,
    the padding is left out, so that what is flattened is a view."""
    width = sizes[-1]
    return [*sizes[:-1], (width + 7) // 8 * 8 if isinstance(width, int) else width]


def _dense_strides(sizes, order) -> list:
    strides, step = [0] * len(order), 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return strides


def _is_copied_rows_first(node: fx.Node) -> bool:
    """Its one reader is a transpose to rows, and the one reader of that asks for a dense copy, which is a view then."""
    rows = _only_reader(node)
    if rows is None or not (_calls(rows, "transpose") and set(rows.args[1:]) in ({1, 2}, {-3, -2}, {1, -2}, {-3, 2})):
        return False
    return _calls(_only_reader(rows), "reshape", "contiguous", "flatten")


def _only_reader(node: fx.Node) -> fx.Node | None:
    """Of the values; who asks for sizes reads none."""
    readers = [user for user in node.users if user.op == "output" or isinstance(user.meta.get("example_value"), Tensor)]
    return readers[0] if len(readers) == 1 else None


def _calls(node: fx.Node | None, *names: str) -> bool:
    if node is None or node.op not in ("call_method", "call_function"):
        return False
    return (node.target if node.op == "call_method" else getattr(node.target, "__name__", "")) in names


def _inverse(order) -> list[int]:
    return [list(order).index(dim) for dim in range(len(order))]
