"""The c10d backend `ark`: `torch.distributed.init_process_group("ark")`, also as a part: `"cuda:nccl,cpu:ark"`.

CPU tensors go through shared memory between the processes of one host. CUDA tensors go through kernels that write into
the memory of the other GPUs of the host, on the caller's stream (asynchronous calls: on a stream of the group). What
ark does not do (other reductions and types than its own, groups over more than 8 ranks) goes to NCCL, all-reduces of
sparse CPU tensors to Gloo: `delegated_calls()` counts it, and the first call of each kind is logged as a warning.

The time-out of a call on a GPU, messages included, runs from when its kernel begins to wait, even if the other rank
cannot answer yet: who posts receives long ahead gives the group a long one. That of a message on the host runs from
when somebody waits for it.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from ark_torch import _C

_delegated = _C.DelegatedCalls()  # of all groups of this process, also those that have gone
_group_options: dict = {}  # of groups made from now on; set by tests


def _nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object | None:
    """An NCCL backend for CUDA tensors, or None where there is no GPU or no NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def create(options: object, _backend_options: object = None) -> object:
    """The backend of this rank. Called for torch.distributed (ark_autoload.py), with DistributedBackendOptions."""
    _C.check_environment()
    return _C.ProcessGroupArk(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        name=str(options.group_id),
        make_nccl=_nccl,
        make_gloo=_gloo if dist.is_gloo_available() else None,
        delegated=_delegated,
        cuda=torch.cuda.is_available(),
        **_group_options,
    )


def delegated_calls() -> dict[str, int]:
    """Operation -> how often it was handed to NCCL or Gloo, over all groups of this process."""
    return _delegated.counts()


def backend_of(group: dist.ProcessGroup | None = None) -> object:
    """ark's backend object of a process group (the default group if None)."""
    group = group or dist.distributed_c10d._get_default_group()
    for device in ("cuda", "cpu"):
        try:
            backend = group._get_backend(torch.device(device))
        except RuntimeError:
            continue
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, _C.ProcessGroupArk):
            return backend
    raise ValueError("the process group has no backend ark")


def empty(
    *size: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """A tensor in memory that all ranks of the group have mapped: collectives on it, or on parts of it, work in place.

    Collective: every rank of the group calls it with the same sizes, and later passes tensors of the same call to a
    collective (to all_to_all_single: all ranks with splits, or all without). In the default group if `group` is None.
    Of a device other than CUDA it is ordinary memory.
    """
    sizes = list(size[0]) if len(size) == 1 and not isinstance(size[0], int) else list(size)
    dtype = dtype or torch.get_default_dtype()
    place = torch.device("cuda" if device is None and torch.cuda.is_available() else device or "cpu")
    if place.type != "cuda":
        return torch.empty(sizes, dtype=dtype, device=place)
    if place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    return backend_of(group).empty(sizes, dtype, place)


class Registration:
    """What `register` returns: the tensor's memory stays mapped on all ranks until `close`, or the end of a `with`."""

    def __init__(self, backend: object, number: int) -> None:
        self._backend, self._number = backend, number

    def close(self) -> None:
        """Waits for the device. Every rank closes for itself, when its collectives on the memory have ended."""
        if self._backend is not None:
            self._backend.deregister(self._number)
            self._backend = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def register(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> Registration:
    """Maps an existing CUDA tensor on all ranks of the group, so that collectives on it work in place, as of `empty`.

    Collective. The memory has to come from cudaMalloc, as that of torch's allocator does unless it is told to use
    expandable segments. It is kept alive until the registration is closed.
    """
    backend = backend_of(group)
    return Registration(backend, backend.register(tensor))


def check(group: dist.ProcessGroup | None = None) -> None:
    """Raises DeviceError if a CUDA collective of the group has failed (a rank that did not come, ranks that disagree).

    Never blocks. The next collective of the group and Work.wait() do the same; after torch.cuda.synchronize() this says
    whether all results are valid.
    """
    backend_of(group).poll()
