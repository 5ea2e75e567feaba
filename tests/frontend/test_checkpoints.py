"""Activations that are computed again in the backward pass: `torch.utils.checkpoint` inside a compiled function."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ark_torch.backend import ark
from ark_torch.records import recording


@pytest.mark.parametrize("policy", [False, True])
def test_checkpointed_attention(executor, policy):
    """Attention that is computed again in the backward pass is ark's, unless a policy of the user's names ATen's."""

    def keep(ctx, op, *args, **kwargs):
        kept = op == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    options = {"context_fn": functools.partial(create_selective_checkpoint_contexts, keep)} if policy else {}
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)

    def body(q, k, v):
        inner = checkpoint(
            lambda x: F.scaled_dot_product_attention(x, k, v, is_causal=True), q * 2, use_reentrant=False
        )
        return layer(inner.transpose(1, 2).flatten(2))

    def function(q, k, v):
        return checkpoint(body, q.sin(), k, v, use_reentrant=False, **options).sum()

    inputs = [torch.randn(2, 4, 7, 4, requires_grad=True) for _ in range(3)]
    with recording() as records:
        actual = torch.autograd.grad(torch.compile(function, backend=ark)(*inputs), inputs)
    torch.testing.assert_close(actual, torch.autograd.grad(function(*inputs), inputs))
    causes = {cause for r in records for cause in r.fallbacks}
    assert any("flash_attention" in cause for cause in causes) if policy else not causes, causes


def test_dropout_draws_the_same_again(executor):
    weight = torch.randn(6, 6)

    def function(x):
        return checkpoint(lambda y: F.dropout(y @ weight, 0.5, True).sin(), x, use_reentrant=False)

    compiled, x = torch.compile(function, backend=ark), torch.eye(6, requires_grad=True)
    for _ in range(3):
        out = compiled(x)
        inner = torch.where(out != 0, (2 * weight).cos() * 2, 0.0)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], inner @ weight.t())
