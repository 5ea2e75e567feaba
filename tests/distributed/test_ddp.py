"""Data parallel training in two processes: DDP cuts the graph at its buckets, every rank compiles its parts, the
losses agree with eager."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from tests.conftest import has_extension

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


def worker(rank: int, port: int, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    from ark_torch.backend import ark
    from ark_torch.records import recording

    def parallel():
        return nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=1)

    eager = parallel()
    wanted = losses(eager, eager, rank)
    model = parallel()
    with recording() as records:
        actual = losses(model, torch.compile(model, backend=ark, options={"threads": 1}), rank)
    causes = [cause for r in records for cause in (*r.fallbacks, *r.internal_errors)]
    results[rank] = (wanted, actual, len(records), causes)
    dist.destroy_process_group()


def test_ddp():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (port, results), nprocs=2)
        for rank in range(2):
            wanted, actual, num_graphs, causes = results[rank]
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
            assert num_graphs >= 4 and causes == []  # forward and backward of more than one bucket
