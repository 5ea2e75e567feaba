"""A rank that is killed, or stays away, on GPUs: who is told what, and that the others can start again."""

from __future__ import annotations

import pytest
import torch

from tests.support.survivors import check_absent, check_killed

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
WORLDS = [pytest.param(world, marks=pytest.mark.skipif(world > GPUS, reason=f"needs {world} GPUs")) for world in (2, 4)]


@pytest.mark.parametrize("world", WORLDS)
def test_who_survives_starts_again(world, tmp_path, monkeypatch):
    check_killed(world, "cuda", tmp_path, monkeypatch)


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_that_never_calls_is_named(world, tmp_path, monkeypatch):
    check_absent(world, "cuda", tmp_path, monkeypatch)
