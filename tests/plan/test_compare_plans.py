"""tests/support/compare_plans.py names every field that differs, and none that was left out."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.support.compare_plans import main

PLAN = {
    "name": "g",
    "ops": [{"kind": "row", "grid": [4, 1, 1]}, {"kind": "matmul_tile", "matmul": {"m": 3, "group_m": 1}}],
    "maps": [{"slot": 0, "sizes": [8, 8]}],
}


def save(folder: Path, **plans: dict) -> str:
    folder.mkdir()
    for name, plan in plans.items():
        (folder / f"{name}.plan").write_text(json.dumps(plan))
    return str(folder)


def changed(change) -> dict:
    plan = copy.deepcopy(PLAN)
    change(plan)
    return plan


def compared(tmp_path: Path, capsys, new: dict, *options: str) -> tuple[int, list[str]]:
    status = main([save(tmp_path / "old", a=PLAN), save(tmp_path / "new", a=new), *options])
    return status, capsys.readouterr().out.splitlines()


def test_same(tmp_path, capsys):
    assert compared(tmp_path, capsys, PLAN) == (0, ["0 differences"])


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda p: p["ops"][0].update(grid=[4, 2, 1]), "ops[0].grid[1]: 1 -> 2"),
        (lambda p: p["ops"][1]["matmul"].pop("group_m"), "ops[1].matmul.group_m: 1 -> (none)"),
        (lambda p: p["ops"][0].update(flags={"operands": 3}), 'ops[0].flags: (none) -> {"operands": 3}'),
        (lambda p: p["maps"][0]["sizes"].append(2), "maps[0].sizes: 2 -> 3 elements"),
        (lambda p: p["ops"][0].update(name="(none)"), 'ops[0].name: (none) -> "(none)"'),
        (lambda p: p.update(name="h"), 'name: "g" -> "h"'),
        (lambda p: p["ops"][1]["matmul"].update(group_m=True), "ops[1].matmul.group_m: 1 -> true"),
        (lambda p: p["maps"].__setitem__(0, "x" * 100), None),
    ],
)
def test_each_field_that_differs(tmp_path, capsys, change, line):
    status, lines = compared(tmp_path, capsys, changed(change))
    assert status == 1 and lines[-1] == "1 differences" and len(lines) == 2
    assert lines[0] == f"a.plan: {line}" if line else lines[0].endswith("...") and len(lines[0]) < 200


def test_new_fields_are_left_out_and_no_others(tmp_path, capsys):
    def change(plan):
        del plan["ops"][1]["matmul"]["group_m"]
        plan["ops"][0]["form"] = 2
        plan["ops"][1]["kind"] = "matmul_float"

    status, lines = compared(tmp_path, capsys, changed(change), "--new-fields", "group_m,form")
    assert (status, lines) == (1, ['a.plan: ops[1].kind: "matmul_tile" -> "matmul_float"', "1 differences"])


def test_a_plan_in_one_folder_only(tmp_path, capsys):
    old, new = save(tmp_path / "old", a=PLAN, b=PLAN), save(tmp_path / "new", a=PLAN, c=PLAN)
    assert main([old, new]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"b.plan: only in {old}",
        f"c.plan: only in {new}",
        "2 differences",
    ]


def test_bad_input(tmp_path, capsys):
    old, none = save(tmp_path / "old", a=PLAN), save(tmp_path / "none")
    assert main([old, none]) == 2
    assert capsys.readouterr().err == f"{none}: expected files *.plan, got none\n"
    assert main([old, old, "--new-fields", "group_n"]) == 2
    assert capsys.readouterr().err == "--new-fields: expected fields of the plans, got group_n\n"
    (tmp_path / "none/a.plan").write_text("{")
    assert main([none, old]) == 2
    assert f"{none}/a.plan: expected JSON, got: " in capsys.readouterr().err
