"""torch.nn's multi-head layers: attention stays whole inside them, and the results are eager's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ark_torch.backend import ark
from ark_torch.records import recording
from tests.conftest import EXECUTORS

CAUSAL = nn.Transformer.generate_square_subsequent_mask(10)
PADDING = torch.arange(10) >= torch.tensor([[10], [6], [1]])
BIAS = torch.linspace(-2, 2, 100).reshape(10, 10)


def ops_of(records) -> list[str]:
    return [str(n.target) for r in records for s in r.segments for n in s.nodes]


def check(module, *inputs, train=False, whole=True, num_attentions=1, **kwargs):
    """Against eager; in training mode with the gradients of inputs and parameters."""
    module.train(train)
    inputs = [x.clone().requires_grad_(train) for x in inputs]

    def run(call):
        out = call(*inputs, **kwargs)
        out = out[0] if isinstance(out, tuple) else out
        if not train:
            return [out]
        return [out, *torch.autograd.grad(out.square().sum(), [*inputs, *module.parameters()])]

    with torch.set_grad_enabled(train), recording() as records:
        expected = run(module)
        actual = run(torch.compile(module, backend=ark, options={"strict": True}))
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert ops_of(records).count("ark.attention.default") == (num_attentions if whole else 0)
    assert not any(r.fallbacks for r in records)


@pytest.mark.parametrize("train, batch_first", [(False, False), (True, True)])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL, "is_causal": True},
        {"attn_mask": BIAS},
        {"key_padding_mask": PADDING},
        {"attn_mask": CAUSAL, "key_padding_mask": torch.zeros(3, 10).masked_fill(PADDING, float("-inf"))},
    ],
    ids=lambda masks: "+".join(masks) or "plain",
)
def test_multihead_attention(executor, train, batch_first, masks):
    module = nn.MultiheadAttention(64, 4, batch_first=batch_first)
    shape = (3, 10, 64) if batch_first else (10, 3, 64)
    check(module, *(torch.randn(shape) for _ in range(3)), train=train, need_weights=False, **masks)


def test_cross_attention_of_other_widths(executor):
    module = nn.MultiheadAttention(64, 4, kdim=24, vdim=40, batch_first=True)
    inputs = [torch.randn(2, 5, 64), torch.randn(2, 9, 24), torch.randn(2, 9, 40)]
    check(module, *inputs, train=True, need_weights=False)


def test_weights_that_are_read_are_given(executor):
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 10, 64)
    actual, expected = torch.compile(module, backend=ark)(x, x, x), module(x, x, x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_weights_that_nobody_reads_cost_nothing(executor):
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 10, 64)
    with recording() as records:
        actual = torch.compile(lambda x: module(x, x, x)[0] * 2, backend=ark)(x)
    torch.testing.assert_close(actual, module(x, x, x)[0] * 2, rtol=1e-4, atol=1e-5)
    assert "ark.attention.default" in ops_of(records) and "aten.bmm.default" not in ops_of(records)


@pytest.mark.parametrize("each_executor", EXECUTORS[1:], indirect=True)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("norm_first, activation", [(False, F.relu), (True, F.gelu)])
@pytest.mark.parametrize(
    "masks",
    [{}, {"src_mask": CAUSAL, "is_causal": True}, {"src_key_padding_mask": PADDING}, {"src_mask": CAUSAL > -1}],
    ids=lambda masks: "+".join(masks) or "plain",
)
def test_encoder_layer(each_executor, train, norm_first, activation, masks):
    """In inference the module takes its own fused path, a single ATen op."""
    layer = nn.TransformerEncoderLayer(
        64, 4, 96, dropout=0.0, activation=activation, norm_first=norm_first, batch_first=True
    )
    if masks.get("src_mask") is not None and masks["src_mask"].dtype == torch.bool:
        masks = {"src_mask": ~masks["src_mask"]}
    check(layer, torch.randn(3, 10, 64), train=train, **masks)


@pytest.mark.parametrize("train", [False, True])
def test_whole_transformer(executor, train):
    model = nn.Transformer(64, 4, 2, 2, 96, dropout=0.0, batch_first=True)
    check(
        model,
        torch.randn(3, 10, 64),
        torch.randn(3, 10, 64),
        train=train,
        num_attentions=6,
        tgt_mask=CAUSAL,
        tgt_is_causal=True,
    )


def test_dropout_of_the_layers(executor):
    """Attention with dropout is composed of products; the seed reproduces it and eager's module is left as it was."""
    layer = nn.TransformerEncoderLayer(64, 4, 96, dropout=0.3, batch_first=True).train()
    call, x = torch.compile(layer, backend=ark), torch.randn(3, 10, 64)
    torch.manual_seed(1)
    first, second = call(x), call(x)
    torch.manual_seed(1)
    assert torch.equal(call(x), first) and not torch.equal(first, second)
    assert F.multi_head_attention_forward.__globals__["scaled_dot_product_attention"] is F.scaled_dot_product_attention


def test_autocast(executor):
    layer = nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True).train()
    x = torch.randn(3, 10, 64)
    exact = copy.deepcopy(layer).double()(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16), recording() as records:
        actual, eager = torch.compile(layer, backend=ark)(x), layer(x)
    assert (actual.double() - exact).norm() <= 1.5 * (eager.double() - exact).norm()
    assert "ark.attention.default" in ops_of(records)
