"""Data parallel training in two processes: DDP cuts the graph at its buckets, every rank compiles its parts, the
losses agree with eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import has_extension
from tests.support.distributed_worker import run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


class Model(nn.Module):
    """Not an nn.Sequential: Dynamo skips frames of torch's own containers below DDP."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(320, 320), nn.LayerNorm(320), nn.GELU()) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def build() -> nn.Module:
    torch.manual_seed(0)
    return Model()


def losses(model, call, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(torch.randn(8, 320, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def worker(rank: int, world: int) -> tuple[list[float], list[float], int, list]:
    from ark_torch.backend import ark
    from ark_torch.records import recording

    def parallel():
        return nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=1)

    eager = parallel()
    wanted = losses(eager, eager, rank)
    model = parallel()
    with recording() as records:
        actual = losses(model, torch.compile(model, backend=ark, options={"threads": 1}), rank)
    return wanted, actual, len(records), [cause for r in records for cause in (*r.fallbacks, *r.internal_errors)]


def test_ddp():
    for wanted, actual, num_graphs, causes in values(run_ranks(worker, 2, backend="cpu:gloo")):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
        assert num_graphs >= 4 and causes == []  # forward and backward of more than one bucket
