"""The ways to run what tensor_parallel_cases.py describes: whose collectives, compiled by whom, in a CUDA graph or not.

| way | products and norms | collectives |
|---|---|---|
| ark | torch.compile(backend="ark") | a group "ark" |
| eager | ATen | NCCL (Gloo on CPUs) |
| inductor | torch.compile() | NCCL (Gloo on CPUs) |
| inductor-symm | torch.compile() | symmetric memory: one-shot all-reduces; products cut up beside others |
| one-shot, two-shot | ATen | all-reduces of torch's symmetric memory; products write into it |

Each may end in `-graph`: in a CUDA graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional as F

COLLECTIVE = torch.ops._c10d_functional  # what torch.distributed._functional_collectives calls
BASES = ("ark", "eager", "inductor", "inductor-symm", "one-shot", "two-shot")
REDUCES_ONLY = ("one-shot", "two-shot")  # all-reduces: nothing else in their models


def gather(x: torch.Tensor, world: int, name: str) -> torch.Tensor:
    return COLLECTIVE.wait_tensor(COLLECTIVE.all_gather_into_tensor(x, world, name))


def scatter(x: torch.Tensor, world: int, name: str) -> torch.Tensor:
    return COLLECTIVE.wait_tensor(COLLECTIVE.reduce_scatter_tensor(x, "sum", world, name))


class Gather(torch.autograd.Function):
    """All ranks' rows; their gradients are summed, and each rank gets its own."""

    @staticmethod
    def forward(ctx, x, world, name):
        ctx.group = (world, name)
        return gather(x, world, name)

    @staticmethod
    def backward(ctx, gradient):
        return scatter(gradient.contiguous(), *ctx.group), None, None


class Scatter(torch.autograd.Function):
    """The rank's rows of the sum over the ranks."""

    @staticmethod
    def forward(ctx, x, world, name):
        ctx.group = (world, name)
        return scatter(x, world, name)

    @staticmethod
    def backward(ctx, gradient):
        return gather(gradient.contiguous(), *ctx.group), None, None


def gathered(x: torch.Tensor, world: int, name: str) -> torch.Tensor:
    return Gather.apply(x, world, name) if torch.is_grad_enabled() else gather(x, world, name)


def scattered(x: torch.Tensor, world: int, name: str) -> torch.Tensor:
    return Scatter.apply(x, world, name) if torch.is_grad_enabled() else scatter(x, world, name)


class OfGroup:
    """Collectives as the group has them."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.name, self.world = group, group.group_name, group.size()

    def row_product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, weight)
        dist.all_reduce(y, group=self.group)
        return y


class Symmetric(OfGroup):
    """All-reduces of torch's symmetric memory, by kernels without multicast. kind: one-shot and two-shot let products
    write into the symmetric buffer; copied: one-shot, which copies into it, in a form that inductor can compile."""

    def __init__(self, group: dist.ProcessGroup, kind: str, shape: tuple[int, int], dtype: torch.dtype):
        import torch.distributed._symmetric_memory as memory

        super().__init__(group)
        self.kind = kind
        self.buffer = memory.empty(*shape, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))
        memory.rendezvous(self.buffer, self.name)

    def row_product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.kind == "copied":
            y = F.linear(x, weight)
            return torch.ops.symm_mem.one_shot_all_reduce_copy(self.buffer, y, "sum", self.name)
        torch.mm(x, weight.t(), out=self.buffer)
        if self.kind == "one-shot":
            return torch.ops.symm_mem.one_shot_all_reduce(self.buffer, "sum", self.name)
        return torch.ops.symm_mem.two_shot_all_reduce_(self.buffer, "sum", self.name)


def base_of(way: str) -> str:
    return way.removesuffix("-graph")


def exists(way: str, problem, cuda: bool) -> bool:
    """Whether the way makes sense for the problem on the device; another one is left out."""
    base = base_of(way)
    if not cuda:
        return way in ("ark", "eager", "inductor")
    if base in REDUCES_ONLY:
        return problem.reduced is not None and problem.collectives
    return base != "inductor-symm" or problem.collectives


def without_rivals_of_gpus(ways: list[str]) -> list[str]:
    """Those that ranks can go which share a GPU: eager and inductor have Gloo there, which no CUDA graph can hold."""
    return [way for way in ways if base_of(way) == "ark" or way in ("eager", "inductor")]


def comm_of(base: str, problem, groups: dict[str, dist.ProcessGroup], dtype: torch.dtype) -> OfGroup:
    group = groups["ark" if base == "ark" else "rival"]
    if base in REDUCES_ONLY or (base == "inductor-symm" and problem.reduced):
        return Symmetric(group, "copied" if base == "inductor-symm" else base, problem.reduced, dtype)
    return OfGroup(group)


def pipelined(group: dist.ProcessGroup) -> dict[str, bool]:
    """The option by which inductor cuts products beside a collective into pieces, on symmetric memory."""
    import torch.distributed._symmetric_memory as memory

    if not memory.is_symm_mem_enabled_for_group(group.group_name):  # torch 2.11 still asks for it
        memory.enable_symm_mem_for_group(group.group_name)
    return {"_micro_pipeline_tp": True}


def called(
    base: str, problem, groups: dict[str, dist.ProcessGroup], dtype: torch.dtype, options: dict | None = None
) -> Callable[[], object]:
    """One call of the problem in this way, outside of a CUDA graph. `options`: ark's."""
    comm = comm_of(base, problem, groups, dtype)
    function = lambda *tensors: problem.function(comm, *tensors)
    if base == "ark":
        function = torch.compile(function, backend="ark", options=options, dynamic=False)
    elif base == "inductor":
        function = torch.compile(function, dynamic=False)
    elif base == "inductor-symm":
        options = {} if problem.reduced else pipelined(comm.group)
        function = torch.compile(function, options=options, dynamic=False)
    leaves = [t for t in problem.tensors if isinstance(t, torch.Tensor) and t.requires_grad]

    def call() -> list[torch.Tensor]:
        with torch.no_grad() if problem.gradient is None else contextlib.nullcontext():
            out = function(*problem.tensors)
        if problem.gradient is None:
            return [out]
        return [out.detach(), *torch.autograd.grad(out, leaves, problem.gradient)]

    return call
