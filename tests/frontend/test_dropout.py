"""Dropout: the numbers are Philox's, the mask has the right statistics, forward and backward use the same one, and the
gradients are those of the mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ark_torch.segment
from ark_torch.backend import ark
from tests.conftest import has_extension, use_reference

pytest.importorskip("transformers")  # dropout_noise needs it
from tests.frontend.test_models import bert_batch, relative_error, small_bert, train
from tests.support.dropout_noise import check_gradients_scatter_as_in_eager
from tests.support.graph_builder import GraphBuilder
from tests.support.reference_eval import philox_uniform

STRICT = {"strict": True}


def test_reference_has_the_published_numbers():
    """The known answer of Philox4x32-10 for a key and a counter of zeros."""
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox_uniform(0, 0, 4).tolist() == [(w >> 8) / 2**24 for w in words]


@pytest.mark.parametrize("sizes", [[1], [37, 129], [3, 5, 7]])
@pytest.mark.parametrize("seed, stream", [(0, 0), (2**62 + 123, 5), (-7, 2**40)])
def test_rand_is_philox_over_the_linear_index(executor, sizes, seed, stream):
    g = GraphBuilder("noise")
    inputs = [g.input(name, [], torch.int64) for name in ("seed", "stream")]
    text = g.returns(g.node("rand", inputs, g.value("noise", sizes)))
    graph = ark_torch.segment.make_executable(text, "host", 0, {})
    (noise,) = graph([torch.tensor(seed), torch.tensor(stream)])
    assert torch.equal(noise.flatten(), philox_uniform(seed, stream, noise.numel()))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keep_rate_scale_and_independence(executor, p, dtype):
    rows, columns = 500, 401
    x = torch.full((rows, columns), 3.0, dtype=dtype)
    call = torch.compile(lambda x: (F.dropout(x, p), F.dropout(x, p)), backend=ark, options=STRICT)
    (first, second), (later, _) = call(x), call(x)
    keep = 1 - p
    for out in (first, second, later):
        kept = (out != 0).double()
        sigma = (keep * p / kept.numel()) ** 0.5
        assert abs(kept.mean() - keep) < 5 * sigma
        # the means of rows and of columns scatter as independent draws do
        for dim, count in ((0, rows), (1, columns)):
            assert 0.8 < kept.mean(dim).std() / (keep * p / count) ** 0.5 < 1.25
        torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 3.0 / keep), rtol=1e-2, atol=0)
        if dtype == torch.float32:
            torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 3.0 / keep), rtol=2e-7, atol=0)
    # neighbours, the two ops of a call and two calls agree as often as chance has it
    masks = [(out != 0).double() for out in (first, second, later)]
    pairs = [(masks[0], masks[1]), (masks[0], masks[2]), (masks[0][:, 1:], masks[0][:, :-1])]
    pairs.append((masks[0][1:], masks[0][:-1]))
    for a, b in pairs:
        sigma = keep * p / a.numel() ** 0.5
        assert abs(((a - keep) * (b - keep)).mean()) < 5 * sigma


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_ends_of_the_range(executor, p):
    x = torch.randn(20, 30, requires_grad=True)
    out = torch.compile(lambda x: F.dropout(x, p), backend=ark)(x)
    assert torch.equal(out, x if p == 0 else torch.zeros_like(x))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x) if p == 0 else torch.zeros_like(x))


class Block(nn.Module):
    """A feed-forward block with dropout in three places. `drop(tensor, place)` does the dropping."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 96), nn.Linear(96, 64), nn.LayerNorm(64)

    def forward(self, x, drop):
        h = drop(F.gelu(self.up(drop(x, 0))), 1)
        return self.norm(x + drop(self.down(h), 2)).square().mean(0)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_those_of_the_mask(executor, p, autocast):
    """Forward and backward against fp64 fed with the masks that ark drew, beside eager fed with the same."""
    block, x = Block(), torch.randn(130, 64, requires_grad=True)

    def dropped(x):
        seen = []

        def drop(t, place):
            seen.append(F.dropout(t, p))
            return seen[-1]

        return block(x, drop), [t.detach() for t in seen]

    def given(module, x, masks):
        return module(x, lambda t, place: t * masks[place].to(t.dtype) * (1 / (1 - p)))

    def gradients(out, module, x):
        weights = torch.linspace(-1, 2, 64, dtype=out.dtype)
        return [out, *torch.autograd.grad((out * weights).sum(), [x, *module.parameters()])]

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out, seen = torch.compile(dropped, backend=ark, options=STRICT)(x)
    masks = [t != 0 for t in seen]
    assert all(abs(m.float().mean() - (1 - p)) < 0.05 for m in masks)
    mine = gradients(out, block, x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        eager = gradients(given(block, x, masks), block, x)
    wide, wide_x = Block().double(), x.detach().double().requires_grad_()
    wide.load_state_dict({name: value.double() for name, value in block.state_dict().items()})
    exact = gradients(given(wide, wide_x, masks), wide, wide_x)
    for a, b, c in zip(mine, eager, exact):
        error, limit = relative_error([a], [c]), 1.5 * relative_error([b], [c]) + 1e-6
        assert error <= limit, (error, limit)


@pytest.mark.skipif(not has_extension(), reason="the extension is not built")
@pytest.mark.parametrize("autocast, limit", [(False, 1e-5), (True, 1.5e-2)])
def test_bert_with_dropout_equals_the_reference(monkeypatch, autocast, limit):
    """Dropout in embeddings, attention and hidden states: with one seed plan and reference evaluator draw the same
    numbers, so loss and gradients agree to rounding."""
    results = []
    for reference in (False, True):
        if reference:
            use_reference(monkeypatch)
        torch._dynamo.reset()
        model = small_bert(0.1)
        torch.manual_seed(5)
        batch = bert_batch(False)
        torch.manual_seed(3)
        results.append(train(model, torch.compile(model, backend=ark), batch, autocast))
    names = ["loss"] + [name for name, p in model.named_parameters() if p.grad is not None]
    for name, mine, theirs in zip(names, *results):
        if not name.endswith("key.bias"):  # zero but for rounding: softmax does not see it
            assert relative_error([mine], [theirs]) <= limit, name


def test_gradients_scatter_over_masks_as_in_eager():
    if not has_extension():
        pytest.skip("needs the extension")
    torch._dynamo.reset()
    check_gradients_scatter_as_in_eager("cpu", layers=2, hidden=128, batch=4, sequence=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keep_rate_is_not_rounded_to_the_type(dtype):
    if not has_extension():
        pytest.skip("needs the extension")
    torch._dynamo.reset()
    p, n = 0.1, 2_000_000
    out = torch.compile(lambda x: F.dropout(x, p), backend=ark, options=STRICT)(torch.ones(n, dtype=dtype))
    assert abs((out != 0).double().mean() - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
