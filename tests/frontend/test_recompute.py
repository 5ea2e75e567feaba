"""Arguments that the forward pass writes, and what the backward pass works out again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ark_torch.backend import ark


def read_then_written(buffer, w, x):
    old = buffer.clone()
    with torch.no_grad():
        buffer.mul_(0.5).add_(x.detach().mean(0))
    return (old * w).sum() + (w * x).sum()


def read_through_views(buffer, w, x):
    old = buffer.view(2, 3).t().exp()
    with torch.no_grad():
        buffer.view(2, 3)[0].add_(1)
    return (old.reshape(-1) * w).cos().sum() + (w * x).sum()


def read_through_parts(buffer, w, x):
    first, second = buffer.split(3)
    old = torch.cat([second.sin(), first.exp()])
    buffer.neg_()
    return (old * w * x).cos().sum()


def read_and_written(buffer, w, x):
    gate = torch.sigmoid(buffer * 3)
    buffer.add_(1)
    return (gate * w * x).sum() + (gate * gate * w).sum()


def written_then_read(buffer, w, x):
    with torch.no_grad():
        buffer.add_(1)
    return ((x * buffer).sin() * w).sum()


BODIES = [read_then_written, read_through_views, read_through_parts, read_and_written, written_then_read]


@pytest.mark.parametrize("body", BODIES)
def test_the_backward_pass_sees_what_the_forward_pass_read(executor, body):
    buffer, w, x = torch.randn(6), torch.randn(6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    compiled = torch.compile(body, backend=ark)
    mine, theirs = buffer.clone(), buffer.clone()
    for _ in range(2):
        actual = torch.autograd.grad(compiled(mine, w, x), [w, x])
        wanted = torch.autograd.grad(body(theirs, w, x), [w, x])
        torch.testing.assert_close(actual, wanted)
        torch.testing.assert_close(mine, theirs)


def test_a_written_argument_that_has_a_gradient(executor):
    """AOTAutograd writes it after the graph; autograd refuses to read it in the backward pass then."""

    def body(a, w):
        a = a * 1
        return compiled(a, w) + a.sum()

    def inner(a, w):
        z = a.exp().sin()
        a.mul_(2)
        return (z * w).sum()

    a, w = torch.randn(3, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    compiled = inner
    wanted = torch.autograd.grad(body(a, w), [a, w])
    compiled = torch.compile(inner, backend=ark)
    torch.testing.assert_close(torch.autograd.grad(body(a, w), [a, w]), wanted)


def test_spectral_norm(executor):
    """The power iteration reads the vectors that it writes."""
    module = nn.utils.spectral_norm(nn.Linear(6, 4))
    start = {name: value.clone() for name, value in module.state_dict().items()}
    x, results = torch.randn(3, 6), []
    for function in (module, torch.compile(module, backend=ark)):
        module.load_state_dict(start)
        module.zero_grad()
        for _ in range(2):
            function(x).square().sum().backward()
        results.append([module.weight_orig.grad.clone(), module.bias.grad.clone(), module.weight_u.clone()])
    torch.testing.assert_close(results[1], results[0])


VIEWS = {
    "of an argument": lambda x, w: (x.view(-1), (x.view(6, 4) @ w).sum()),
    "of a value": lambda x, w: ((h := x * 2).detach(), (h.view(6, 4) @ w).sum()),
    "of a view": lambda x, w: ((h := x * 2).view(6, 4), (h.permute(2, 0, 1).reshape(4, 6).t() @ w).sum()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_what_a_saved_view_shows_is_noticed(name):
    """The backward pass would read what was written."""
    w = torch.randn(4, 4, requires_grad=True)
    shown, loss = torch.compile(VIEWS[name], backend=ark)(torch.randn(2, 3, 4), w)
    shown.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_views_of_inference_tensors():
    compiled = torch.compile(lambda x: (x * 2, x.view(6, 4)[1:], (x + 1).transpose(0, 1)), backend=ark)
    with torch.inference_mode():
        x = torch.randn(2, 3, 4)
        inside = compiled(x)
    wanted = (x * 2, x.view(6, 4)[1:], (x + 1).transpose(0, 1))
    torch.testing.assert_close(inside, wanted)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), wanted)
    torch.testing.assert_close(compiled(x.clone()), wanted)
