"""Attention under torch.func: grad, vjp, jacrev, vmap and their compositions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch import attention_layout
from ark_torch.backend import ark
from ark_torch.records import recording

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # eager's attention under vmap
MASK = torch.rand(9, 9) > 0.3


def attend(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def loss(q, k, v):
    return attend(q, k, v).sin().sum()


def sums(q, k, v):
    return attend(q, k, v).sum((1, 2, 3))


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)


BODIES = {
    "grad": torch.func.grad(loss, argnums=(0, 1, 2)),
    "vjp": lambda *qkv: torch.func.vjp(attend, *qkv)[1](torch.ones_like(qkv[0])),
    "jacrev": lambda q, k, v: torch.func.jacrev(sums)(q, k, v),
    "grad of vmap, one key": torch.func.grad(
        lambda q, k, v: torch.vmap(loss, in_dims=(1, None, 0))(q[:, None], k, v[None]).sum(), argnums=(0, 1, 2)
    ),
    "grad of vmap": torch.func.grad(lambda q, k, v: torch.vmap(loss)(q[None], k[None], v[None]).sum()),
}
BATCHED = {
    "all": lambda q, k, v: torch.vmap(attend)(q, k, v),
    "queries": lambda q, k, v: torch.vmap(attend, in_dims=(0, None, None))(q, k[0], v[0]),
    "keys, inner": lambda q, k, v: torch.vmap(attend, in_dims=(None, 2, 0), out_dims=1)(q[0], k.movedim(0, 2), v),
    "one mask": lambda q, k, v: torch.vmap(lambda *x: attend(*x, MASK))(q, k, v),
    "masks": lambda q, k, v: torch.vmap(attend)(q, k, v, torch.stack([MASK, ~MASK, MASK])),
    "masks of the batch": lambda q, k, v: torch.vmap(attend, in_dims=(0, 0, 0, None))(
        q, k, v, torch.stack([MASK, ~MASK])[:, None]
    ),
    "grouped": lambda q, k, v: torch.vmap(grouped)(q, k, v),
    "twice": lambda q, k, v: torch.vmap(torch.vmap(attend))(q[:, :, None], k[:, :, None], v[:, :, None]),
    "grad": lambda q, k, v: torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v),
    "grad, one key": lambda q, k, v: torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None, 0))(
        q, k[0], v
    ),
}


def compare(body, *inputs, **ark_options):
    """The compiled body against eager, strides too; the ops of its segments."""
    with recording() as records:
        actual = torch.compile(body, backend=ark, fullgraph=True, options=ark_options)(*inputs)
    options = {"rtol": 1e-4, "atol": 1e-4, "equal_nan": True, "check_stride": True}
    torch.testing.assert_close(actual, body(*inputs), **options)
    return [str(n.target) for r in records for s in r.segments for n in s.nodes]


@pytest.mark.parametrize("what", BODIES)
def test_func(what):
    ops = compare(BODIES[what], *[torch.randn(2, 4, 9, 16) for _ in range(3)])
    assert ops.count("ark.attention.default") == 1 and "ark.attention_backward.default" in ops


@pytest.mark.parametrize("what", BATCHED)
def test_vmap(what):
    ops = compare(BATCHED[what], *[torch.randn(3, 2, 4, 9, 16) for _ in range(3)])
    assert ops.count("ark.attention.default") == 1  # one of a longer batch, none per sample
    assert ops.count("ark.attention_backward.default") == what.startswith("grad")


@pytest.mark.parametrize("what", ["all", "queries", "grad"])
def test_vmap_of_samples_without_a_batch(what):
    """A sample's heads alone, three dimensions."""
    compare(BATCHED[what], *[torch.randn(3, 4, 9, 16) for _ in range(3)])


def test_gradients_without_a_batch():
    """Eager's mathematics make them, since torch 2.14 its fused kernel."""
    inputs = [torch.randn(4, 9, 16) for _ in range(3)]
    compare(torch.func.grad(loss, argnums=(0, 1, 2)), *inputs)
    outer = (1, 0, 2) if attention_layout.ONE_BATCH_IS_FUSED else (0, 1, 2)
    compare(lambda *qkv: torch.func.grad(loss)(*qkv).permute(outer).view(-1), *inputs)


