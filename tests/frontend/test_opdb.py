"""Torch's operator database, a forward sample per operator. With more samples and backward:
python -m tests.support.opdb_sweep."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("expecttest", reason="torch.testing's operator database needs it")

from torch.testing._internal.common_methods_invocations import op_db

from tests.support.opdb import _WITHOUT_DROPOUT, _run_op, run

PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
def test_op_db(executor, part):
    """No wrong result and no crash, and most operators native."""
    outcomes = list(run(first=part, every=PARTS))
    bad = [(o.kind, o.op, o.detail) for o in outcomes if o.kind in ("wrong", "crash")]
    kinds = Counter(o.kind for o in outcomes)
    print(dict(kinds))
    assert bad == []
    assert kinds["native"] >= 0.35 * len(outcomes), kinds


@pytest.mark.parametrize("name", sorted(_WITHOUT_DROPOUT))
def test_attention_of_the_database(executor, name):
    """Compared, as dropout is off, and native."""
    ops = [op for op in op_db if op.name == name]
    outcomes = [outcome for op in ops for outcome in _run_op(op, 4, False)]
    assert len(outcomes) >= 4
    assert {o.kind for o in outcomes} == {"native"}, [(o.kind, o.detail) for o in outcomes]
