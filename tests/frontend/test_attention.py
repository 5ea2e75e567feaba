"""ark::attention: the op itself, and the pass that puts it in place of scaled_dot_product_attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch import attention
from ark_torch.backend import ark
from ark_torch.records import recording

SHAPES = {"plain": (2, 4, 4, 9, 9), "grouped": (2, 8, 2, 5, 17), "one query": (1, 4, 2, 1, 33)}


def qkv(shape, dtype=torch.float32, dim=16, value_dim=16, grad=False):
    batch, heads, groups, rows, keys = SHAPES[shape]
    sizes = [(batch, heads, rows, dim), (batch, groups, keys, dim), (batch, groups, keys, value_dim)]
    return [torch.randn(s).to(dtype).requires_grad_(grad) for s in sizes]


def masks(shape):
    batch, heads, _, rows, keys = SHAPES[shape]
    dead = torch.rand(batch, 1, rows, keys) > 0.3
    dead[:, :, 0] = False  # a row that sees nothing
    return {
        "none": None,
        "bool": torch.rand(1, 1, rows, keys) > 0.3,
        "dead row": dead,
        "additive": torch.randn(batch, heads, rows, keys),
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", ["none", "bool", "dead row", "additive"])
@pytest.mark.parametrize("value_dim", [16, 24])
def test_op_matches_sdpa(shape, mask, value_dim):
    q, k, v = qkv(shape, value_dim=value_dim)
    m = masks(shape)[mask]
    out, logsumexp = torch.ops.ark.attention(q, k, v, m, 0.3, False)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, expected)
    assert out.transpose(1, 2).is_contiguous()
    scores = attention._scores(q, k, m, 0.3, False)
    torch.testing.assert_close(logsumexp, torch.logsumexp(scores, -1))


@pytest.mark.parametrize("shape", ["plain", "grouped"])
@pytest.mark.parametrize("mask", ["none", "bool", "dead row", "additive"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(shape, mask, causal):
    if causal and mask != "none":
        pytest.skip("SDPA takes one of the two")
    q, k, v = qkv(shape, torch.float64, grad=True)
    m = masks(shape)[mask]
    m = m.double() if m is not None and m.is_floating_point() else m
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=causal, scale=0.5, enable_gqa=True)
    dout = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), dout)
    out = torch.ops.ark.attention(q, k, v, m, 0.5, causal)[0]
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), dout), wanted)


def test_op_registration():
    q, k, v = qkv("grouped", grad=True)
    torch.library.opcheck(torch.ops.ark.attention.default, (q, k, v, masks("grouped")["bool"], 0.25, False))


def compile_sdpa(body, *inputs, backward=False, dynamic=False):
    """(results of ark, of eager, ops of the compiled graphs)."""
    with recording() as records:
        actual = torch.compile(body, backend=ark, options={"strict": True}, dynamic=dynamic)(*inputs)
        gradients = torch.autograd.grad(actual.sum(), [x for x in inputs if x.requires_grad]) if backward else ()
    expected = body(*inputs)
    wanted = torch.autograd.grad(expected.sum(), [x for x in inputs if x.requires_grad]) if backward else ()
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(gradients, wanted, rtol=2e-3, atol=2e-3)
    return [str(n.target) for r in records for s in r.segments for n in s.nodes]


CALLS = {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    "positional": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, False, enable_gqa=True),
    "scale": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7, enable_gqa=True),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    "bool mask": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(2), enable_gqa=True
    ),
    "additive mask": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.zeros(1, 1, 1, k.shape[2]) - 1, enable_gqa=True
    ),
    "alias": lambda q, k, v: torch._C._nn.scaled_dot_product_attention(q, k, v, enable_gqa=True),
}


@pytest.mark.parametrize("shape", ["plain", "grouped"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_calls(executor, call, shape, dynamic):
    ops = compile_sdpa(CALLS[call], *qkv(shape, grad=True), backward=True, dynamic=dynamic)
    assert ops.count("ark.attention.default") == 1 and ops.count("ark.attention_backward.default") == 1


def repeat_kv(x, times):
    batch, groups, rows, dim = x.shape
    return x[:, :, None, :, :].expand(batch, groups, times, rows, dim).reshape(batch, groups * times, rows, dim)


REPEATS = {
    "repeat_kv": repeat_kv,
    "unsqueeze": lambda x, n: x.unsqueeze(2).expand(-1, -1, n, -1, -1).reshape(x.shape[0], -1, x.shape[2], x.shape[3]),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n, 1),
    "contiguous": lambda x, n: repeat_kv(x, n).contiguous(),
}


@pytest.mark.parametrize("repeat", REPEATS)
def test_repeat_is_undone(executor, repeat):
    function = REPEATS[repeat]

    def body(q, k, v):
        return F.scaled_dot_product_attention(q, function(k, 4), function(v, 4))

    q, k, v = qkv("grouped", grad=True)
    with recording() as records:
        compiled = torch.compile(body, backend=ark, options={"strict": True})
        actual = compiled(q, k, v)
        gradients = torch.autograd.grad(actual.sum(), (q, k, v))
    node = next(n for r in records for s in r.segments for n in s.nodes if str(n.target) == "ark.attention.default")
    assert node.args[1].meta["val"].shape[1] == 2
    expected = body(q, k, v)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (q, k, v)))


@pytest.mark.parametrize("repeat", REPEATS)
def test_repeat_before_a_write_is_kept(executor, repeat):
    """A repeat is a copy: it keeps what was there before."""
    function = REPEATS[repeat]

    def attend(q, k, v):
        keys, values = function(k, 4), function(v, 4)
        k.add_(1)
        return F.scaled_dot_product_attention(q, keys, values)

    inputs = [torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)]
    want = attend(*[x.clone() for x in inputs])
    torch.testing.assert_close(torch.compile(attend, backend=ark)(*inputs), want)


def test_repeat_in_another_order_is_kept(executor):
    """tile order (heads g, g + G, ...) is not grouped attention."""

    def body(q, k, v):
        return F.scaled_dot_product_attention(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1))

    compile_sdpa(body, *qkv("grouped"))


def test_autocast(executor):
    def body(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = qkv("grouped", grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = torch.compile(body, backend=ark, options={"strict": True})(q, k, v)
        expected = body(q, k, v)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_dropout_and_learned_mask_stay_with_aten(executor):
    q, k, v = qkv("plain")

    def dropped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    torch.compile(dropped, backend=ark)(q, k, v)
    bias = torch.zeros(9, 9, requires_grad=True)

    def learned(bias):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    actual = torch.compile(learned, backend=ark)(bias)
    wanted = torch.autograd.grad(learned(bias).sum(), bias)
    torch.testing.assert_close(torch.autograd.grad(actual.sum(), bias), wanted)


UNREADABLE = {
    "spread gradient": lambda x, size: (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [x(size)] * 3),
    "odd rows": lambda x, size: (
        lambda q, k, v: F.scaled_dot_product_attention(q[..., :-1], k, v) * v,
        [x(size + 1), x(size), x(size)],
    ),
    "one head for all": lambda x, size: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1].expand_as(q), v[:, :1].expand_as(q)) * v,
        [x(size)] * 3,
    ),
}


@pytest.mark.parametrize("size", [36, 40, 64, 80])
@pytest.mark.parametrize("case", UNREADABLE)
def test_gradients_of_operands_that_tensor_maps_do_not_read(executor, case, size):
    """Strides of 0, rows of an odd length: composed of products, nothing goes to ATen."""

    def tensor(columns):
        return torch.randn(2, 4, 24, columns, dtype=torch.bfloat16)

    body, tensors = UNREADABLE[case](tensor, size)
    inputs = [x.detach().clone().requires_grad_() for x in tensors]

    def loss(q, k, v):
        return body(q, k, v).sum()

    with recording() as records:
        actual = torch.autograd.grad(torch.compile(loss, backend=ark, options={"strict": True})(*inputs), inputs)
    assert not any(r.fallbacks for r in records)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    for mine, eager, exact in zip(
        actual, torch.autograd.grad(loss(*inputs), inputs), torch.autograd.grad(loss(*wide), wide)
    ):
        own, yardstick = ((x.double() - exact).norm() / exact.norm() for x in (mine, eager))
        assert own <= max(2 * yardstick, 2**-8), (case, size, own, yardstick)


def test_memory_layout_spares_the_copy(executor):
    def body(q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1) * 2

    assert "aten.clone.default" not in compile_sdpa(body, *qkv("grouped"))


def test_in_place_methods_survive_the_pass(executor):
    """Dead-code elimination of a Dynamo graph would drop cache.index_copy_ (found with a StaticCache)."""

    def body(q, cache, new, position):
        cache.index_copy_(2, position, new)
        return F.scaled_dot_product_attention(q, repeat_kv(cache, 4), repeat_kv(cache, 4))

    q, cache, _ = qkv("grouped")
    mine, theirs = cache.clone(), cache.clone()
    new, position = torch.randn(2, 2, 1, 16), torch.tensor([3])
    actual = torch.compile(body, backend=ark, options={"strict": True})(q, mine, new, position)
    torch.testing.assert_close(actual, body(q, theirs, new, position))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shape", [(1, 2, 4, 0), (1, 0, 4, 8), (0, 2, 4, 8), (1, 2, 0, 8)])
def test_attention_of_nothing(executor, shape):
    q, v = torch.randn(shape, requires_grad=True), torch.randn(*shape[:3], 3)
    out = torch.compile(lambda q, v: F.scaled_dot_product_attention(q, q, v), backend=ark)(q, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, v))
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_float64_is_a_fallback_with_a_name(executor):
    q = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    with recording() as records:
        out = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend=ark)(q)
        gradient = torch.autograd.grad(out.sum(), q)[0]
    wanted = F.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), q)[0])
    assert set(records[0].fallbacks) == {"attention in float64 (native: float32, bfloat16, float16)"}
    assert not any(r.internal_errors for r in records)


@pytest.mark.parametrize("case", ["plain", "causal", "mask", "grouped"])
def test_three_dimensions_are_one_batch(case):
    heads = 2 if case == "grouped" else 4
    q, k, v = (torch.randn(n, 5, 16, requires_grad=True) for n in (4, heads, heads))
    options = dict(is_causal=case == "causal", enable_gqa=case == "grouped")
    options["attn_mask"] = torch.rand(4, 5, 5) > 0.3 if case == "mask" else None
    if case == "mask":
        options["attn_mask"][..., 0] = True
    body = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)
    with recording() as records:
        out = torch.compile(body, backend=ark, options={"strict": True})(q, k, v)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    wanted = body(q, k, v)
    assert out.stride() == wanted.stride() and records[0].segments
    torch.testing.assert_close(out, wanted)
    for got, want in zip(gradients, torch.autograd.grad(wanted.square().sum(), (q, k, v))):
        torch.testing.assert_close(got, want)
