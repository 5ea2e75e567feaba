"""Training steps in one launch on a GPU, against eager's."""

from __future__ import annotations

import pytest
import torch

import ark_torch
from ark_torch.versions import minor
from tests.frontend import test_train_loop as host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", ["AdamW", "momentum", "ASGD", "groups"])
def test_it_is_the_loop_of_eager_steps(name):
    """Numbers of steps are on the CPU, where eager has them."""
    host.check(host.OPTIMIZERS[name], host.make().cuda(), calls=2)


def test_learning_rates_clipping_and_buffers():
    host.check(
        host.OPTIMIZERS["momentum"], host.make(norm=True).cuda(), host.SCHEDULERS["cosine"], calls=2, max_norm=0.5
    )


def test_dropout_differs_from_step_to_step():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4)).cuda()
    batches = tuple(x[:1].expand(20, -1, -1).contiguous().cuda() for x in host.data())
    losses = ark_torch.train_loop(
        model, torch.optim.SGD(model.parameters(), lr=0.0), host.distance, batches, strict=True
    )
    assert len(set(losses.tolist())) == 20


@pytest.mark.skipif(minor(torch.__version__) < (2, 13), reason="older Dynamo refuses what transformers' models set")
def test_a_hundred_steps_of_a_language_model_are_one_launch():
    host.check_language_model("cuda", 100)
