"""A rank that is killed, or stays away, on the host: who is told what, and that the others can start again."""

from __future__ import annotations

import pytest

from tests.conftest import has_extension
from tests.support.survivors import check_absent, check_killed

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


@pytest.mark.parametrize("world", [2, 4])
def test_who_survives_starts_again(world, tmp_path, monkeypatch):
    check_killed(world, "cpu", tmp_path, monkeypatch)


def test_a_rank_that_never_calls_is_named(tmp_path, monkeypatch):
    check_absent(3, "cpu", tmp_path, monkeypatch)
