"""Graphs of many nodes and tensors: unrolled loops stay native, in several segments where one plan cannot hold them."""

from __future__ import annotations

import pickle
import time

import pytest
import torch

import ark_torch.compile
import ark_torch.segment
from ark_torch import steps
from ark_torch.backend import ark
from ark_torch.errors import NodeUnsupported, TooLong
from ark_torch.records import recording
from tests.support.reference_eval import ReferenceGraph


def compiled(body, inputs, **kwargs):
    """(results, records)."""
    with recording() as records:
        results = torch.compile(body, backend=ark, **kwargs)(*inputs)
    return results, records


def test_many_tensors():
    """4000 addresses, more than a launch carries."""
    inputs = [torch.randn(8) for _ in range(2000)]
    results, (record,) = compiled(lambda *xs: [x + 1 for x in xs], inputs)
    torch.testing.assert_close(results, [x + 1 for x in inputs])
    assert not record.fallbacks and len(record.segments) == 2


def test_gradients_of_many_softmaxes_of_one_tensor():
    """Reductions that share what they read: an op takes as many as it has operands for."""
    x = torch.randn(64, 128, requires_grad=True)

    def loss(x):
        return sum((torch.softmax(x[:, i : i + 50], -1) ** 2).sum() for i in range(50))

    start = time.perf_counter()
    with recording() as records:
        (actual,) = torch.autograd.grad(torch.compile(loss, backend=ark)(x), x)
    assert time.perf_counter() - start < 30  # they took minutes
    torch.testing.assert_close(actual, torch.autograd.grad(loss(x), x)[0], rtol=1e-4, atol=1e-4)
    assert not any(r.fallbacks or r.internal_errors for r in records)


@pytest.mark.parametrize("num_writes", [50, 700])
def test_many_writes_to_one_tensor(num_writes):
    def body(x):
        y = x.clone()
        for i in range(num_writes):
            y[:, i % 64] = y[:, (i + 5) % 64] * 0.5 + 1
        return y

    x = torch.randn(10, 64)
    actual, (record,) = compiled(body, [x])
    torch.testing.assert_close(actual, body(x))
    assert not record.fallbacks and not record.internal_errors


def test_what_is_too_long_arrives_in_numbers(monkeypatch):
    """The front end cuts by the error's type; its fields are what the planner counted."""
    seen = []

    def noted(step, error):
        seen.append(error)
        return steps.cuts_of(step, error)

    monkeypatch.setattr(ark_torch.compile, "cuts_of", noted)

    def body(x):
        y = x.clone()
        for i in range(700):
            y[:, i % 64] = y[:, (i + 5) % 64] * 0.5 + 1
        return y

    _, (record,) = compiled(body, [torch.randn(10, 64)])
    assert len(record.segments) > 1 and seen
    for error in seen:
        assert isinstance(error, TooLong) and error.unit in ("instructions", "operands")
        assert error.actual > error.limit > 0
        assert str(error).endswith(f"needs {error.actual} {error.unit}, at most {error.limit}")
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.actual, again.limit) == (str(error), error.actual, error.limit)
        assert again.node == error.node and bool(error.node) == (error.unit == "operands")


@pytest.mark.parametrize("most_tensors", range(6, 15))
def test_a_wide_segment_is_not_cut_within_a_tuple(monkeypatch, most_tensors):
    monkeypatch.setattr(steps, "MOST_TENSORS", most_tensors)

    def body(*xs):
        return [part for x in xs for part in torch.max(x, 1)]

    inputs = [torch.randn(4, 8) for _ in range(7)]
    actual, (record,) = compiled(body, inputs, options={"strict": True})
    torch.testing.assert_close(actual, body(*inputs), rtol=0, atol=0)
    assert len(record.segments) > 1


def test_a_long_segment_is_not_cut_within_a_tuple():
    def body(x):
        y, maxima = x.clone(), []
        for i in range(300):
            y[:, i % 64] = y[:, (i + 5) % 64] * 0.5 + 1
            maxima.append(y.max(1)[0])
        return y, maxima

    x = torch.randn(10, 64)
    actual, (record,) = compiled(body, [x], options={"strict": True})
    torch.testing.assert_close(actual, body(x))
    assert len(record.segments) > 1


class ShortOnly(ReferenceGraph):
    """A planner that takes few nodes, and no sigmoid."""

    def prepare(self, symbols) -> None:
        if len(self.graph["nodes"]) > 100:
            raise TooLong("a program needs 200 instructions, at most 100", "instructions", 200, 100)
        for node in self.graph["nodes"]:
            if node["attrs"].get("opcode") == "sigmoid":
                raise NodeUnsupported(f"node {node['name']}: no task kind", node["name"])


def test_a_node_declined_after_a_cut_elsewhere_goes_alone(monkeypatch):
    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: ShortOnly(*args))

    def body(x):
        for _ in range(100):
            x = x * 0.5 + 1
        return torch.sigmoid(x.cumprod(1) * 2) + x.sum()

    x = torch.randn(5, 6)
    actual, (record,) = compiled(body, [x])
    torch.testing.assert_close(actual, body(x))
    assert len(record.segments) > 3 and record.num_aten == 2, record.fallbacks
