"""all_to_all_single on the host where some ranks pass splits and others none."""

from __future__ import annotations

from functools import partial

import pytest

from tests.conftest import has_extension
from tests.support.all_to_all_splits import check_texts, disagree, mixed
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def test_ranks_with_and_without_splits_meet():
    values(run_ranks(partial(mixed, device="cpu"), 3))


def test_sizes_that_differ_are_told():
    check_texts(values(run_ranks(partial(disagree, device="cpu"), 3)))
