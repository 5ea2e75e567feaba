"""The step of `ark_torch.train_loop`: gradients by torch.func, which Dynamo traces, and the optimizer's own `step`,
traced by itself."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import torch
from torch import nn

from ark_torch.errors import Unsupported
from ark_torch.looped import run_loop
from ark_torch.optimizer_steps import State, Update, store_values

_trainers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # optimizer -> key -> Trainer


class _Loss(nn.Module):
    """A module whose parameters are the model's, so that `functional_call` takes a function of the model."""

    def __init__(self, model: nn.Module, loss: Callable):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch):
        return self.loss(self.model, *batch)


class Lent:
    """What a step has while a loop runs. Not the step's own attributes: torch.compile copies those, and keeps them."""

    loss = batches = rates = update = None


class Step:
    """One training step. `rates` [n, groups] are learning rates, `update` is the optimizer's traced step."""

    def __init__(self):
        self.lent = Lent()

    def __call__(self, i, losses, trained, buffers, states):
        lent, at = self.lent, i.reshape(1)
        batch = [x.index_select(0, at).squeeze(0) for x in lent.batches]

        def value_of(trained):
            own = {name: x.clone() for name, x in buffers.items()}
            value = torch.func.functional_call(lent.loss, ({**trained, **own},), tuple(batch))
            return value.reshape(()), own

        gradients, (value, buffers) = torch.func.grad_and_value(value_of, has_aux=True)(trained)
        rates = lent.rates.index_select(0, at).squeeze(0)
        names = list(trained)
        new, states = lent.update([trained[k] for k in names], [gradients[k] for k in names], states, rates)
        losses = losses.index_copy(0, at, value.detach().float().reshape(1))
        return i + 1, losses, dict(zip(names, new)), buffers, states


class Trainer:
    """What is traced for one model, optimizer and loss. Its first step, in eager mode, makes the optimizer's state and
    tells which parameters have gradients: eager leaves the others alone."""

    def __init__(self, model: nn.Module, optimizer, loss: Callable, max_norm: float | None, batch: list):
        self.first = _eager_step(model, optimizer, loss, batch, max_norm)
        own = {p: f"model.{name}" for name, p in model.named_parameters()}
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.names = [own[p] for p in self.parameters]
        optimizer.zero_grad()
        self.module, self.step = _Loss(model, loss), Step()
        self.update = Update(optimizer, self.parameters, max_norm)

    def run(self, optimizer, batches: list[torch.Tensor], rates: torch.Tensor, strict: bool) -> torch.Tensor:
        """The losses of n steps, float32 [n]."""
        state = State(optimizer, self.parameters)
        values = [p.detach() for p in self.parameters]
        buffers = {f"model.{name}": x for name, x in self.module.model.named_buffers()}
        carry = (
            torch.zeros((), dtype=torch.int64, device=rates.device),
            rates.new_zeros(rates.size(0)),
            dict(zip(self.names, values)),
            buffers,
            state.tensors,
        )
        lent = self.step.lent
        lent.loss, lent.batches, lent.rates = self.module, batches, rates
        lent.update = self.update.traced(optimizer, state, rates)
        try:
            results = run_loop(self.step, rates.size(0), carry, None, strict, in_place=True)
        finally:
            lent.loss = lent.batches = lent.rates = lent.update = None
        _, losses, trained, new_buffers, states = results
        with torch.no_grad():
            store_values(values, [trained[name] for name in self.names])
            store_values(list(buffers.values()), [new_buffers[name] for name in buffers])
            state.store(states)
        return losses


def _eager_step(model, optimizer, loss: Callable, batch: list, max_norm: float | None) -> torch.Tensor:
    """The loss, float32 [1]. Leaves the gradients."""
    optimizer.zero_grad()
    with torch.enable_grad():
        value = loss(model, *batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(f"train_loop: loss returned {found}, expected a tensor of one element")
        value.reshape(()).backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_norm)
    optimizer.step()
    return value.detach().float().reshape(1)


def _learning_rates(optimizer, scheduler, n: int, device: torch.device) -> torch.Tensor:
    """float32 [n, groups]; the scheduler has made its n steps then."""
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scheduler's steps come before the optimizer's
        for _ in range(n):
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            if scheduler is not None:
                scheduler.step()
    return torch.tensor(rates, dtype=torch.float32, device=device)


def _key(model: nn.Module, optimizer, loss: Callable, max_norm: float | None) -> tuple:
    """What the traced step has for granted."""
    groups = [
        (
            len(group["params"]),
            *sorted((k, repr(v)) for k, v in group.items() if k not in ("params", "lr", "initial_lr")),
        )
        for group in optimizer.param_groups
    ]
    training = tuple(module.training for module in model.modules())
    taught = tuple(p.requires_grad for p in model.parameters())
    return id(model), loss, max_norm, training, taught, tuple(groups)


def _check(model: nn.Module, optimizer, batches, scheduler) -> None:
    if not isinstance(batches, (tuple, list)) or not batches or not all(isinstance(x, torch.Tensor) for x in batches):
        found = [type(x).__name__ for x in batches] if isinstance(batches, (tuple, list)) else type(batches).__name__
        raise TypeError(f"train_loop: batches are {found}, expected a tuple of tensors [n, ...]")
    if any(x.dim() == 0 or x.size(0) != batches[0].size(0) for x in batches):
        raise ValueError(f"train_loop: batches are {[list(x.shape) for x in batches]}, expected one n as first size")
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise Unsupported(f"train_loop: {type(optimizer).__name__} needs closures or sparse gradients")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise Unsupported("train_loop: ReduceLROnPlateau looks at a metric of each step")
    own = set(model.parameters())
    for place, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p not in own:
                raise ValueError(f"train_loop: group {place} has a parameter {list(p.shape)} that the model has not")


def run_training(model, optimizer, loss: Callable, batches, scheduler, max_norm, strict: bool) -> torch.Tensor:
    _check(model, optimizer, batches, scheduler)
    n, losses = batches[0].size(0), []
    if n == 0:
        return torch.zeros(0, device=batches[0].device)
    trainers, key, begin = _trainers.setdefault(optimizer, {}), _key(model, optimizer, loss, max_norm), 0
    if key not in trainers:
        trainers[key] = Trainer(model, optimizer, loss, max_norm, [x[0] for x in batches])
        losses.append(trainers[key].first)
        begin = 1
        if scheduler is not None:
            scheduler.step()
    if begin < n:
        rates = _learning_rates(optimizer, scheduler, n - begin, batches[0].device)
        losses.append(trainers[key].run(optimizer, [x[begin:] for x in batches], rates, strict))
    return torch.cat(losses)


__all__ = ["run_training"]
