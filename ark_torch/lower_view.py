"""Lowering rules of views: the result's sizes, strides and offset are those of the node's meta tensor."""

from __future__ import annotations

import torch

from ark_torch._compat import size_expr
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value
from ark_torch.lowering import Lowering, meta_shape, meta_strides, rule

aten, prims = torch.ops.aten, torch.ops.prims

VIEW_OPS = [
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.alias.default,
    aten.detach.default,
    aten.as_strided.default,
    aten.diagonal.default,
    aten.unfold.default,
    aten.lift_fresh.default,
    prims.split_dim.default,
    prims.broadcast_in_dim.default,
    prims.transpose.default,
]
MULTI_VIEW_OPS = [aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int]


def _storage_offset(val: torch.Tensor):
    return size_expr(val.storage_offset())


def _view_of(ctx: Lowering, source_val: torch.Tensor, x: Value, val: torch.Tensor) -> Value:
    """Offsets are relative: the segment's own storage of `x` may begin elsewhere than the traced one."""
    if val.dtype != x.dtype:
        raise Unsupported(f"view of {x.dtype} as {val.dtype}")
    if meta_strides(source_val) != x.strides:
        raise Unsupported(f"strides {x.strides} of the source, {meta_strides(source_val)} traced")
    shift = _storage_offset(val) - _storage_offset(source_val)
    offset = x.offset + shift
    if isinstance(offset, int) and offset < 0:
        raise Unsupported("view that begins before its base")
    return ctx.graph.add_view(x, meta_shape(val), meta_strides(val), offset)


@rule(*VIEW_OPS)
def lower_view(ctx: Lowering, node, x, *args, **kwargs):
    return _view_of(ctx, node.args[0].meta["val"], x, ctx.out(node))


@rule(*MULTI_VIEW_OPS)
def lower_multi_view(ctx: Lowering, node, x, *args, **kwargs):
    return tuple(_view_of(ctx, node.args[0].meta["val"], x, val) for val in node.meta["val"])
