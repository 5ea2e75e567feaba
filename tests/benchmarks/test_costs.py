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
from tests.support.prepared_python import prepared_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
costs = pytest.importorskip("costs")
cost_graphs = pytest.importorskip("cost_graphs")
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
    columns = cost_graphs.columns_product(8, 4096, 4096)
    assert kinds_of(columns) == ["matmul_rows"] and kinds_of(columns, matmul_rows__bytes=0.05) == ["matmul_tile"]
    for m in (1, 2, 8, 16):
        for k, n in ((64, 151936), (768, 768), (8192, 2048)):
            assert kinds_of(product("matmul_rows", m, k, n)) == ["matmul_rows"]
    long = cost_graphs.columns_product(4, 8192, 2048)
    assert kinds_of(long) == ["matmul_rows"] and "matmul_tile" in kinds_of(long, activation_bytes_per_second=1e12)
    normed = cost_graphs.normed_product(8, 2048, 2048)
    assert kinds_of(normed) == ["matmul_rows"] and kinds_of(normed, prologue_element=1.0) == ["row", "matmul_rows"]
    wide = cost_graphs.columns_product(1, 512, 64 * 4 * 132)
    strip = lambda **numbers: ops(wide, **numbers)[0]["rows"]["columns"]
    assert [strip(**{f"strip_{c}": 100.0}) for c in (8, 16, 32)] == [8, 16, 32]
    assert strip(strip_8=1e-6, strip_16=1e-6, strip_32=1e-6) == 64


def test_numbers_that_are_refused():
    graph = product("matmul_rows", 1, 64, 64).graph(1)
    with pytest.raises(ValueError, match="nothing is called hops"):
        _C.plan_graph(graph, [], {"costs": {"hops": 1.0}})
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected hop from 1e-18 to 1e[+]18"):
            _C.plan_graph(graph, [], {"costs": {"hop": bad}})


def test_each_model_has_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ark_torch.costs, "FOLDER", tmp_path)
    monkeypatch.setattr(ark_torch.costs, "file_of", lambda model: file_of(model, tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H{device.index}00 80GB HBM3")
    ark_torch.costs._of_model.cache_clear()
    assert file_of("NVIDIA H100 80GB HBM3", tmp_path).name == "nvidia_h100_80gb_hbm3.json"
    file_of("NVIDIA H100 80GB HBM3", tmp_path).write_text(json.dumps({"costs": {"hop": 3e-6}}))
    cuda = lambda index: torch.device("cuda", index)
    assert costs_for("auto", "cuda", cuda(1)) == {"hop": 3e-6} and costs_for("auto", "cuda", cuda(2)) == {}
    assert costs_for("auto", "host", torch.device("cpu")) == {}
    ark_torch.costs._of_model.cache_clear()


def test_a_model_whose_file_is_refused_has_the_defaults(tmp_path, monkeypatch, caplog):
    path = tmp_path / "nvidia_h100.json"
    monkeypatch.setattr(ark_torch.costs, "file_of", lambda model: path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    path.write_text('{"costs": {"hops": 3e-6}}')
    ark_torch.costs._of_model.cache_clear()
    with caplog.at_level("WARNING", logger="ark"):
        assert costs_for("auto", "cuda", torch.device("cuda", 0)) == {}
    assert "nothing is called 'hops'" in caplog.text and str(path) in caplog.text
    ark_torch.costs._of_model.cache_clear()


def test_files_of_the_package_have_known_names():
    for path in ark_torch.costs.FOLDER.glob("*.json"):
        assert read_costs(str(path)).keys() <= _C.default_costs().keys()
        assert path == file_of(json.loads(path.read_text())["model"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "expected JSON"),
        ("{}", "expected JSON"),
        ('{"costs": 3}', "expected JSON"),
        ('{"costs": {"hops": 3e-6}}', "nothing is called 'hops'"),
        ('{"costs": {"hop": "long"}}', "expected hop from 1e-18 to 1e+18, got 'long'"),
        ('{"costs": {"hop": true}}', "expected hop from 1e-18 to 1e+18, got True"),
        ('{"costs": {"hop": 1e-19}}', "expected hop from 1e-18 to 1e+18, got 1e-19"),
        ("[" * 100000, "expected JSON"),
        (f'{{"costs": {{"hop": 1{"0" * 400}}}}}', "expected hop from 1e-18 to 1e+18, got 1000"),
        ('{"costs": {"hop": 0}}', "expected hop from 1e-18 to 1e+18, got 0"),
        ('{"costs": {"hop": NaN}}', "expected hop from 1e-18 to 1e+18, got nan"),
        ('{"costs": {"hop": Infinity}}', "expected hop from 1e-18 to 1e+18, got inf"),
    ],
)
def test_files_that_are_refused(tmp_path, text, expected):
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_costs(str(path))
    assert f"option 'costs': {expected}" in str(error.value) and str(path) in str(error.value)


def test_an_option_names_a_file(tmp_path):
    path = tmp_path / "costs.json"
    compiled = lambda: torch.compile(torch.nn.Linear(8, 8), backend="ark", options={"costs": str(path)})
    x = torch.randn(2, 8)
    with pytest.raises(Exception, match="option 'costs': expected JSON"):
        compiled()(x)
    path.write_text('{"costs": {"hop": 3e-6}}')
    layer = compiled()
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, *[p for p in layer.parameters()]))


