"""What `import torch` calls at its end (the entry point torch.backends): the process group backend "ark" is known by
its name, and ark_torch is imported when a group is made. Not in ark_torch, whose import brings the extension."""

from __future__ import annotations


def _create(options: object, backend_options: object = None) -> object:
    """Called by torch.distributed for the first group of this backend, and every other."""
    from ark_torch import distributed

    return distributed.create(options, backend_options)


def register() -> None:
    """Makes torch.distributed know the backend; idempotent. `TORCH_DEVICE_BACKEND_AUTOLOAD=0` makes torch leave it out
    until ark_torch is imported."""
    import torch
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "ARK"):
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        dist.Backend.register_backend("ark", _create, extended_api=True, devices=devices)
