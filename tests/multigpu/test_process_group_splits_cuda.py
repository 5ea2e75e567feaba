"""all_to_all_single on GPUs where some ranks pass splits and others none."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.support.all_to_all_splits import check_texts, disagree, mixed
from tests.support.distributed_worker import run_gpus, values

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
WORLDS = sorted({world for world in (2, 4, 8, GPUS) if 2 <= world <= GPUS}) or [2]


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_with_and_without_splits_meet(world):
    values(run_gpus(partial(mixed, device="cuda"), world))


def test_sizes_that_differ_are_told():
    check_texts(values(run_gpus(partial(disagree, device="cuda"), WORLDS[-1])))
