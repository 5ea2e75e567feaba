"""explain, report and compile_times."""

from __future__ import annotations

import torch
from torch import nn

from ark_torch.explain import compile_times, explain, report


def test_explain_counts_graphs_and_causes(executor):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            return self.lin(x).cumprod(1).tanh()

    model = Model()
    found = explain(model, torch.randn(4, 8))
    assert [g.kind for g in found.graphs] == ["forward", "backward"]
    assert found.fallbacks["aten.cumprod.default"] >= 1
    assert found.num_native > 0 and not found.internal_errors
    assert all(p.grad is None for p in model.parameters())
    text = str(found)
    assert "aten.cumprod.default" in text and "_forward" in text and "floor ms" in text


def test_report_and_times(executor):
    with torch.no_grad():
        explain(nn.Linear(4, 4), torch.randn(2, 4))
    assert len(report().graphs) == 1 and "through ATen: nothing" in str(report())
    times = compile_times()
    assert times["backend"] > times["ark"] > 0 and times["dynamo"] > 0
    torch.compiler.reset()
    assert report().graphs == []
