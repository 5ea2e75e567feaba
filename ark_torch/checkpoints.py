"""Graphs of their own in Dynamo's graph: regions under `torch.utils.checkpoint`, which AOTAutograd writes out in it,
and the bodies of loops."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from ark_torch._compat import WHILE_LOOPS

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def with_checkpointed(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graph, its loops' bodies, and the regions in it whose activations are computed again. Not those that are
    under a policy of the user's: it names the ops that it keeps, ATen's attention among them."""
    yield gm
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in WHILE_LOOPS:
            yield from with_checkpointed(operator.attrgetter(node.args[1].target)(gm))
        if node.op != "call_function" or node.target is not _CHECKPOINT:
            continue
        region = operator.attrgetter(node.args[0].target)(gm)
        if region.meta.get("_checkpoint_context_fn") is None:
            yield from with_checkpointed(region)


__all__ = ["with_checkpointed"]
