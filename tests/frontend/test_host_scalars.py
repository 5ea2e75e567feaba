"""Floats that Dynamo made CPU tensors do not cut a graph of another device (there need not be one: fake tensors)."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import ark_torch.host_scalars
import ark_torch.segment
from ark_torch.compile import CompileOptions, _GraphCompiler
from ark_torch.host_scalars import on_device
from ark_torch.records import GraphRecord


class Prepared:
    """Stands in for CompiledGraph, which would want the device."""

    def __init__(self, *_):
        pass

    def prepare(self, symbols) -> None:
        pass


def compiled(body, *scalars, monkeypatch, strict=True):
    """The compiler of a graph on a GPU: an activation, and what `scalars` are on the CPU."""
    monkeypatch.setattr(ark_torch.segment, "make_executable", Prepared)
    with FakeTensorMode() as mode:
        x = torch.empty(4, 64, dtype=torch.bfloat16, device="cuda")
        gm = make_fx(body)(x, *[mode.from_tensor(s) for s in scalars])
    record = GraphRecord("graph", "inference")
    compiler = _GraphCompiler(gm, CompileOptions(strict=strict), record)
    compiler.build()
    return compiler, record, sum(n.target is on_device for n in compiler.nodes)


def epsilon(value: float = 1e-5) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_layers_of_norms_are_one_segment(monkeypatch):
    def body(x, *epsilons):
        for eps in epsilons:
            wide = x.float()
            eps = torch.ops.prims.convert_element_type.default(eps, torch.float64)
            x = (wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + eps)).to(x.dtype) + x
        return x

    compiler, record, moved = compiled(body, *[epsilon() for _ in range(6)], monkeypatch=monkeypatch)
    assert len(record.segments) == 1 and not record.fallbacks
    assert moved == 6
    assert all(n.meta["val"].device.type == "cuda" for n in compiler.nodes)


def test_numbers_made_of_numbers_follow(monkeypatch):
    def body(x, a, b):
        scale = a * 2 + b
        return x * scale, torch.where(x > 0, x, a), scale

    _, record, moved = compiled(body, epsilon(2.0), epsilon(3.0), monkeypatch=monkeypatch, strict=False)
    # what the caller gets back stays where it was: that arithmetic runs through ATen, on the host, as ever
    assert moved == 2 and len(record.segments) == 1
    assert list(record.fallbacks) == ["tensor on cpu in a graph on cuda:0"] and record.fallbacks.total() == 2


def test_a_number_moved_to_the_device_is_no_step_of_its_own(monkeypatch):
    """A cache that is made in the graph takes its position there; what has dimensions is copied by ATen."""

    def body(x, position):
        there = torch.ops.prims.device_put.default(position, x.device)
        return x + there, there + 1

    compiler, record, moved = compiled(body, torch.tensor(3), monkeypatch=monkeypatch)
    assert len(record.segments) == 1 and not record.fallbacks and moved == 1
    _, record, moved = compiled(body, torch.arange(64), monkeypatch=monkeypatch, strict=False)
    assert moved == 0 and list(record.fallbacks) == ["tensor on cpu in a graph on cuda:0"]


def test_a_number_is_copied_once():
    where = torch.device("cpu")
    first = on_device(epsilon(0.25), where)
    assert first.dtype == torch.float64 and first.item() == 0.25
    assert on_device(epsilon(0.25), where) is first
    assert on_device(torch.tensor(0.25), where).dtype == torch.float32
    assert torch.signbit(on_device(epsilon(-0.0), where)) and not torch.signbit(on_device(epsilon(0.0), where))
    assert on_device(epsilon(float("nan")), where).isnan()
    assert on_device(torch.tensor(7), where).item() == 7


def test_a_captured_graph_keeps_numbers_of_its_own(monkeypatch):
    """What is kept for later calls may be dropped while the graph lives."""
    device, kept = torch.device("cuda", 0), object()
    monkeypatch.setattr(ark_torch.host_scalars, "_known", {(device, torch.float64, (0.5).hex()): kept})
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: object())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert on_device(epsilon(0.5), device) is kept
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert on_device(epsilon(0.5), device) is not kept
    assert len(ark_torch.host_scalars._known) == 1
