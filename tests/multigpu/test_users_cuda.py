"""FSDP2, DTensor, checkpoints and DDP on the backend `ark` on GPUs."""

from __future__ import annotations

import pytest
import torch

from tests.support.distributed_users import USERS, all_users
from tests.support.distributed_worker import run_gpus, values

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return values(run_gpus(all_users, GPUS, seconds=90))


@pytest.mark.parametrize("function", USERS, ids=lambda f: f.__name__)
def test_user(ranks, function):
    values({rank: results[function.__name__] for rank, results in enumerate(ranks)})
