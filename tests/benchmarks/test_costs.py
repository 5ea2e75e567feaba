"""What work costs is data: the planner's choices follow from it, each GPU model has a file, one command measures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ark_torch.costs
from ark_torch import _C
from ark_torch.costs import costs_for, file_of, read_costs

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
costs = pytest.importorskip("costs")
task_graphs = pytest.importorskip("task_graphs")
product = task_graphs.product


def ops(kind, **numbers: float) -> list[dict]:
    plan = _C.plan_graph(
        kind.graph(1), [], {"workers": 132, "costs": {k.replace("__", "."): v for k, v in numbers.items()}}
    )
    return json.loads(plan)["ops"]


def kinds_of(kind, **numbers: float) -> list[str]:
    return [op.get("kind", "pointwise") for op in ops(kind, **numbers)]


def test_forms_follow_from_costs():
    tile = lambda kind, **numbers: [ops(kind, **numbers)[0]["matmul"][name] for name in ("tile_m", "tile_n")]
    large = product("matmul_tile", 1408, 512, 3072)
    assert tile(large, narrow_share=10.0) == [128, 256] and tile(large, narrow_share=0.1) == [128, 128]
    few = product("matmul_tile", 128, 1024, 1024)
    assert tile(few) == [64, 64] and tile(few, small_tile__block=1e-3)[0] == 128
    floats = product("matmul_float", 192, 256, 192 * 64, torch.float32)
    assert tile(floats, float_step=1.0) == [128, 128] and tile(floats, float_block=1.0) == [64, 64]


def test_splits_follow_from_costs():
    long = product("matmul_tile", 128, 8192, 1024)
    assert len(ops(long)) == 2
    assert len(ops(long, split=1.0, split_small=1.0, split_joined=1.0)) == 1
    grouped = task_graphs.attention_backward(task_graphs.Shape(1, 32, 4, 512, 512, 64, True))
    parts = lambda **numbers: len(ops(grouped, **numbers))
    assert parts(split_heads=1e-9) > parts(split_heads=1.0)


def test_families_follow_from_costs():
    rows = product("matmul_rows", 8, 4096, 4096)
    assert kinds_of(rows) == ["matmul_rows"] and kinds_of(rows, matmul_rows__bytes=0.05) == ["matmul_tile"]
    columns = costs.columns_product(8, 4096, 4096)
    assert kinds_of(columns) == ["matmul_rows"] and kinds_of(columns, matmul_rows__bytes=0.05) == ["matmul_tile"]
    for m in (1, 2, 8, 16):
        for k, n in ((64, 151936), (768, 768), (8192, 2048)):
            assert kinds_of(product("matmul_rows", m, k, n)) == ["matmul_rows"]
    normed = costs.normed_product(8, 2048, 2048)
    assert kinds_of(normed) == ["matmul_rows"] and kinds_of(normed, prologue_element=1.0) == ["row", "matmul_rows"]
    wide = costs.columns_product(1, 512, 64 * 4 * 132)
    strip = lambda **numbers: ops(wide, **numbers)[0]["rows"]["columns"]
    assert [strip(**{f"strip_{c}": 100.0}) for c in (8, 16, 32)] == [8, 16, 32]
    assert strip(strip_8=1e-6, strip_16=1e-6, strip_32=1e-6) == 64


def test_numbers_that_are_refused():
    graph = product("matmul_rows", 1, 64, 64).graph(1)
    with pytest.raises(ValueError, match="nothing is called hops"):
        _C.plan_graph(graph, [], {"costs": {"hops": 1.0}})
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected hop over 0"):
            _C.plan_graph(graph, [], {"costs": {"hop": bad}})


def test_each_model_has_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ark_torch.costs, "FOLDER", tmp_path)
    monkeypatch.setattr(ark_torch.costs, "file_of", lambda model: file_of(model, tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H{device.index}00 80GB HBM3")
    ark_torch.costs._of_model.cache_clear()
    assert file_of("NVIDIA H100 80GB HBM3", tmp_path).name == "nvidia_h100_80gb_hbm3.json"
    file_of("NVIDIA H100 80GB HBM3", tmp_path).write_text(json.dumps({"costs": {"hop": 3e-6}}))
    cuda = lambda index: torch.device("cuda", index)
    assert costs_for("auto", "cuda", cuda(1)) == {"hop": 3e-6} and costs_for("auto", "cuda", cuda(2)) == {}
    assert costs_for("auto", "host", torch.device("cpu")) == {}
    ark_torch.costs._of_model.cache_clear()


def test_files_of_the_package_have_known_names():
    for path in ark_torch.costs.FOLDER.glob("*.json"):
        assert read_costs(str(path)).keys() <= _C.default_costs().keys()
        assert path == file_of(json.loads(path.read_text())["model"])


def test_an_option_names_a_file(tmp_path):
    path = tmp_path / "costs.json"
    compiled = lambda: torch.compile(torch.nn.Linear(8, 8), backend="ark", options={"costs": str(path)})
    x = torch.randn(2, 8)
    for text in (None, "{}", '{"costs": 3}', '{"costs": {"hop": "long"}}'):
        if text is not None:
            path.write_text(text)
        with pytest.raises(Exception, match="option 'costs': expected JSON"):
            compiled()(x)
    path.write_text('{"costs": {"hop": 3e-6}}')
    layer = compiled()
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, *[p for p in layer.parameters()]))


def test_what_is_measured_is_what_tiles_take():
    """Chains that take as long as the plan says by other costs: these are found again."""
    truth = _C.default_costs()
    scaled = {
        "pointwise.bytes": 0.8,
        "row.seconds": 2,
        "column.bytes": 0.7,
        "wide_tile.block": 1.5,
        "wide_tile.own": 0.5,
    }
    truth |= {name: truth[name] * factor for name, factor in scaled.items()} | {"read_bytes_per_second": 3e12}

    class Predicted(costs.Measured):
        def seconds(self, kind, **numbers: float) -> float:
            options = {"workers": self.workers, "costs": truth | numbers}
            run = [json.loads(_C.plan_graph(kind.graph(n), [], options))["predicted_ms"] for n in (1, kind.copies)]
            return (run[1] - run[0]) / (kind.copies - 1) * 1e-3

    measured = Predicted("cpu", 1, small=False)
    measured.workers = 132
    measured.machine(), measured.kinds(), measured.tiles(), measured.float_tiles()
    forced = ("narrow", "small", "tensor", "attention")  # by the costs that would tell how long they take, or in part
    names = [n for n in measured.found if not n.startswith(forced) and measured.found[n] > 0.3e-6]
    assert {
        "pointwise.bytes",
        "row.seconds",
        "column.seconds",
        "wide_tile.own",
        "wide_tile.instruction",
        "float_step",
    } <= set(names)
    for name in names:
        assert 0.85 < measured.found[name] / truth[name] < 1.15, (name, measured.found[name], truth[name])


def test_the_command(tmp_path):
    path = tmp_path / "costs.json"
    command = [sys.executable, "benchmarks/costs.py", "--rounds", "1", "--length", "11", "--check", "--json", str(path)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    document, numbers = json.loads(path.read_text()), read_costs(str(path))
    assert numbers.keys() == _C.default_costs().keys() and all(number > 0 for number in numbers.values())
    assert {"hop", "strip_8", "prologue_element", "float_block", "small_tile.own"} <= set(document["measured"])
    assert (
        document["model"] == "host"
        and document["commit"]
        and set(document["error_of_predictions"]) == {"before", "found"}
    )
    refused = subprocess.run([*command, "--write"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert refused.returncode != 0 and "there is no GPU" in refused.stderr
