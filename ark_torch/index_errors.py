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
        aten.binary_cross_entropy.default: RuntimeError,
        aten.bernoulli.default: RuntimeError,
    }.items()
}
BY_INDEX = {aten.gather.default, aten.index_put.default, aten._unsafe_index_put.default, aten.index.Tensor}
# What eager says of values that a decomposition checks by an index (value_checks.py).
SAYS = {
    str(aten.binary_cross_entropy.default): "all elements of input should be between 0 and 1",
    str(aten.bernoulli.default): "Expected p_in >= 0 && p_in <= 1 to be true, but got false.",
}


def as_eager(node: fx.Node) -> Callable:
    """What calls the node's op, and raises for an index out of range as eager does."""
    original = str(node.meta.get("original_aten"))
    target, error_type, says = node.target, RAISES.get(original), SAYS.get(original)
    if error_type is None or target not in BY_INDEX:
        return target

    def call(*args, **kwargs):
        try:
            return target(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            if type(error) not in (IndexError, RuntimeError) or (isinstance(error, error_type) and says is None):
                raise
            raise error_type(*((says,) if says else error.args)) from None

    return call
