"""explain, report and compile_times."""

from __future__ import annotations

import pytest
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


def test_explain_says_what_the_plans_do():
    """A product of known size: kinds, bytes, operations; the floor is what these take, the prediction is no less."""
    pytest.importorskip("ark_torch._C")
    m, k, n = 1024, 512, 768  # enough tiles that k is not cut in parts
    with torch.no_grad():
        found = explain(lambda x, w: torch.relu(x @ w), torch.randn(m, k), torch.randn(k, n))
    assert sum(found.tasks.values()) == sum(s.executable.stats()["num_ops"] for g in found.graphs for s in g.segments)
    assert sum(number for kind, number in found.tasks.items() if kind.startswith("matmul")) == 1
    least = 4 * (m * k + k * n + m * n)
    assert least <= found.bytes <= 2 * least
    assert 2 * m * k * n <= found.flops <= 2 * m * k * n + 10 * m * n
    assert 0 < found.floor_ms <= found.predicted_ms < 1
    assert found.floor_ms >= 0.9 * 1e3 * least / 4.7e12
    text = str(found)
    assert f"{found.bytes / 1e6:.2f}" in text and f"{found.predicted_ms:.4f}" in text


def test_explain_traces_anew(executor):
    compiled = torch.compile(lambda x: x * 2, backend="ark")
    compiled(torch.ones(3))
    for _ in range(2):
        assert len(explain(lambda x: x * 2, torch.ones(3)).graphs) == 1
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
