"""options={"fallback_random": True}: eager's random numbers, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from ark_torch.records import recording

OPTIONS = {"fallback_random": True, "strict": True}
BODIES = {
    "rand": lambda x: torch.rand(4, 100) + x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn": lambda x: (torch.randn(100) * x, torch.randn_like(x)),
    "rand, then randn": lambda x: torch.rand(100) * x + torch.randn(4, 100),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "dropout": lambda x: F.dropout(x.sin(), 0.3) + 1,
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout in place": lambda x: F.dropout(x.sin(), 0.3, True, True) + 1,
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.1) @ x.T, 0.2),
    "dropout, transposed": lambda x: F.dropout(x.view(4, 5, 20).transpose(0, 1).sin(), 0.3),
    "dropout in place, transposed": lambda x: F.dropout(x.view(4, 5, 20).transpose(0, 2).sin(), 0.3, True, True),
    "dropout of an expanded one": lambda x: F.dropout(x[:, None].expand(4, 3, 100), 0.3),
    "dropout of a number": lambda x: F.dropout(x.sum(), 0.3),
    "dropout of channels": lambda x: F.dropout1d(x.view(4, 5, 20), 0.3),
    "dropout of channels, transposed": lambda x: F.dropout1d(x.view(4, 5, 20).transpose(1, 2), 0.3),
    "dropout of channels in place": lambda x: F.dropout1d((x * 2).view(4, 5, 20).transpose(0, 1), 0.3, True, True),
    "bernoulli in place": lambda x: (x * 2).bernoulli_(0.3),
    "no dropout": lambda x: F.dropout(x, 0.3, training=False) * 2,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 4, 10, 10)] * 3, dropout_p=0.2),
}


EXACT = (
    "rand",
    "rand_like",
    "randn",
    "rand, then randn",
    "dropout of all",
    "no dropout",
)  # the others ark computes too


@pytest.mark.parametrize("what", BODIES)
def test_numbers_are_eagers(what):
    x, body = torch.randn(4, 100), BODIES[what]
    compiled = torch.compile(body, backend=ark, options=OPTIONS)
    tolerance = 0 if what in EXACT else 1e-5
    for seed in (0, 7):
        torch.manual_seed(seed)
        expected = body(x)
        after = torch.rand(3)
        torch.manual_seed(seed)
        actual = compiled(x)
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        if isinstance(actual, torch.Tensor):
            assert torch.equal(actual == 0, expected == 0)  # the masks
        assert torch.equal(torch.rand(3), after)  # as many numbers were drawn


def test_without_it_the_numbers_are_arks():
    torch.manual_seed(0)
    expected = torch.rand(100)
    torch.manual_seed(0)
    assert not torch.equal(torch.compile(lambda: torch.rand(100), backend=ark)(), expected)


def test_training_with_dropout():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    x, results = torch.randn(8, 16), []
    for function in (model, torch.compile(model, backend=ark, options=OPTIONS)):
        torch.manual_seed(3)
        out = function(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer])
def test_layers_of_torch(layer):
    """Rows first, attention's result is a transposed view: dropout draws in the order of memory."""
    model, x = layer(16, 2, 32, dropout=0.2, batch_first=True), torch.randn(2, 5, 16)
    inputs, results = [x] * (2 if layer is torch.nn.TransformerDecoderLayer else 1), []
    for function in (model, torch.compile(model, backend=ark, options={"fallback_random": True})):
        torch.manual_seed(1)
        results.append(function(*inputs))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_what_draws_is_no_fallback():
    with recording() as records:
        torch.compile(lambda x: torch.rand_like(x) + x.sin(), backend=ark, options=OPTIONS)(torch.randn(100))
    (record,) = records
    assert record.num_aten == 1 and not record.fallbacks and record.segments
