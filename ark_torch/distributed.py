"""The c10d backend `ark`: `torch.distributed.init_process_group("ark")`, also as a part: `"cuda:nccl,cpu:ark"`.

CPU tensors go through shared memory between the processes of one host. CUDA tensors go to NCCL for now;
`delegated_calls()` counts them, and the first one of each group is logged.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import torch
import torch.distributed as dist

from ark_torch import _C

logger = logging.getLogger("ark")
_groups: list = []


def _nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object | None:
    """An NCCL backend for CUDA tensors, or None where there is no GPU or no NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(dist.PrefixStore("ark-nccl", store), rank, size, options)


def _create(options: object, _backend_options: object = None) -> object:
    """Called by torch.distributed with c10d's DistributedBackendOptions; returns the backend of this rank."""
    cuda = _nccl(options.store, options.group_rank, options.group_size, options.timeout)
    if cuda is not None:
        logger.warning("process group %s: CUDA tensors go to NCCL", options.group_id)
    group = _C.ProcessGroupArk(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        name=str(options.group_id),
        cuda_backend=cuda,
    )
    _groups.append(group)
    return group


def delegated_calls() -> dict[str, int]:
    """Operation -> how often it was handed to NCCL, over all groups of this process."""
    total: dict[str, int] = {}
    for group in _groups:
        for name, count in group.delegated().items():
            total[name] = total.get(name, 0) + count
    return total


def register() -> None:
    """Makes torch.distributed know the backend; idempotent, called when ark_torch is imported."""
    if dist.is_available() and not hasattr(dist.Backend, "ARK"):
        dist.Backend.register_backend("ark", _create, extended_api=True, devices=["cpu", "cuda"])
