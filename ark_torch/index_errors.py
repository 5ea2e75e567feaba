"""Ops whose index out of range is another type of exception than that of the op that their decomposition reads or
writes by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

aten = torch.ops.aten

# The names, as the meta of a node holds a copy of the op.
RAISES = {
    str(overload): error
    for overload, error in {
        aten.nll_loss_forward.default: IndexError,
        aten.nll_loss2d_forward.default: IndexError,
        aten.max_unpool2d.default: RuntimeError,
        aten.max_unpool3d.default: RuntimeError,
    }.items()
}
BY_INDEX = {aten.gather.default, aten.index_put.default, aten._unsafe_index_put.default}


def as_eager(node: fx.Node) -> Callable:
    """What calls the node's op, and raises for an index out of range as eager does."""
    target, error_type = node.target, RAISES.get(str(node.meta.get("original_aten")))
    if error_type is None or target not in BY_INDEX:
        return target

    def call(*args, **kwargs):
        try:
            return target(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            if type(error) not in (IndexError, RuntimeError) or isinstance(error, error_type):
                raise
            raise error_type(*error.args) from None

    return call
