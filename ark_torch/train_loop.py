"""`ark_torch.train_loop`: n training steps of a model and a torch optimizer, in one launch where they are one plan."""

from __future__ import annotations

from collections.abc import Callable

import torch


def train_loop(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable,
    batches: tuple,
    *,
    scheduler=None,
    max_norm: float | None = None,
    strict: bool = False,
) -> torch.Tensor:
    """Trains for n steps, and returns their losses, float32 [n]. What is left behind is what this leaves:

        for batch in zip(*batches):
            optimizer.zero_grad()
            value = loss(model, *batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(parameters_of_the_optimizer, max_norm)  # where max_norm is given
            optimizer.step()
            scheduler.step()  # where there is one

    `batches` is a tuple of tensors [n, ...] on the model's device; `loss` returns a tensor of one element. Parameters,
    buffers and the optimizer's state are written where they lie; gradients of the optimizer's parameters are None
    afterwards.

    The first step of the first call is eager's: it makes the optimizer's state and tells which parameters have
    gradients. All other steps are the iterations of one `ark_torch.loop`. `loss` and `optimizer.step` are traced once
    and kept with the optimizer, the last 8 of them, and the model with them. Another `loss` (pass the same function
    each time, no new lambda), other settings of the optimizer, a state that was reset, parameters of other types, or a
    model that changes between training and evaluation are traced anew, with another first step.

    Learning rates are data, but for optimizers that read their values (RMSprop, Muon): there another rate is traced
    anew, and schedulers are refused. Optimizers run as `capturable=True, foreach=False`: their numbers of steps are
    tensors, and bias corrections are float32. Hooks of modules are traced; hooks of the optimizer and of gradients run
    in the first step alone. `scheduler.step()` is called n times before the launch, so it may depend on the number of
    the step alone.

    Where the step is no single plan it is called once per iteration, logged with the cause (see `ark_torch.loop`);
    under `strict` that is an error.

    Raises TypeError for batches that are no tuple of tensors; ValueError for tensors of different lengths, a parameter
    of the optimizer that is none of the model's, a loss of more than one element; ark_torch.Unsupported for closures,
    sparse gradients, schedulers that look at a metric or change more than learning rates, and, found after the first
    step, which stays made, for optimizers whose step needs values on the CPU or changes its own settings and for
    buffers that the forward pass replaces.
    """
    from ark_torch.training import run_training  # brings Dynamo with it

    return run_training(model, optimizer, loss, batches, scheduler, max_norm, strict)


__all__ = ["train_loop"]
