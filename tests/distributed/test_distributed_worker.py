"""A rank that hangs in one of several functions ends at its deadline, and who started it hears in which."""

from __future__ import annotations

import time

import pytest

from tests.conftest import has_extension
from tests.support.distributed_worker import run_each, run_ranks

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def ends(rank: int, world: int) -> None:
    pass


def hangs(rank: int, world: int) -> None:
    if rank == 1:
        time.sleep(1000)


def several(rank: int, world: int) -> dict:
    return run_each((ends, hangs), rank, world, seconds=2)


def test_a_function_that_hangs_is_named():
    begin = time.monotonic()
    with pytest.raises(AssertionError, match=r"no result of ranks that were in \{1: 'hangs'\}; exit codes .*1: 1"):
        run_ranks(several, 2, seconds=30)
    assert time.monotonic() - begin < 60
