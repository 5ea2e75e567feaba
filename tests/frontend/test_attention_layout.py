"""The result of attention lies in memory as eager's does."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from ark_torch.attention_layout import order_of
from ark_torch.backend import ark
from tests.support.lowering_check import check

SIZES = (2, 4, 17, 16)
MEMORY = [(*outer, 3) for outer in itertools.permutations(range(3))] + [(0, 1, 3, 2), (3, 0, 1, 2)]


def stored(sizes, order):
    """Random values whose dimensions lie in memory in this order."""
    return torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(4)])


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("order", MEMORY, ids=str)
def test_follows_the_query(order):
    check(attend, stored(SIZES, order), torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9, 16))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"is_causal": True}, {"attn_mask": torch.rand(17, 17) > 0.3}, {"attn_mask": torch.randn(17, 17)}],
    ids=["plain", "causal", "bool mask", "additive mask"],
)
def test_result_can_be_viewed(arguments, dynamic):
    def body(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **arguments).view(q.shape[0], -1)

    check(body, *[torch.randn(SIZES) for _ in range(3)], dynamic=dynamic)


def test_rows_first_stays_a_view():
    """Heads made of a projection: the result goes into the next one without a copy."""

    def body(x):
        q, k, v = (part.view(2, 17, 4, 16).transpose(1, 2) for part in x.chunk(3, -1))
        return attend(q, k, v).transpose(1, 2).view(2, 17, 64)

    check(body, torch.randn(2, 17, 192))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype):
    inputs = [torch.randn(2, 4, 3, 4).to(dtype) for _ in range(3)]
    check(lambda q, k, v: attend(q, k, v).view(-1), *inputs, rtol=2e-2, atol=2e-2)


def test_gradients_of_a_viewed_result():
    inputs = [torch.randn(SIZES, requires_grad=True) for _ in range(3)]
    out = torch.compile(lambda q, k, v: attend(q, k, v).view(-1), backend=ark, options={"strict": True})(*inputs)
    weight = torch.randn_like(out)
    wanted = torch.autograd.grad(attend(*inputs).view(-1), inputs, weight)
    torch.testing.assert_close(torch.autograd.grad(out, inputs, weight), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "last",
    [
        lambda y: y.reshape(2, 17, 64),
        lambda y: y.contiguous(),
        lambda y: y.flatten(2),
        lambda y: (y.reshape(2, 17, 64).add_(1), y.reshape(-1)),
        lambda y: (y, y.contiguous()),
    ],
    ids=["reshape", "contiguous", "flatten", "two copies", "returned too"],
)
def test_copied_rows_first(last):
    """What eager copies is a view here where nobody else looks."""
    check(lambda q, k, v: last(attend(q, k, v).transpose(1, 2)), *[torch.randn(SIZES) for _ in range(3)])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("width, padded", [(4, 8), (12, 16), (8, 8)])
def test_the_order_of_padded_heads(order, width, padded):
    """A GPU's kernels return a part of wider rows."""
    sizes = [(2, 5, 3, padded)[d] for d in order]
    result = torch.empty(sizes).permute([order.index(d) for d in range(4)])[..., :width]
    graph = torch.fx.Graph()
    node = graph.placeholder("result")
    node.meta["example_value"] = result
    assert order_of(node) == order
