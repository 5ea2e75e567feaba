"""The list of native ops: printed by the command, and up to date in docs/OPS.md."""

from __future__ import annotations

import pytest

from ark_torch.__main__ import main
from ark_torch.lowering import RULES
from ark_torch.ops import name_of
from tests.conftest import has_extension


@pytest.mark.skipif(not has_extension(), reason="the extension is not built")
def test_the_page_is_of_this_code():
    from tests.support import ops_page

    assert ops_page.PAGE.read_text() == ops_page.page(), "run python -m tests.support.ops_page --write"


def test_every_rule_is_listed(capsys):
    assert main(["ops"]) == 0
    printed = capsys.readouterr().out
    names = {name_of(overload) for overload in RULES}
    assert len(names) > 150 and all(f"`{name}`" in printed for name in names)
