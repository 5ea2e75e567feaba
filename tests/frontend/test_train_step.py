"""A whole step of training as one compiled function, and the optimizer's step alone; backward passes by compiled
autograd."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import compiled_autograd

from ark_torch.backend import ark
from ark_torch.records import recording

STEPS, STRICT = 4, {"strict": True}
OPTIMIZERS = {
    "SGD": dict(lr=0.1),
    "SGD momentum": dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": dict(lr=1e-2),
    "AdamW amsgrad": dict(lr=1e-2, amsgrad=True),
    "Adam tensor lr": dict(lr=torch.tensor(1e-2)),
    "Adagrad": dict(lr=1e-2),
}
FORMS = {"default": {}, "for each": dict(foreach=False), "foreach": dict(foreach=True), "fused": dict(fused=True)}
COMBINATIONS = [(name, form) for name in ("SGD momentum", "AdamW") for form in FORMS]
COMBINATIONS += [(name, "default") for name in ("SGD", "AdamW amsgrad", "Adam tensor lr", "Adagrad")]


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def optimizer_of(model: nn.Module, name: str, form: str) -> torch.optim.Optimizer:
    return getattr(torch.optim, name.split()[0])(model.parameters(), **OPTIMIZERS[name], **FORMS[form])


def train(model, optimizer, wrap_step=lambda f: f, wrap_update=lambda f: f) -> list[torch.Tensor]:
    """Losses, then parameters; what is compiled is up to the two functions."""
    update = wrap_update(optimizer.step)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        update()
        return loss.detach()

    step = wrap_step(step)
    generator = torch.Generator().manual_seed(1)
    losses = [
        step(torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(STEPS)
    ]
    return losses + [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("what", ["wrap_step", "wrap_update"], ids=["whole step", "update"])
@pytest.mark.parametrize("name, form", COMBINATIONS)
def test_losses_and_parameters_are_those_of_eager(executor, name, form, what):
    model = build()
    wanted = train(model, optimizer_of(model, name, form))
    model = build()
    optimizer = optimizer_of(model, name, form)
    with recording() as records:
        actual = train(model, optimizer, **{what: functools.partial(torch.compile, backend=ark, options=STRICT)})
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)
    kinds = {r.kind for r in records}
    if what == "wrap_step":
        assert {"forward", "backward"} <= kinds
    elif form == "fused":
        assert kinds == set()  # Dynamo leaves the fused update to ATen
    else:
        assert kinds == {"inference"}


def gradients(model, x, call) -> list[torch.Tensor]:
    model.zero_grad()
    call(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("forward", ["eager", "compiled"])
def test_compiled_autograd(executor, forward, dynamic):
    model = build()
    compiler = functools.partial(torch.compile, backend=ark, options=STRICT)
    call = compiler(model) if forward == "compiled" else model
    with recording() as records:
        for rows in (6, 6, 9):
            x = torch.randn(rows, 16)
            wanted = gradients(model, x, model)
            with compiled_autograd._enable(compiler, dynamic=dynamic):
                actual = gradients(model, x, call)
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    assert "inference" in {r.kind for r in records}  # the graph of the whole backward pass


@torch._dynamo.config.patch(compiled_autograd=True)
def test_compiled_autograd_by_its_setting(executor):
    """Inside a compiled function torch compiles backward passes by the function's own backend."""
    model, seen = build(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))

    @torch.compile(backend=ark)
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    for rows in (6, 9):
        x = torch.randn(rows, 16)
        wanted = gradients(model, x, model)
        model.zero_grad()
        seen.clear()
        with recording() as records:
            step(x)
        torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-5)
        assert len(seen) == len(wanted)
        assert records and not any(r.internal_errors for r in records)
