"""Small models for data parallel training whose collectives are a part of the graph, and a loop that trains them."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

from tests.distributed.test_plan_collectives import gathered, ranks_values

ROWS, WIDTH = 4, 32


class ShardedLinear(torch.autograd.Function):
    """A rank has some rows of the weight. All are gathered for either direction; the gradient is scattered."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(x, rows)
        return x @ gathered(rows, dist.group.WORLD).t()

    @staticmethod
    def backward(ctx, gradient):
        x, rows = ctx.saved_tensors
        of_rows = funcol.reduce_scatter_tensor(gradient.t() @ x, "avg", 0, dist.group.WORLD)
        return gradient @ gathered(rows, dist.group.WORLD), of_rows


class ShardedMlp(nn.Module):
    def __init__(self, layers: int, rank: int, world: int):
        super().__init__()
        whole = [ranks_values(0, (WIDTH, WIDTH), torch.float32, i) / WIDTH**0.5 for i in range(layers)]
        self.rows = nn.ParameterList(weight.chunk(world)[rank].clone() for weight in whole)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for rows in self.rows:
            x = x + torch.tanh(ShardedLinear.apply(x, rows))
        return x


def whole_mlp(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = x + torch.tanh(x @ weight.t())
    return x


class Replicated(torch.autograd.Function):
    """A parameter that all ranks have; its gradient is averaged over them."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_reduce(gradient, "avg", dist.group.WORLD)


class Residuals(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def batch_of(step: int, world: int) -> torch.Tensor:
    return ranks_values(0, (world * ROWS, WIDTH), torch.float32, 100 + step)


def trained(call, parameters, batches: list[torch.Tensor]) -> torch.Tensor:
    """Losses."""
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = call(batch).square().mean()
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses)


def mean_over_ranks(losses: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(losses, "avg", dist.group.WORLD)
