"""ark_torch.train_loop: what a loop of eager steps leaves behind, in one launch."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ark_torch
from ark_torch.errors import Unsupported
from ark_torch.records import recording
from ark_torch.versions import minor
from tests.conftest import has_extension

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
STEPS, ROWS = 7, 8
optim = torch.optim


def distance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def make(norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    middle = nn.BatchNorm1d(24) if norm else nn.LayerNorm(24)
    return nn.Sequential(nn.Linear(12, 24), middle, nn.GELU(), nn.Linear(24, 4))


def small() -> nn.Module:
    """What compiles quickly, where a test is not of the model."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def data(steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(steps)
    return torch.randn(steps, ROWS, 12, generator=numbers), torch.randn(steps, ROWS, 4, generator=numbers)


def eagerly(model, optimizer, loss, batches, scheduler=None, max_norm=None) -> torch.Tensor:
    losses = []
    for batch in zip(*batches):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(value.detach().float())
    return torch.stack(losses)


def check(
    make_optimizer, model: nn.Module | None = None, make_scheduler=None, loss=distance, calls: int = 1, **options
):
    """Compares losses, parameters, buffers, the optimizer's state and learning rates after `calls` calls."""
    ours = make() if model is None else model
    theirs = copy.deepcopy(ours)
    optimizers = [make_optimizer(m) for m in (ours, theirs)]
    schedulers = [make_scheduler(o) if make_scheduler else None for o in optimizers]
    for call in range(calls):
        batches = tuple(x.to(next(ours.parameters()).device) for x in data(STEPS + call))
        strict = {"strict": True} | options
        got = ark_torch.train_loop(ours, optimizers[0], loss, batches, scheduler=schedulers[0], **strict)
        want = eagerly(theirs, optimizers[1], loss, batches, schedulers[1], options.get("max_norm"))
        torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-5)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=2e-4, atol=2e-5, msg=name)
        assert p.requires_grad == q.requires_grad
        check_states(optimizers[0].state.get(p), optimizers[1].state.get(q))
    for x, y in zip(ours.buffers(), theirs.buffers()):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for group in optimizers[0].param_groups for p in group["params"])
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    assert rates[0] == rates[1]


def check_states(ours, theirs) -> None:
    assert (ours is None) == (theirs is None)
    ours, theirs = ours or {}, theirs or {}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert ours[name].device == value.device and ours[name].dtype == value.dtype
            torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5, msg=name)


OPTIMIZERS = {
    "AdamW": lambda m: optim.AdamW(m.parameters(), lr=1e-2),
    "amsgrad": lambda m: optim.Adam(m.parameters(), lr=1e-2, amsgrad=True, weight_decay=0.1),
    "SGD": lambda m: optim.SGD(m.parameters(), lr=1e-2),
    "momentum": lambda m: optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "dampening": lambda m: optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, dampening=0.5),
    "RMSprop": lambda m: optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.5),
    "NAdam": lambda m: optim.NAdam(m.parameters()),
    "RAdam": lambda m: optim.RAdam(m.parameters()),
    "Adamax": lambda m: optim.Adamax(m.parameters()),
    "Adadelta": lambda m: optim.Adadelta(m.parameters()),
    "ASGD": lambda m: optim.ASGD(m.parameters()),
    "Rprop": lambda m: optim.Rprop(m.parameters()),
    "groups": lambda m: optim.AdamW(
        [{"params": m[0].parameters(), "lr": 1e-2, "weight_decay": 0.5}, {"params": m[-1].parameters()}], lr=1e-3
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_loop_of_eager_steps(name):
    """In ASGD the number of the step is stored behind what reads it, which small stores did not heed once."""
    check(OPTIMIZERS[name])


SCHEDULERS = {
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "warm-up": lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 4)),
}