@pytest.mark.parametrize("fused", [False, True])
def test_orders_of_gradients_without_a_batch(monkeypatch, fused):
    """None: rows first, as the fused kernel leaves them, where it takes the arguments."""
    monkeypatch.setattr(attention_layout, "ONE_BATCH_IS_FUSED", fused)
    orders = attention_layout.orders_of_gradients
    assert (orders(*[torch.randn(4, 9, 16) for _ in range(3)]) is None) == fused
    assert orders(*[columns((4, 9, 16)) for _ in range(3)]) is not None
    assert orders(torch.randn(4, 9, 16), torch.randn(4, 9, 16), torch.randn(4, 9, 8)) is not None


def test_vmap_inside_autograd():
    inputs = [torch.randn(3, 2, 4, 9, 16, requires_grad=True) for _ in range(3)]
    out = torch.compile(torch.vmap(attend), backend=ark)(*inputs)
    wanted = torch.autograd.grad(torch.vmap(attend)(*inputs).square().sum(), inputs)
    actual = torch.autograd.grad(out.square().sum(), inputs)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4, check_stride=True)


def jacobian(q, k, v):
    return torch.func.jacrev(lambda q: attend(q, k, v))(q)


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 1, 3, 4), (2, 4, 5, 8)], ids=str)
def test_jacobian_of_all_elements(shape):
    """Eager stacks the gradients of a vmap, so that they are contiguous."""
    inputs = [torch.randn(shape) for _ in range(3)]
    compare(jacobian, *inputs, strict=True)
    compare(lambda *qkv: jacobian(*qkv).view(-1), *inputs)


@pytest.mark.parametrize("which", range(3), ids=["queries", "keys", "values"])
def test_gradients_of_vmap_can_be_viewed(which):
    gradients = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))
    compare(lambda *qkv: gradients(*qkv)[which].view(-1), *[torch.randn(3, 2, 4, 7, 8) for _ in range(3)])


def columns(sizes):
    """Elements of a head do not lie side by side."""
    return torch.randn(*sizes[:-2], sizes[-1], sizes[-2]).transpose(-1, -2)


@pytest.mark.parametrize("body", [attend, grouped], ids=["heads", "groups"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)],
        lambda: [torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8), columns((2, 4, 7, 8))],
        lambda: [columns((2, 4, 7, 8)) for _ in range(3)],
    ],
    ids=["values of another width", "values by columns", "all by columns"],
)
def test_gradients_of_eagers_mathematics(make, body):
    """What its fused kernel does not take; the gradients are laid out otherwise."""

    def gradients(*qkv):
        return torch.func.grad(lambda *qkv: body(*qkv).square().sum(), argnums=(0, 1, 2))(*qkv)

    inputs = make()
    compare(gradients, *inputs)
    compare(torch.vmap(gradients), *[torch.stack([x, x + 1, x * 2]) for x in inputs])
    compare(lambda *qkv: (gradients(*qkv)[0].view(-1), gradients(*qkv)[2].view(-1)), *inputs)


@pytest.mark.parametrize("width", [8, 6])
def test_vmap_in_a_loop(width):
    """Functionalization, which traces the body, has no rule for a torch.autograd.Function."""

    def step(i, x, k, v):
        return i + 1, torch.vmap(attend)(x, k, v).sum(-1, True) + x, k.clone(), v.clone()

    def body(x, k, v):
        start = torch.zeros((), dtype=torch.int64)
        return torch._higher_order_ops.while_loop(lambda i, *_: i < 3, step, (start, x, k, v))[1]

    inputs = [torch.randn(3, 2, 4, 7, size) for size in (8, 8, width)]
    actual = torch.compile(body, backend=ark, fullgraph=True)(*inputs)
    x, k, v = inputs
    for _ in range(3):
        x = torch.vmap(attend)(x, k, v).sum(-1, True) + x
    torch.testing.assert_close(actual, x, rtol=1e-4, atol=1e-4)
