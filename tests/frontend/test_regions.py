"""Regions that are compiled once and called often (torch.compiler.nested_compile_region): one graph, all
native."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ark_torch.backend import ark
from ark_torch.records import recording

STRICT = {"strict": True}


@torch.compiler.nested_compile_region
def normed(x, layer):
    return F.layer_norm(layer(x), (16,)), x.mean(), None, 3


@torch.compiler.nested_compile_region
def block(x, layer):
    out, mean, _, number = normed(x, layer)
    return F.gelu(out) + mean * number


@torch.compiler.nested_compile_region
def attention(x, layer):
    heads = layer(x).unflatten(-1, (2, 8)).transpose(1, 2)
    return x + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


@torch.compiler.nested_compile_region
def recomputed(x, layer):
    return checkpoint(lambda x: torch.tanh(layer(x)), x, use_reentrant=False)


@torch.compiler.nested_compile_region
def counting(x, layer):
    layer.weight.mul_(1.5)
    return layer(x)


REGIONS = {"nested": block, "attention": attention, "checkpoint": recomputed}


def layers() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(16, 16) for _ in range(4))


def through(region, stack, x):
    for layer in stack:
        x = region(x, layer)
    return x


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("region", REGIONS)
def test_a_region_of_every_layer(executor, region, train):
    stack, x = layers(), torch.randn(2, 5, 16)
    with torch.set_grad_enabled(train), recording() as records:
        wanted = through(REGIONS[region], stack, x)
        compiled = torch.compile(lambda x: through(REGIONS[region], stack, x), backend=ark, options=STRICT)
        actual = compiled(x)
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
        if train:
            parameters = list(stack.parameters())
            gradients = [torch.autograd.grad(out.square().mean(), parameters) for out in (actual, wanted)]
            torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    assert [r.kind for r in records] == (["forward", "backward"] if train else ["inference"])
    if region == "attention":
        nodes = [n for s in records[0].segments for n in s.nodes]
        assert sum(n.target is torch.ops.ark.attention.default for n in nodes) == len(stack)


def test_a_region_that_writes(executor):
    stacks, x = [layers() for _ in range(2)], torch.randn(2, 5, 16)
    with torch.no_grad():
        wanted = through(counting, stacks[0], x)
        actual = torch.compile(lambda x: through(counting, stacks[1], x), backend=ark, options=STRICT)(x)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stacks[1].state_dict(), stacks[0].state_dict())


def test_a_region_of_another_size(executor):
    stack = layers()
    with torch.no_grad(), recording() as records:
        compiled = torch.compile(lambda x: through(block, stack, x), backend=ark, options=STRICT)
        for rows in (5, 9):
            x = torch.randn(2, rows, 16)
            torch._dynamo.mark_dynamic(x, 1)
            torch.testing.assert_close(compiled(x), through(block, stack, x), rtol=1e-4, atol=1e-5)
    assert len(records) == 1
