"""The list of native ops: printed by the command, and up to date in the README."""

from __future__ import annotations

from pathlib import Path

from ark_torch import ops
from ark_torch.__main__ import main
from ark_torch.lowering import RULES

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme_lists_the_native_ops():
    text = README.read_text()
    assert ops.replaced(text) == text, "put the output of `python -m ark_torch ops` between the marks in README.md"


def test_every_rule_is_listed(capsys):
    assert main(["ops"]) == 0
    printed = capsys.readouterr().out
    names = {overload._schema.name.replace("::", ".").removeprefix("aten.") for overload in RULES}
    assert len(names) > 150 and all(f"`{name}`" in printed for name in names)
