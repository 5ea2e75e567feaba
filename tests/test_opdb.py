"""A fixed part of torch's operator database; all of it: python -m tests.opdb_sweep."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.opdb import run

PARTS = 12


@pytest.mark.parametrize("part", range(0, PARTS, 3))
def test_op_db(executor, part):
    """No wrong result and no crash, and most operators native."""
    if executor == "reference" and part:
        pytest.skip("one part of the lowering is enough beside the extension's")
    outcomes = list(run(first=part, every=PARTS))
    bad = [(o.kind, o.op, o.detail) for o in outcomes if o.kind in ("wrong", "crash")]
    kinds = Counter(o.kind for o in outcomes)
    print(dict(kinds))
    assert bad == []
    assert kinds["native"] >= 0.35 * len(outcomes), kinds