@pytest.mark.parametrize("optimizer", ["AdamW", "momentum", "groups"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_learning_rates_of_a_scheduler(name, optimizer):
    check(OPTIMIZERS[optimizer], small(), SCHEDULERS[name], calls=2)


def test_clipped_gradients():
    check(OPTIMIZERS["SGD"], max_norm=0.05)
    check(OPTIMIZERS["AdamW"], small(), max_norm=0.05)


def test_buffers_of_a_batch_norm():
    check(OPTIMIZERS["momentum"], make(norm=True), calls=2)


def test_tied_frozen_and_unused_parameters():
    """Eager's optimizers leave alone what has no gradient, also where weights decay."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.unused = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
            self.last.weight = self.first.weight
            self.frozen = nn.Linear(12, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.frozen(self.last(torch.tanh(self.first(x))))

    torch.manual_seed(3)
    check(lambda m: optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.5), Tied())


def test_attention():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(12, 3 * 16)
            self.last = nn.Linear(16, 4)

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (2, 8)).transpose(0, 1)[None] for y in self.inner(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.last(y[0].transpose(0, 1).flatten(1))

    torch.manual_seed(3)
    check(OPTIMIZERS["momentum"], Reader())


def test_losses_of_any_arguments():
    """Of two calls of the model, another type, and what is no batch."""
    scale = torch.tensor(0.5)

    def loss(model, x, y):
        return (model(x).bfloat16().float() - y).abs().mean() + scale * model(x * 0.5).square().mean()

    check(OPTIMIZERS["SGD"], loss=loss)


def test_another_call_goes_on_and_compiles_nothing():
    check(OPTIMIZERS["AdamW"], calls=3)
    model = small()
    optimizer = OPTIMIZERS["AdamW"](model)
    with recording() as records:
        ark_torch.train_loop(model, optimizer, distance, data(), strict=True)
        assert sum(len(record.loops) for record in records) == 1 and not any(r.cause for x in records for r in x.loops)
    with recording() as records:
        optimizer.param_groups[0]["lr"] = 1e-4
        before = model[0].weight.clone()
        ark_torch.train_loop(model, optimizer, distance, data(), strict=True)
    assert len(records) <= 1  # another n, once
    assert 0 < (model[0].weight - before).abs().max() < STEPS * 2e-4
    with recording() as records:
        for steps in (STEPS, STEPS + 3):
            ark_torch.train_loop(model, optimizer, distance, data(steps), strict=True)
    assert not records


def test_another_setting_is_another_step():
    """What is traced as a constant, and the mode of the model."""
    model, theirs = (make(norm=True) for _ in range(2))
    optimizers = [OPTIMIZERS["momentum"](m) for m in (model, theirs)]
    for change in (lambda m, o: None, lambda m, o: o.param_groups[0].update(weight_decay=0.9), lambda m, o: m.eval()):
        for m, o in zip((model, theirs), optimizers):
            change(m, o)
        got = ark_torch.train_loop(model, optimizers[0], distance, data(), strict=True)
        torch.testing.assert_close(got, eagerly(theirs, optimizers[1], distance, data()), rtol=1e-4, atol=1e-5)


def test_dropout_follows_the_seed():
    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.Linear(64, 4))
        torch.manual_seed(seed)
        return ark_torch.train_loop(model, optim.SGD(model.parameters(), lr=0.0), distance, same, strict=True)

    same = tuple(x[:1].expand(20, -1, -1).contiguous() for x in data())
    first = run(1)
    assert torch.equal(run(1), first) and not torch.equal(run(2)[1:], first[1:])
    assert len(set(first.tolist())) == 20  # other masks in every step


def test_no_step_and_one_step():
    model = small()
    optimizer, before = OPTIMIZERS["AdamW"](model), copy.deepcopy(model.state_dict())
    empty = tuple(x[:0] for x in data())
    assert ark_torch.train_loop(model, optimizer, distance, empty).shape == (0,)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items()) and not optimizer.state
    one = tuple(x[:1] for x in data())
    assert ark_torch.train_loop(model, optimizer, distance, one, strict=True).shape == (1,)
    assert ark_torch.train_loop(model, optimizer, distance, one, strict=True).shape == (1,)
    assert optimizer.state[model[0].weight]["step"] == 2


def test_a_step_that_is_no_single_plan():
    """Convolutions with padding are ATen's."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(16, 4))
    with pytest.raises(Unsupported, match="convolution"):
        ark_torch.train_loop(model, OPTIMIZERS["SGD"](model), distance, data(), strict=True)
    check(OPTIMIZERS["SGD"], model, strict=False)


def test_gradients_that_were_there():
    model, theirs = small(), small()
    optimizers = [OPTIMIZERS["SGD"](m) for m in (model, theirs)]
    for m, o in zip((model, theirs), optimizers):
        distance(m, *(x[0] for x in data())).backward()
        run = eagerly if m is theirs else ark_torch.train_loop
        run(m, o, distance, data())
        distance(m, *(x[0] for x in data())).backward()
        run(m, o, distance, data())
    torch.testing.assert_close(model[0].weight, theirs[0].weight, rtol=1e-4, atol=1e-5)
    assert model[0].weight.grad is None


def test_a_state_that_was_reset():
    model, theirs = small(), small()
    optimizers = [OPTIMIZERS["momentum"](m) for m in (model, theirs)]
    fresh = copy.deepcopy(optimizers[0].state_dict())
    for m, o in zip((model, theirs), optimizers):
        run = eagerly if m is theirs else ark_torch.train_loop
        run(m, o, distance, data())
        o.load_state_dict(copy.deepcopy(fresh))
        run(m, o, distance, data())
    torch.testing.assert_close(model[0].weight, theirs[0].weight, rtol=1e-4, atol=1e-5)


def test_nothing_is_kept_without_the_optimizer():
    class User:
        def __init__(self):
            self.model = small()
            self.optimizer = OPTIMIZERS["SGD"](self.model)

        def loss(self, model, x, y):
            return distance(model, x, y)

    user = User()
    ark_torch.train_loop(user.model, user.optimizer, user.loss, data(), strict=True)
    gone = weakref.ref(user)
    del user
    torch.compiler.reset()
    gc.collect()
    assert gone() is None


class Counting(optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["momentum"] = min(0.9, group["momentum"] + 0.1)
        return super().step(closure)


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.inner(x)
        self.mean = self.mean * 0.9 + y.detach().mean(0)
        return y


def test_what_changes_beside_the_tensors_is_refused():
    for make_optimizer, make_scheduler, message in (
        (OPTIMIZERS["RMSprop"], SCHEDULERS["cosine"], "RMSprop.step takes no learning rates that change"),
        (OPTIMIZERS["momentum"], lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), "changes momentum"),
        (lambda m: Counting(m.parameters(), lr=0.1), lambda o: None, "Counting.step changes its parameter groups"),
    ):
        model = make()
        optimizer = make_optimizer(model)
        with pytest.raises(Unsupported, match=message):
            refused(model=model, optimizer=optimizer, scheduler=make_scheduler(optimizer))
    model = Replacing()
    with pytest.raises(Unsupported, match="replaces buffer 'mean'"):
        refused(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))


def test_a_rate_that_is_a_constant_may_be_another_in_another_call():
    model, theirs = small(), small()
    optimizers = [OPTIMIZERS["RMSprop"](m) for m in (model, theirs)]
    for rate in (1e-3, 3e-3, 1e-3):
        for o in optimizers:
            o.param_groups[0]["lr"] = rate
        got = ark_torch.train_loop(model, optimizers[0], distance, data(), strict=True)
        torch.testing.assert_close(got, eagerly(theirs, optimizers[1], distance, data()), rtol=1e-3, atol=1e-4)


def refused(**changes):
    model = make()
    given = dict(model=model, optimizer=OPTIMIZERS["SGD"](model), loss=distance, batches=data()) | changes
    return ark_torch.train_loop(**given)


def test_bad_input():
    with pytest.raises(TypeError, match=r"batches are \['Tensor', 'int'\], expected a tuple of tensors"):
        refused(batches=(data()[0], 3))
    with pytest.raises(TypeError, match="batches are Tensor"):
        refused(batches=data()[0])
    with pytest.raises(ValueError, match=r"batches are \[\[7, 8, 12\], \[6, 8, 4\]\], expected one n"):
        refused(batches=(data()[0], data()[1][:6]))
    with pytest.raises(ValueError, match=r"group 0 has a parameter \[24, 12\] that the model has not"):
        refused(model=make())
    with pytest.raises(ValueError, match=r"loss returned \[8, 4\], expected a tensor of one element"):
        refused(loss=lambda model, x, y: model(x) - y)
    model = make()
    with pytest.raises(Unsupported, match="LBFGS needs closures"):
        refused(model=model, optimizer=optim.LBFGS(model.parameters()))
    with pytest.raises(Unsupported, match="Adagrad.step reads values"):
        refused(model=model, optimizer=optim.Adagrad(model.parameters()))
    with pytest.raises(Unsupported, match="ReduceLROnPlateau"):
        optimizer = OPTIMIZERS["SGD"](model)
        refused(model=model, optimizer=optimizer, scheduler=optim.lr_scheduler.ReduceLROnPlateau(optimizer))


def language_model(device: str = "cpu") -> nn.Module:
    """Tables of tokens and positions, tied weights; the loss is the model's own, which tells its logger something."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval().to(device)  # without dropout


def own_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def check_language_model(device: str, steps: int) -> None:
    ours, theirs = language_model(device), language_model(device)
    tokens = torch.randint(0, 97, (steps, 3, 16), generator=torch.Generator().manual_seed(1)).to(device)
    adam = lambda model: optim.AdamW(model.parameters(), lr=1e-3)
    losses = ark_torch.train_loop(ours, adam(ours), own_loss, (tokens,), strict=True)
    torch.testing.assert_close(losses, eagerly(theirs, adam(theirs), own_loss, (tokens,)), rtol=1e-5, atol=1e-5)
    assert losses.isfinite().all()


@pytest.mark.skipif(minor(torch.__version__) < (2, 13), reason="older Dynamo refuses what transformers' models set")
def test_a_language_model_with_tied_weights_is_one_launch():
    check_language_model("cpu", 30)
