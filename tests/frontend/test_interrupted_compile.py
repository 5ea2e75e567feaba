"""An exception in the middle of a compilation: it reaches the caller, and what is compiled afterwards is right."""

from __future__ import annotations

import pytest
import torch

import ark_torch.compile
import ark_torch.segment
from ark_torch.backend import ark
from ark_torch.records import REGISTRY, recording

PLACES = [
    (ark_torch.segment, "make_executable"),
    (ark_torch.compile, "compile_segment"),
    (ark_torch.compile, "lower_segment"),
    (ark_torch.compile, "probe_nodes"),
]
# What is raised there, and what the caller sees: Dynamo wraps what is an Exception.
RAISED = [(KeyboardInterrupt, KeyboardInterrupt), (MemoryError, Exception), (SystemExit, SystemExit)]


def body(x):
    return torch.sort(x * 2)[0].sin() + x.sum(0)


def interrupt(monkeypatch, place, error, after=0) -> list:
    """Raises at the call after `after` of them; the calls so far."""
    module, name = place
    original, calls = getattr(module, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if len(calls) > after:
            raise error("interrupted")
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, interrupted)
    return calls


def check(call, function, x):
    with recording() as records:
        torch.testing.assert_close(call(x), function(x), rtol=1e-5, atol=1e-5)
    assert not any(r.internal_errors for r in records)
    return records


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("error, seen", RAISED, ids=lambda e: e.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p[1])
def test_forward(executor, monkeypatch, place, error, seen, dynamic):
    x, call = torch.randn(5, 9), torch.compile(body, backend=ark, dynamic=dynamic)
    with monkeypatch.context() as patch:
        calls = interrupt(patch, place, error)
        with pytest.raises(seen, match="interrupted"):
            call(x)
        assert len(calls) == 1, "nobody tries again what was interrupted"
    (record,) = check(call, body, x)  # the same function, compiled anew
    assert record.segments and "aten.sort.default" in record.fallbacks
    (record,) = check(torch.compile(lambda x: x * 3 + 1, backend=ark, fullgraph=True), lambda x: x * 3 + 1, x)
    assert record.segments and not record.fallbacks


@pytest.mark.parametrize("error, seen", RAISED, ids=lambda e: e.__name__)
def test_second_segment(executor, monkeypatch, error, seen):
    """One segment is compiled by then."""
    x, call = torch.randn(5, 9), torch.compile(body, backend=ark)
    with monkeypatch.context() as patch:
        calls = interrupt(patch, PLACES[0], error, after=1)
        with pytest.raises(seen, match="interrupted"):
            call(x)
        assert len(calls) == 2
    (record,) = check(call, body, x)
    assert len(record.segments) == 2


@pytest.mark.parametrize("error, seen", RAISED, ids=lambda e: e.__name__)
def test_backward(executor, monkeypatch, error, seen):
    """Interrupted in the forward pass, then in the backward pass."""
    x, call = torch.randn(5, 9, requires_grad=True), torch.compile(lambda x: (x.sin() * x).sum(0), backend=ark)
    for after in (0, 1):
        torch._dynamo.reset()
        with monkeypatch.context() as patch:
            interrupt(patch, PLACES[0], error, after)
            with pytest.raises(seen, match="interrupted"):
                call(x).sum().backward()
        assert x.grad is None
    call(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
    assert not REGISTRY.runtime_fallbacks
