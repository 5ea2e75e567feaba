"""The tables over many models and shapes run at toy sizes; a row that fails, hangs or comes too late costs itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import sweep
import sweep_cases
import workers
from tests.support.prepared_python import prepared_python

models_table, model_entries = pytest.importorskip("models_table"), pytest.importorskip("model_entries")
ROOT = Path(__file__).resolve().parents[2]
names_like = model_entries.names_like
IN_TURNS, AT_ONCE = "distilbert,gru", "gpt-2 training,gemma-3"


def run(script: str, *arguments: str) -> str:
    command = [
        prepared_python(),
        f"benchmarks/{script}",
        "--small",
        "--rounds",
        "1",
        "--modes",
        "ark,eager",
        *arguments,
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "ARK_VERIFY": "once"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_models(tmp_path):
    out = run("models_table.py", "--models", IN_TURNS, "--jobs", "2", "--json", str(tmp_path / "t.json"))
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["not_started"] == [] and found["packages"]["transformers"]
    rows = {row["case"]: row for row in found["rows"]}
    assert list(rows) == names_like(IN_TURNS) and len(rows) == 2
    for name, row in rows.items():
        assert "error" not in row, row["error"]
        assert set(row["first_call_s"]["cold"]) == {"ark"} and row["first_call_s"]["warm"]["ark"] > 0
        assert set(row["wall_ms"]) == {"ark", "eager"} and row["best_rival_over_ark"] > 0 and name in out
    plan = rows["DistilBERT 8 x 128"]["plan"]
    assert plan["launches"] == 1 and plan["spill_bytes"] == [0] and plan["fallbacks"] == {} and plan["floor_ms"] > 0
    assert "no graph" in models_table.line(rows["GRU 1 x 512 on 16 x 64"])


def test_models_at_once(tmp_path):
    """Each row by one process that waits for its turn; a row that is too slow costs itself alone."""
    run("models_table.py", "--models", AT_ONCE, "--at-once", "--json", str(tmp_path / "t.json"))
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["not_started"] == [] and [row["case"] for row in found["rows"]] == names_like(AT_ONCE)
    for row in found["rows"]:
        assert row["first_call_s"]["cold"]["ark"] > 0 and "warm" not in row["first_call_s"]
        assert row["plan"]["fallbacks"] == {}
        assert set(row["wall_ms"]) == {"ark", "eager"} and row["ark"]["median"] > 0
    run(
        "models_table.py",
        "--models",
        "distilbert",
        "--at-once",
        "--limit",
        "0.05",
        "--json",
        str(tmp_path / "late.json"),
    )
    (row,) = json.loads((tmp_path / "late.json").read_text())["rows"]
    assert row["ark"] is None and row["error"].startswith("no row in 0 s")


def test_a_child_that_waits_for_its_turn_is_not_killed(monkeypatch):
    """The clock jumps ahead by an hour while the child waits, and once more where it should have gone on."""
    skipped = [0.0]
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skipped[0]))
    script = f"import sys; print('{workers.MARK}1', flush=True); sys.stdin.readline(); "
    script += f"print('{workers.MARK}2', flush=True); sys.stdin.readline()"
    child = workers.Child("none", [workers.STAY], dict(os.environ))
    child.command = [sys.executable, "-c", script]
    rows = child.rows(600.0)
    assert next(rows) == 1
    skipped[0] += 3600.0
    time.sleep(1.0)  # several looks of the one that watches
    child.go()
    assert next(rows) == 2 and child.error is None
    skipped[0] += 3600.0
    assert list(rows) == [] and child.error.startswith("no row in 600 s")


def test_a_model_that_cannot_be_made_is_a_row(tmp_path):
    """No row starts once the budget is spent, and one that takes too long says so."""
    json_of = lambda name: json.loads((tmp_path / name).read_text())
    run("models_table.py", "--models", "distilbert", "--limit", "0.05", "--json", str(tmp_path / "late.json"))
    (row,) = json_of("late.json")["rows"]
    assert row["ark"] is None and row["error"].startswith("no row in 0 s")
    assert "FAILED" in models_table.line(row)
    out = run("models_table.py", "--models", "distilbert", "--budget-seconds", "0")
    assert "not started: ['DistilBERT 8 x 128']" in out


def test_entries_have_names_of_their_own():
    assert len(names_like("")) == len({e.name for e in model_entries.ENTRIES}) == len(model_entries.ENTRIES)
    with pytest.raises(SystemExit, match="no model 'lenet'"):
        names_like("bert,lenet")


def test_sweep(tmp_path):
    """A few kinds, with their files."""
    kinds = "attention backward,transpose,argmax,concatenation"
    out = run("sweep.py", "--kinds", kinds, "--jobs", "2", "--json", str(tmp_path / "s"))
    rows = []
    for kind in kinds.split(","):
        found = json.loads((tmp_path / f"s_{kind.replace(' ', '_')}.json").read_text())
        assert found["kind"] == kind and found["failed"] == 0 and found["measured"] == len(found["rows"])
        assert found["worst"] <= found["median"] and kind in out
        rows += found["rows"]
    assert len(rows) == sum(op.kind in kinds.split(",") for op in sweep_cases.small_ops())
    assert all(row["plan"]["launches"] == 1 for row in rows if "plan" in row)


def test_every_kind_has_a_quick_shape_and_a_small_one():
    every = {op.kind for op in sweep_cases.all_ops()}
    assert {op.kind for op in sweep_cases.all_ops() if op.quick} == every == {op.kind for op in sweep_cases.small_ops()}
    titles = [op.title for op in sweep_cases.all_ops()]
    assert len(titles) == len(set(titles)), "two ops of one name"


def test_verdict_is_of_the_ratios():
    rows = [{"case": name, "ratio": ratio} for name, ratio in (("a", 0.5), ("b", 2.0), ("c", 1.0))]
    found = sweep.verdict([*rows, {"case": "d", "error": "wrong"}, {"case": "e", "ratio": None}])
    assert found == {"worst": 0.5, "worst_case": "a", "median": 1.0, "behind": 1, "measured": 3, "failed": 1}


CHILD = """
import sys, time
sys.path.insert(0, {folder!r})
from workers import emit
for name in sys.argv[1].split(","):
    if name == "crash":
        raise SystemExit("as asked")
    if name == "hang":
        time.sleep(60)
    emit({{"name": name}})
"""


def test_a_crash_and_a_hang_cost_one_row_each(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", prepared_python())
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(folder=str(ROOT / "benchmarks")))
    start = lambda names: workers.Child(str(script), [",".join(names)], dict(os.environ))
    begin = time.monotonic()
    found = list(workers.one_after_another(["a", "crash", "b", "hang", "c"], start, 10, lambda: 1.0))
    assert time.monotonic() - begin < 59
    assert [(name, row) for name, row, _ in found if row] == [(n, {"name": n}) for n in "abc"]
    errors = {name: error for name, _, error in found if error}
    assert errors["crash"] == "exit status 1: as asked" and errors["hang"].startswith("no row in 10 s")
    assert list(workers.one_after_another(["a"], start, 15, lambda: 0.0)) == []
