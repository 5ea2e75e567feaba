"""Waits for several values become one each."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from ark_torch.groups import split_waits

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")


def names(graph: fx.Graph) -> list[str]:
    return [node.target.__name__.partition(".")[0] for node in graph.nodes if node.op == "call_function"]


@pytest.mark.skipif(not hasattr(torch.ops._c10d_functional, "wait_tensors"), reason="torch before 2.15")
def test_waits_for_several_values_are_one_each():
    ops, graph = torch.ops._c10d_functional, fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(ops.all_reduce_coalesced.default, ([x, x], "sum", "0"))
    parts = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
    waited = graph.call_function(ops.wait_tensors.default, (parts,))
    results = [graph.call_function(operator.getitem, (waited, i)) for i in (1, 0)]
    graph.output(tuple(results))
    split_waits(graph)
    assert names(graph) == ["all_reduce_coalesced", "getitem", "getitem", "wait_tensor", "wait_tensor"]
    assert [wait.args[0] for wait in graph.output_node().args[0]] == parts[::-1]