# By the costs that force them plans do not say how long they take: that is for a GPU to say.
FORCED = {
    "narrow_share",
    "small_tile.block",
    "matmul_tile.bytes",
    "activation_bytes_per_second",
    "prologue_element",
    "strip_8",
    "strip_16",
    "strip_32",
}
NOT_COMPARED = FORCED | {"tensor_flops"}  # what wide tiles reach; plans take it for the attention's rate alone


class Predicted(costs.Measured):
    """Chains take as long as plans say by the numbers `truth`."""

    def __init__(self, workers: int, truth: dict[str, float]):
        super().__init__("cpu", 1, small=False)
        self.workers, self.truth = workers, truth

    @property
    def numbers(self) -> dict[str, float]:
        return self.table | {name: number for name, number in self.found.items() if name not in NOT_COMPARED}

    def seconds(self, kind, **numbers: float) -> float:
        options = self.options({}) | {"costs": self.truth | numbers}
        run = [json.loads(_C.plan_graph(kind.graph(n), [], options))["predicted_ms"] for n in (1, kind.copies)]
        return (run[1] - run[0]) / (kind.copies - 1) * 1e-3


OTHER = {"read_bytes_per_second": 0.7, "pointwise.bytes": 0.8, "row.seconds": 2, "column.bytes": 0.7}
OTHER |= {"wide_tile.block": 1.5, "wide_tile.own": 0.5, "small_tile.own": 0.5, "float_block": 1.4}
OTHER |= {"attention_forward.flops": 1.3}


@pytest.mark.parametrize("factors", [{}, OTHER], ids=["defaults", "others"])
@pytest.mark.parametrize("workers", [78, 114, 132, 148, 160])
def test_what_is_measured_is_what_tiles_take(workers, factors):
    """Chains that take as long as the plan says, by the planner's numbers and by others: these are found again."""
    truth = _C.default_costs()
    truth |= {name: truth[name] * factor for name, factor in factors.items()}
    measured = Predicted(workers, truth)
    measured.all()
    assert measured.failed == {}
    assert NOT_COMPARED <= measured.found.keys() and len(measured.found) == 28
    for name in measured.found.keys() - NOT_COMPARED:
        assert measured.found[name] == pytest.approx(truth[name], rel=0.02), name


def test_what_fails_costs_its_own_numbers_alone(monkeypatch):
    measured = Predicted(132, _C.default_costs())
    plain = measured.seconds
    wrong = lambda kind, **numbers: 1e-9 if kind.kind == "column" else plain(kind, **numbers)
    monkeypatch.setattr(measured, "seconds", wrong)
    monkeypatch.setattr(measured, "where", "cuda")  # where differences must say something
    measured.all()
    assert "column" in measured.failed and "AssertionError" in measured.failed["column"]
    assert not {"column.seconds", "column.bytes"} & measured.found.keys() and "float_tile" in measured.found


def test_numbers_of_a_step_that_fails_are_dropped_together(monkeypatch):
    """The second of two is out of bounds."""
    measured = Predicted(132, _C.default_costs())
    monkeypatch.setattr(measured, "where", "cuda")
    measured.table |= {"column.seconds": 40 * measured.table["column.seconds"]}
    measured.all()
    assert "column.seconds" in measured.failed["column"]
    assert not {"column.seconds", "column.bytes"} & measured.found.keys() and "row.bytes" in measured.found


def test_times_that_say_nothing_cost_no_number_on_the_host(monkeypatch):
    """An op more takes no time at all, as seen on a busy machine: rates that follow stay within what options take."""
    measured = costs.Measured("cpu", 1, small=True)
    monkeypatch.setattr(measured.chains, "per_task", lambda calls: {"op": [0.0]})
    measured.all()
    assert measured.failed == {}


def test_the_command(tmp_path):
    path = tmp_path / "costs.json"
    command = [prepared_python(), "benchmarks/costs.py", "--rounds", "1", "--check", "--json", str(path)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    document, numbers = json.loads(path.read_text()), read_costs(str(path))
    assert document["failed"] == {}
    assert {"strip_8", "prologue_element", "float_block", "small_tile.own"} <= numbers.keys()
    assert numbers.keys() < _C.default_costs().keys() and "hop" not in numbers  # what is not measured stays out
    assert document["model"] == "host" and document["commit"]
    assert document["error_of_predictions"].keys() == {"before", "found"}
    refused = subprocess.run([*command, "--write"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert refused.returncode != 0 and "there is no GPU" in refused.stderr
