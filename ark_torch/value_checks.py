"""Ops whose values eager checks on the CPU, and whose decompositions would take any. The decomposition reads a number
by an index that is out of range where a value is: it is found as such indices are, and raised as eager does
(index_errors.py). On the GPU eager has an assertion of the device there, and ark computes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

aten = torch.ops.aten

SHARES = (aten.binary_cross_entropy.default, aten.bernoulli.default)  # their first argument lies in [0, 1]


def with_checks(decompositions: dict) -> dict:
    return decompositions | {op: _checked(decompositions[op]) for op in SHARES if op in decompositions}


@functools.cache  # the same function at every compilation
def _checked(decomposition: Callable) -> Callable:
    def call(x: torch.Tensor, *args, **kwargs):
        if x.device.type == "cpu" and x.is_floating_point():
            outside = torch.logical_not((x >= 0) & (x <= 1))  # NaN is
            # (`[]` would ask for the value of an index without dimensions)
            x = x + aten.index.Tensor(x.new_zeros(1), [outside.to(torch.int64)])
        return decomposition(x, *args, **kwargs)

    return call
