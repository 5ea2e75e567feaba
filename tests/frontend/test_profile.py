"""What a profile prints and draws: its table, the timeline, layers."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml

import pytest
import torch
from torch import nn

import ark_torch
from ark_torch.chrome_trace import merged
from ark_torch.layers import lanes, spans_of_layers
from ark_torch.profile import Profile, Run
from ark_torch.timeline import draw, round_step, shares

SVG = "{http://www.w3.org/2000/svg}"


def record(
    worker: int, begin: int, end: int, module: str = "", kind: str = "row", wait: int = 0, load: int = 0
) -> dict:
    stamps = {"begin": begin, "wait_end": begin + wait, "load_end": begin + wait + load, "end": end}
    return {"op": 0, "name": "a<b", "module": module, "kind": kind, "first": 0, "count": 1, "worker": worker} | stamps


def run_of(workers: int, items: int, length: int = 1000) -> Run:
    return Run(
        "graph",
        (),
        [
            record(w, 5000 + i * length, 5000 + (i + 1) * length - 100, f"layers.{i}.mlp", wait=300, load=111)
            for w in range(workers)
            for i in range(items)
        ],
    )


def texts(svg: str) -> list[str]:
    return [node.text for node in xml.fromstring(svg).iter(SVG + "text")]


def test_a_profile_prints_its_table():
    profile = Profile([run_of(100, 50)])
    assert str(profile) == profile.table() and len(str(profile)) < 1000
    assert "1 runs, 5000 items" in repr(profile) and len(repr(profile)) < 100
    assert str(Profile([])) == "no run of an ark graph was recorded"


def test_the_table_adds_up_and_says_what_it_leaves_out():
    run = Run("graph", (), [record(w, i * 100, i * 100 + 80, wait=30) | {"op": i} for w in range(2) for i in range(50)])
    text = Profile([run]).table(limit=10)
    busy, _, wait, idle = (
        float(x) for x in re.search(r"(\S+) +(\S+) +(\S+) in all; between items (\S+) %", text).groups()
    )
    assert busy + wait + idle == pytest.approx(100, abs=0.02) and idle > 15
    assert text.endswith("40 more ops: table(limit=50)")


@pytest.mark.parametrize(
    "span, step, unit",
    [(7, 1, "ns"), (900, 100, "ns"), (7_300, 1_000, "us"), (322_000, 50_000, "us"), (25e6, 5_000_000, "ms")],
)
def test_ticks_are_round_numbers_of_a_fitting_unit(span, step, unit):
    assert round_step(span)[:2] == (step, unit)
    svg = draw(Run("graph", (), [record(0, 5000, 5000 + int(span))]), 800)
    ticks = [t for t in texts(svg) if re.fullmatch(rf"[\d.]+ {unit}", t)]
    length = {"ns": 1, "us": 1000, "ms": 1e6}[unit]
    assert ticks == [f"{i * step / length:g} {unit}" for i in range(int(span) // step + 1)] and 3 <= len(ticks) <= 11


def test_the_timeline_has_numbers_a_legend_tooltips_and_layers():
    svg = draw(run_of(132, 4), 1600)
    found, tips = texts(svg), [node.text for node in xml.fromstring(svg).iter(SVG + "title")]
    numbers = [int(t) for t in found if t.isdigit()]
    assert numbers == list(range(0, 132, 2))
    assert {"row", "wait for other tiles", *(f"layers.{i}.mlp" for i in range(4))} <= set(found)
    assert sum(t.startswith("layers.2.mlp: 2.30 to 2.90 us") for t in tips) == 1
    assert sum(t.startswith("worker 7, row, layers.1.mlp: a<b, tiles 0 to 0: wait 0.30, load 0.11") for t in tips) == 1
    legends = draw(Run("graph", (), [record(0, 0, 9, kind=k) for k in ("row", "matmul_tile", "column")]), 300)
    places = [float(t.get("x")) for t in xml.fromstring(legends).iter(SVG + "text")]
    assert max(places) < 300, "the legend goes on in the next line"


def test_shares_add_up():
    for run, workers in ((run_of(3, 7), 3), (run_of(3, 7, 1037), 5)):
        text = shares(run, workers)
        assert sum(float(x) for x in re.findall(r"([\d.]+) %", text)) == pytest.approx(100, abs=1e-6)
        assert "between items" in text


def test_layers_are_the_deepest_modules_that_are_few():
    records = [record(0, i, i + 1, f"bert.layer.{i // 10}.part{i}") for i in range(100)]
    assert [name for name, *_ in spans_of_layers(records)] == [f"bert.layer.{i}" for i in range(10)]
    assert spans_of_layers(records)[3][1:] == (30, 40)
    assert spans_of_layers([record(0, 0, 1)]) == []


def test_layers_of_a_model():
    pytest.importorskip("ark_torch._C")
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)))
    compiled, x = torch.compile(model, backend="ark"), torch.randn(4, 8)
    with torch.no_grad(), ark_torch.profile() as profile:
        compiled(x)
    assert [name for name, *_ in spans_of_layers(profile.runs[0].records)] == ["0", "1.0", "1.1"]
    assert len(str(profile)) < 2000


def trace_of_torch(base: int, kernels=()) -> dict:
    events = [
        {"ph": "X", "cat": "kernel", "name": "ark_loop(ark::abi)", "ts": ts, "dur": 9.0, "pid": 0} for ts in kernels
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2.0, "pid": 7, "tid": 7})
    return {"traceEvents": events, "baseTimeNanoseconds": base}


def test_runs_of_a_gpu_begin_where_torch_saw_their_kernels():
    runs = [run_of(2, 3), run_of(2, 3)]
    trace = merged(runs, trace_of_torch(123, kernels=(7000.5, 300.25)))
    for pid, begin in (("ark 0", 300.25), ("ark 1", 7000.5)):
        spans = [e for e in trace["traceEvents"] if e["pid"] == pid and e["ph"] == "X"]
        assert min(e["ts"] for e in spans) == begin
        assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(begin + 2.9)
        assert [e["name"] for e in spans if e["cat"] == "layer"] == [f"layers.{i}.mlp" for i in range(3)]
    assert any(e["name"] == "aten::mm" for e in trace["traceEvents"])
    with pytest.raises(ValueError, match="1 kernels of ark, the profile 2 runs"):
        merged(runs, trace_of_torch(0, kernels=(1.0,)))


def test_layers_that_overlap_lie_in_lanes():
    assert lanes([("a", 0, 10), ("b", 5, 15), ("c", 10, 20), ("d", 12, 30), ("e", 20, 21)]) == [
        (0, "a", 0, 10),
        (1, "b", 5, 15),
        (0, "c", 10, 20),
        (2, "d", 12, 30),
        (0, "e", 20, 21),
    ]


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_tasks_lie_in_the_trace_of_torchs_profiler(tmp_path, suffix):
    """Under the names of the modules, within the call of the compiled region, on torch's clock."""
    pytest.importorskip("ark_torch._C")
    model = nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1))
    compiled, x = torch.compile(model, backend="ark"), torch.randn(32, 64)
    file, both = tmp_path / f"torch.{suffix}", tmp_path / "both.json"
    with torch.no_grad():
        compiled(x)
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs,
            ark_torch.profile() as mine,
        ):
            compiled(x)
    theirs.export_chrome_trace(str(file))
    mine.export_chrome_trace(both, torch_trace=file)
    events = json.loads(both.read_text())["traceEvents"]
    (region,) = [e for e in events if e["name"].startswith("Torch-Compiled Region")]
    layers = [e for e in events if e.get("cat") == "layer"]
    assert [e["name"] for e in layers] == ["0", "1"]
    tasks = [e for e in events if e["pid"] == "ark 0" and e["ph"] == "X"]
    assert len(tasks) > len(layers)
    for e in tasks:
        assert region["ts"] - 50 <= e["ts"] and e["ts"] + e["dur"] <= region["ts"] + region["dur"] + 50, "us"
