"""explain, report and compile_times."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn

from ark_torch.causes import _users_line
from ark_torch.errors import Unsupported
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
    assert "aten.cumprod.default" in text and "_forward" in text and "GFLOP" in text


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
    assert f"{found.bytes / 1e6:.2f}" in text


def test_times_are_predicted_for_the_device_that_runs(monkeypatch):
    """The planner's model is of a GPU: what the CPU runs has no time."""
    pytest.importorskip("ark_torch._C")
    for target, said in (("host", False), ("cuda", True)):
        found = explain(lambda x: x * 2 + 1, torch.randn(1000, 1000))
        stats = found.graphs[0].segments[0].executable.stats() | {"target": target}
        monkeypatch.setattr(sys.modules["ark_torch.explain"], "_stats", lambda record, stats=stats: [stats])
        assert ("floor ms" in str(found)) == ("predicted ms" in str(found)) == said
        assert (f"{found.predicted_ms:.4f}" in str(found)) == said and found.predicted_ms > 0
        monkeypatch.undo()


def test_explain_traces_anew(executor):
    compiled = torch.compile(lambda x: x * 2, backend="ark")
    compiled(torch.ones(3))
    for _ in range(2):
        assert len(explain(lambda x: x * 2, torch.ones(3)).graphs) == 1
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        return self.lstm(x)[0]  # torch 2.15 captures what lies around it, earlier ones give the function up


@pytest.mark.parametrize(
    "model, x, reason",
    [
        (nn.LSTM(4, 4), torch.randn(3, 2, 4), "LSTM"),
        (Recurrent(), torch.randn(3, 2, 4), "LSTM.*test_explain.py:"),
        (torch.nonzero, torch.randn(5), "aten.nonzero"),
    ],
)
def test_nothing_captured_is_said(executor, model, x, reason):
    with torch.no_grad():
        for found in (explain(model, x), report()):
            assert found.graphs == [] and sum(found.breaks.values()) == 1
            assert "nothing was captured" in str(found) and "through ATen: nothing" not in str(found)
            assert re.search(reason, str(found)) and len(str(found)) < 600
        with pytest.raises(Unsupported, match=f"(?s)strict: nothing was captured.*{reason}"):
            explain(model, x, ark_options={"strict": True})


@pytest.mark.parametrize("how", ["module", "function", "in place"])
def test_explain_keeps_the_options_of_a_compiled_model(executor, how):
    """`strict` of a model that is compiled already counts, and gives way to explain's own options."""
    strict = {"backend": "ark", "options": {"strict": True}}
    x = torch.randn(3, 2, 4)
    if how == "in place":
        model = nn.LSTM(4, 4)
        model.compile(**strict)
    else:
        model = torch.compile(nn.LSTM(4, 4) if how == "module" else torch.nonzero, **strict)
    with torch.no_grad():
        with pytest.raises(Unsupported, match="strict: nothing was captured"):
            explain(model, x)
        assert explain(model, x, ark_options={"strict": False}).graphs == []
    with pytest.raises(Exception, match="strict: .*aten.cumprod"):
        explain(torch.compile(lambda x: x.cumprod(0), **strict), x)
    assert explain(torch.compile(lambda x: x.nonzero(), backend="eager"), x).graphs == []


def test_calls_beyond_the_recompile_limit_are_not_called_native(executor):
    call = torch.compile(lambda x, n: x * n, backend="ark", dynamic=False, options={"strict": True})
    with torch._dynamo.config.patch(recompile_limit=2):
        for n in range(4):
            call(torch.ones(3 + n), n)
    text = str(report())
    assert "through ATen: nothing of these graphs" in text and "recompile_limit" in text


def test_gradient_of_a_convolution_says_what_is_native(executor):
    found = explain(nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5))
    assert any(re.match(r"aten.convolution_backward.default \(native: .*\)", cause) for cause in found.fallbacks)


def test_no_graph_no_break():
    torch.compiler.reset()
    assert str(report()).startswith("nothing was captured") and not report().breaks


def broken(x):
    y = torch.nonzero(x * 2)
    if y.sum() > 0:
        y = y + 1
    return y.cos()


def test_graph_breaks_have_reasons_and_places(executor):
    found = explain(broken, torch.ones(3))
    assert len(found.graphs) == 3 and not found.fallbacks
    first, second = sorted(found.breaks, key=lambda line: "branch on the value" in line)
    line = broken.__code__.co_firstlineno + 1
    assert "aten.nonzero" in first and first.endswith(f"test_explain.py:{line})")
    assert "branch on the value" in second and second.endswith(f"test_explain.py:{line + 1})")
    assert first in str(found) and first in str(report())
    assert explain(lambda x: x * 2, torch.ones(3)).breaks == {}


def given_up(x):
    """Dynamo does not go on after a break within `try`."""
    try:
        return torch.nonzero(x)
    finally:
        x.numel()


def test_breaks_for_one_reason_are_told_apart_by_their_places(executor):
    torch.compiler.reset()
    for function in (broken, given_up):
        torch.compile(function, backend="ark")(torch.ones(3))
    places = {line.rpartition(":")[2] for line in report().breaks if "aten.nonzero" in line}
    assert places == {f"{broken.__code__.co_firstlineno + 1})", f"{given_up.__code__.co_firstlineno + 3})"}


def test_strict_refuses_a_graph_break(executor):
    with pytest.raises(Exception, match="strict: a graph break.*aten.nonzero.*test_explain.py"):
        torch.compile(broken, backend="ark", options={"strict": True})(torch.ones(3))


def test_strict_refuses_a_break_with_no_graph_before_it(executor):
    def helper(x):
        return torch.nonzero(x)

    body = torch.compile(lambda x: helper(x) + 1, backend="ark", options={"strict": True})
    with pytest.raises(Exception, match="strict: a graph break.*aten.nonzero.*test_explain.py"):
        body(torch.ones(3))


def test_strict_takes_a_break_that_was_asked_for(executor):
    eager = torch.compiler.disable(torch.cos)

    def body(x):
        return eager(x * 2) + 1

    found = explain(body, torch.ones(3), ark_options={"strict": True})
    assert len(found.graphs) == 2 and "torch.compiler.disable" in str(found)


def test_strict_takes_a_whole_training_step(executor):
    """What its breaks leave to Python is no op of the model."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile(backend="ark", options={"strict": True})
    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    assert step(x) > step(x)
    assert {g.kind for g in report().graphs} == {"forward", "backward", "inference"} and report().breaks


def test_a_line_without_its_source_is_told_by_its_place():
    node = torch.fx.Graph().placeholder("x")
    node.stack_trace = (
        '  File "a.py", line 1, in f\n    g(x)\n  File "<stdin>", line 2, in g\n  File "<string>", line 3, in h\n'
    )
    assert _users_line(node) == " (at <string>:3)"
    node.stack_trace = '  File "<stdin>", line 2, in g\n  File "a.py", line 1, in f\n    g(x)\n'
    assert _users_line(node) == " (g(x), at a.py:1)"
