"""DDP and FSDP2 around and inside a compiled model, between two processes of the host, over Gloo and over ark."""

from __future__ import annotations

import os
from unittest import mock

import pytest

from tests.conftest import has_extension
from tests.support.compiled_users import USERS, all_users
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


@pytest.fixture(scope="module", params=["cpu:gloo", "cpu:ark"])
def ranks(request) -> list[dict]:
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        return values(run_ranks(all_users, 2, backend=request.param, seconds=120))


@pytest.mark.parametrize("function", USERS, ids=lambda f: f.__name__)
def test_user(ranks, function):
    values({rank: results[function.__name__] for rank, results in enumerate(ranks)})
