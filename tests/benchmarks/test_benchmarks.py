"""The benchmarks of whole models run, at toy sizes: a step is as many launches as it is to be, and the file says so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.prepared_python import prepared_python

pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]


def result(tmp_path: Path, name: str, *arguments: str) -> dict:
    file = tmp_path / f"{name}.json"
    command = [prepared_python(), f"benchmarks/{name}.py", "--small", "--rounds", "1", "--modes", "ark,eager"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "ARK_VERIFY": "once"}
    done = subprocess.run(
        [*command, "--json", str(file), *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(file.read_text())


def test_decode(tmp_path):
    found = result(tmp_path, "decode", "--layers", "2", "--points", "64:8,64:40,128:8", "--tokens", "5")
    assert len(found["rows"]) == 3
    for row in found["rows"]:
        assert row["plan"]["launches"] == 1 and row["plan"]["fallbacks"] == {} and row["plan"]["tasks"]
    generate = found["generate"]
    assert generate["equal_fp32"] and generate["launches_per_token"] == 1 and generate["fallbacks"] == {}
    assert set(generate["ms_per_token"]) == {"ark", "eager"}


def test_training(tmp_path):
    (row,) = result(tmp_path, "training", "--layers", "1", "--batch", "2", "--sequence", "64")["rows"]
    assert row["plan"]["product_launches"] == 2 and not row["plan"]["fallbacks"]


def test_prefill(tmp_path):
    (row,) = result(tmp_path, "prefill", "--layers", "1", "--tokens", "48")["rows"]
    assert row["plan"]["launches"] == 1 and row["plan"]["fallbacks"] == {}


def test_generate(tmp_path):
    file = tmp_path / "generate.json"
    command = [
        prepared_python(),
        "benchmarks/generate.py",
        "--small",
        "--rounds",
        "1",
        "--layers",
        "1",
        "--tokens",
        "6",
    ]
    command += ["--prompt", "4", "--batches", "2", "--ways", "ark;eager", "--json", str(file)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "ARK_VERIFY": "once"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (row,) = json.loads(file.read_text())["rows"]
    assert row["equal_fp32"] and row["ark"]["median"] > 0 and list(row["rivals"]) == ["eager"]


def test_plan_collectives(tmp_path):
    file = tmp_path / "plan_collectives.json"
    command = [
        prepared_python(),
        "benchmarks/plan_collectives.py",
        "--rounds",
        "1",
        "--layers",
        "3",
        "--json",
        str(file),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT), "ARK_VERIFY": "once"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(file.read_text())
    assert found["ranks"] == 2 and len(found["rows"]) == 3
    assert all(row["ark"]["median"] > 0 and row["rivals"]["eager"]["median"] > 0 for row in found["rows"])
