"""The step of `ark_torch.train_loop`: gradients by torch.func, which Dynamo traces, and the optimizer's own `step`,
traced by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn

from ark_torch._compat import without_messages
from ark_torch.errors import Unsupported
from ark_torch.looped import run_loop
from ark_torch.optimizer_steps import State, Update, settings_of, store_values

_MOST_TRAINERS = 8  # of one optimizer


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
        buffers = dict(model.named_buffers())
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.first = _eager_step(model, optimizer, loss, batch, max_norm)
        for name, x in model.named_buffers():
            if x is not buffers.get(name):
                raise Unsupported(f"train_loop: the forward pass replaces buffer {name!r} (native: it writes there)")
        own = {p: f"model.{name}" for name, p in model.named_parameters()}
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.names = [own[p] for p in self.parameters]
        optimizer.zero_grad()
        state = State(optimizer, self.parameters)
        self.states = state.names
        self.module, self.step = _Loss(model, loss), Step()
        self.update = Update(optimizer, self.parameters, max_norm)
        self.update.traced(optimizer, state, [rates], batch[0].device)

    def fits(self, optimizer) -> bool:
        """Whether the optimizer has the state that the first step left."""
        return State(optimizer, self.parameters).names == self.states

    def run(self, optimizer, batches: list[torch.Tensor], rows: list[list[float]], strict: bool) -> torch.Tensor:
        """The losses of n steps, float32 [n]; `rows` are learning rates, [n][groups]."""
        state = State(optimizer, self.parameters)
        rates = torch.tensor(rows, dtype=torch.float32, device=batches[0].device)
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
        lent.update = self.update.traced(optimizer, state, rows, rates.device)
        try:
            with without_messages():  # the first step, eager's, has told them
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


def _learning_rates(optimizer, scheduler, n: int) -> list[list[float]]:
    """[n][groups]; the scheduler has made its n steps then."""
    rates, settings = [], [settings_of(group) for group in optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scheduler's steps come before the optimizer's
        for _ in range(n):
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            if scheduler is not None:
                scheduler.step()
    if [settings_of(group) for group in optimizer.param_groups] != settings:
        raise Unsupported(f"train_loop: {type(scheduler).__name__} changes more than learning rates")
    return rates


def _key(model: nn.Module, optimizer, loss: Callable, max_norm: float | None) -> tuple:
    """What the traced step takes for granted."""
    groups = tuple((*map(id, group["params"]), *settings_of(group)) for group in optimizer.param_groups)
    training = tuple(module.training for module in model.modules())
    parameters = tuple((p.requires_grad, p.dtype, p.device, p.shape) for p in model.parameters())
    return id(model), loss, max_norm, training, parameters, groups


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
    if getattr(scheduler, "cycle_momentum", False):
        raise Unsupported(f"train_loop: {type(scheduler).__name__} changes momentum (native: cycle_momentum=False)")
    own = set(model.parameters())
    for place, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p not in own:
                raise ValueError(f"train_loop: group {place} has a parameter {list(p.shape)} that the model has not")


def run_training(model, optimizer, loss: Callable, batches, scheduler, max_norm, strict: bool) -> torch.Tensor:
    _check(model, optimizer, batches, scheduler)
    n, losses, begin = batches[0].size(0), [], 0
    if n == 0:
        return torch.zeros(0, device=batches[0].device)
    # The optimizer's own: what a loss refers to may refer to it.
    trainers = optimizer.__dict__.setdefault("_ark_trainers", {})
    key = _key(model, optimizer, loss, max_norm)
    if key not in trainers or not trainers[key].fits(optimizer):
        trainers.pop(key, None)
        trainer = Trainer(model, optimizer, loss, max_norm, [x[0] for x in batches])
        trainers[key] = trainer
        if len(trainers) > _MOST_TRAINERS:
            del trainers[next(iter(trainers))]
        losses.append(trainer.first)
        begin = 1
    if scheduler is not None and trainers[key].update.constant_rates is not None:
        raise Unsupported(f"train_loop: {type(optimizer).__name__}.step takes no learning rates that change")
    if scheduler is not None and begin == 1:
        scheduler.step()
    if begin < n:
        rows = _learning_rates(optimizer, scheduler, n - begin)
        losses.append(trainers[key].run(optimizer, [x[begin:] for x in batches], rows, strict))
    optimizer.zero_grad()
    return torch.cat(losses)


__all__ = ["run_training"]
