"""The benchmark harness: wrong results are never timed, and eager is the yardstick also where it is not timed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import harness


def run(contestants, timed=None):
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    case = harness.Case("case", contestants, check=harness.check_against_fp64(exact), timed=timed)
    return harness.run_cases([case], "cpu", rounds=4, warmup=1)[0]


def near(error: float):
    return lambda: torch.tensor([1.0 + error, 2.0])


def test_eager_judges_without_being_timed():
    modes, timed = harness.contestants_of("ark,inductor,max-autotune", "cpu")
    assert (modes, timed) == (["ark", "inductor", "eager"], ["ark", "inductor"])
    row = run({"ark": near(0.01), "inductor": near(0.5), "eager": near(0.01)}, timed)
    assert row["ark"]["n"] == 4 and list(row["rivals"]) == ["inductor"] and set(row["errors"]) == set(modes)


def test_a_wrong_result_ends_the_benchmark():
    with pytest.raises(AssertionError, match="ark's relative error .* over .*eager"):
        run({"ark": near(0.02), "eager": near(0.01)})
    with pytest.raises(AssertionError, match="ark's relative error nan"):
        run({"ark": near(float("nan")), "eager": near(0.01)})


def test_an_error_that_is_rounding_is_none():
    """Where eager is exact, `least` is what ark may be off by."""
    check = harness.check_against_fp64(torch.tensor([1.0, 2.0], dtype=torch.float64), least=1e-3)
    assert check({"ark": near(1e-4)(), "eager": near(0.0)()})["eager"] == 0
    with pytest.raises(AssertionError, match="over 1.000e-03"):
        check({"ark": near(1e-2)(), "eager": near(0.0)()})


def test_who_fails_while_timed_is_named():
    calls = []

    def fails_later():
        calls.append(None)
        if len(calls) > 4:
            raise ValueError("gone")
        return near(0.0)()

    with pytest.raises(RuntimeError, match="inductor failed in timed round 3 of 4: gone"):
        run({"ark": near(0.0), "eager": near(0.0), "inductor": fails_later})


def test_without_eager_there_is_no_verdict():
    def fails():
        raise RuntimeError("no memory")

    with pytest.raises(AssertionError, match="eager, the yardstick"):
        run({"ark": near(0.0), "eager": fails})


def test_a_rival_that_fails_is_a_result():
    def fails():
        raise RuntimeError("no compiler\nlong text")

    row = run({"ark": near(0.0), "eager": near(0.01), "inductor": fails})
    assert row["failed"] == {"inductor": "RuntimeError: no compiler"} and "inductor" not in row["rivals"]


def test_another_number_of_launches_ends_the_benchmark():
    """And the executables are as they were afterwards."""
    from ark_torch.backend import record_callables

    callables, x = [], torch.randn(5, 9)
    compiled = torch.compile(lambda x: torch.sort(x * 2 + 1)[0].tanh() * 3, backend="ark")
    with record_callables(callables):
        compiled(x)
    segments = callables[0].record.segments
    before = [s.executable for s in segments]
    case = harness.Case("case", {"ark": lambda: compiled(x)}, launches=2, fallbacks=("aten.sort.default",))
    assert harness.run_cases([case], "cpu", rounds=2, warmup=1)[0]["plan"]["launches"] == 2
    for change in ({"launches": 1}, {"fallbacks": ()}):
        with pytest.raises(AssertionError, match="expected .*launches.*no fallback but"):
            harness.run_cases([harness.dataclasses.replace(case, **change)], "cpu", rounds=2, warmup=1)
    assert all(s.executable is e for s, e in zip(segments, before))
