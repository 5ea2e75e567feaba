"""Parallel styles of whole models inside the loop kernels of several GPUs: the functions of
`tests/distributed/test_plan_parallel.py`, one GPU for each rank."""

from __future__ import annotations

import functools

import pytest

from tests.distributed import test_plan_parallel as parallel
from tests.support.distributed_worker import room_for_ranks, run_each, run_gpus, shared_run, values

ROOM = room_for_ranks()
pytestmark = pytest.mark.skipif(ROOM < 2, reason="needs two GPUs, or TESTS_RANKS_PER_GPU")


FUNCTIONS = [*parallel.LLAMA, *parallel.TRAINING]


def run_functions(rank: int, world: int, functions: tuple) -> dict:
    return run_each(functions, rank, world)


@functools.cache
def results(functions: tuple) -> list[dict]:
    """Of as many ranks as share eight heads."""
    return values(run_gpus(functools.partial(run_functions, functions=functions), 4 if ROOM >= 4 else 2, seconds=60))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_parallel(function):
    of_ranks = results(tuple(shared_run(FUNCTIONS, function)))
    values({rank: of_rank[function.__name__] for rank, of_rank in enumerate(of_ranks)})
