"""The option `fallback_random`: random numbers are drawn by ATen, in eager's order, so that they are eager's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ark_torch.ordering import is_random

CAUSE = "fallback_random"  # of nodes that the user leaves to ATen


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout as eager computes it on the CPU; traced, it would become one op that scales in another order."""
    if training and p == 1 and not inplace:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    if not training or input.device.type != "cpu" or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    noise = _drawn_as_it_lies(input, 1 - p).div(1 - p)
    return input.mul_(noise) if inplace else input * noise


def _drawn_as_it_lies(input: Tensor, p: float) -> Tensor:
    """torch.empty_like(input).bernoulli_(p): the first number is that of the first element in memory. Without writes,
    what AOTAutograd makes of it would draw in the order of the dimensions."""
    like = torch.empty_like(input)
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    inverse = [order.index(dim) for dim in range(like.dim())]
    return like.new_empty([like.shape[dim] for dim in order]).bernoulli_(p).permute(inverse)


def replace_dropout(gm: fx.GraphModule) -> None:
    """In a Dynamo graph."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is F.dropout:
            node.target = dropout
    gm.recompile()


def leave_random(nodes: list[fx.Node]) -> dict[fx.Node, str]:
    """The causes of the nodes that draw."""
    return {node: CAUSE for node in nodes if is_random(node)}
