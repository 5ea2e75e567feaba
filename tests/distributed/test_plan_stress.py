"""Random functions with collectives in plans against eager. PLAN_STRESS_ROUNDS=1000 for many; they begin at
PLAN_STRESS_SEED."""

from __future__ import annotations

import functools
import os

import pytest

from tests.conftest import has_extension
from tests.support.distributed_worker import run_ranks, values
from tests.support.plan_stress import stress

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


@pytest.mark.parametrize("world", [2, 3, 4])
def test_stress(world):
    rounds, first = int(os.environ.get("PLAN_STRESS_ROUNDS", "12")), int(os.environ.get("PLAN_STRESS_SEED", "1"))
    run = functools.partial(stress, seeds=range(first, first + rounds))
    print(values(run_ranks(run, world, seconds=60 + rounds)))
