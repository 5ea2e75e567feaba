"""Dtypes that eager refuses: the same type of exception, or the same result, for every op of `refusals.TABLE` and its
neighbours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import TorchRuntimeError

from ark_torch.backend import ark
from ark_torch.refusals import TABLE, Refusal

aten = torch.ops.aten
ZEROS = torch.zeros(4, dtype=torch.int64)
UNPOOLED = torch.arange(4).reshape(1, 1, 2, 2)

# op of the table, or a name -> functions of a [4, 4] tensor; `b` is of floats
CASES = {
    aten._softmax: [
        lambda a: a.softmax(-1),
        lambda a: F.softmin(a, 0),
        lambda a: a.softmax(0, dtype=torch.int64),
        lambda a: a.float().softmax(0) + a,
    ],
    aten._log_softmax: [lambda a: a.log_softmax(-1), lambda a: F.cross_entropy(a, ZEROS)],
    aten._safe_softmax: [lambda a: aten._safe_softmax.default(a, 0)],
    aten._softmax_backward_data: [lambda a: aten._softmax_backward_data.default(a, a, 0, a.dtype)],
    aten._log_softmax_backward_data: [lambda a: aten._log_softmax_backward_data.default(a, a, 0, a.dtype)],
    aten.gelu: [F.gelu, lambda a: F.gelu(a, approximate="tanh")],
    aten.silu: [F.silu, lambda a: F.silu(a.clone(), inplace=True)],
    aten.mish: [F.mish],
    aten.softplus: [F.softplus],
    aten.hardswish: [F.hardswish],
    aten.hardsigmoid: [F.hardsigmoid],
    aten.log_sigmoid_forward: [F.logsigmoid],
    aten.threshold: [lambda a: F.threshold(a, 0, 1)],
    aten.frac: [torch.frac, lambda a: a.clone().frac_()],
    aten.floor: [torch.floor, lambda a: a.clone().floor_()],
    aten.ceil: [torch.ceil],
    aten.trunc: [torch.trunc, torch.fix],
    aten.round.default: [torch.round],
    aten.round.decimals: [lambda a: a.round(decimals=2)],
    aten.mvlgamma: [lambda a: torch.mvlgamma(a + 4, 2), lambda a: torch.mvlgamma(a, 1)],
    aten.sub: [
        lambda a: a - a,
        lambda a: a - 1,
        lambda a: a - 0.5,
        lambda a, b: b - a,
        lambda a, b: a - b,
        lambda a: a - True,
        F.tanhshrink,
    ],
    aten.rsub: [lambda a: 1 - a, lambda a: 0.5 - a, lambda a, b: torch.rsub(a, b), lambda a, b: torch.rsub(b, a)],
    aten.clamp: [
        lambda a: a.clamp(a, a),
        lambda a: a.clamp(0, 1),
        lambda a: a.clamp(0.5),
        lambda a: a.clamp(max=a),
        lambda a: a.clamp(False, True),
        lambda a: a.clamp_min(a),
        lambda a: a.clamp_max(0),
        lambda a, b: a.clamp(b),
    ],
    aten.lerp: [lambda a: a.lerp(a, 0.5), lambda a: a.lerp(a, a), lambda a, b: b.lerp(a, 0.5)],
    aten._foreach_lerp: [lambda a: torch._foreach_lerp([a, a + 0], [a, a], 0.5)[1]],
    aten.addcdiv: [
        lambda a: torch.addcdiv(a, a, a + 1),
        lambda a, b: torch.addcdiv(b, a, a),
        lambda a, b: torch.addcdiv(b, a, b),
    ],
    aten.logaddexp: [lambda a: a.logaddexp(a), lambda a, b: a.logaddexp(b), lambda a, b: b.logaddexp(a)],
    aten.logaddexp2: [lambda a: a.logaddexp2(a), lambda a, b: a.logaddexp2(b)],
    aten.argmax: [torch.argmax, lambda a: a.argmax(1)],
    aten.argmin: [torch.argmin, lambda a: a.argmin(0, keepdim=True)],
    aten.arange: [lambda a: torch.arange(4, dtype=a.dtype)],
    aten.cumsum: [lambda a: a.cumsum(0), lambda a, b: b.cumsum(0, dtype=a.dtype)],
    aten.cumprod: [lambda a: a.cumprod(0), lambda a, b: b.cumprod(0, dtype=a.dtype)],
    aten.special_log_ndtr: [torch.special.log_ndtr],
    aten.trace: [torch.trace],
    aten.dot: [lambda a: a[0].dot(a[1]), lambda a: a[0] @ a[1]],
    aten.vdot: [lambda a: torch.vdot(a[0], a[1])],
    aten.mv: [lambda a: a.mv(a[0]), lambda a: a @ a[0]],
    aten.addmv: [lambda a: torch.addmv(a[0], a, a[1])],
    aten.linalg_cross: [lambda a: torch.linalg.cross(a[:, :3], a[:, 1:])],
    aten.native_batch_norm: [lambda a: torch.native_batch_norm(a, None, None, a[0], a[0], False, 0.1, 1e-5)[0]],
    aten._native_batch_norm_legit.default: [
        lambda a: aten._native_batch_norm_legit.default(a, None, None, a[0] * 1, a[0] * 1, True, 0.1, 1e-5)[0],
    ],
    aten._native_batch_norm_legit.no_stats: [
        lambda a: aten._native_batch_norm_legit.no_stats(a, None, None, True, 0.1, 1e-5)[0],
        lambda a, b: aten._native_batch_norm_legit.no_stats(a, b[0], b[1], True, 0.1, 1e-5)[0],
        lambda a, b: aten._native_batch_norm_legit.no_stats(b, a[0], None, True, 0.1, 1e-5)[0],
    ],
    aten._native_batch_norm_legit_no_training: [
        lambda a: aten._native_batch_norm_legit_no_training.default(a, None, None, a[0], a[0], 0.1, 1e-5)[0],
        lambda a: F.batch_norm(a, a[0], a[0]),
        lambda a, b: F.batch_norm(a, b[0], b[0].abs()),
        lambda a, b: F.batch_norm(b, a[0], a[0]),
    ],
    aten._native_batch_norm_legit_functional: [lambda a: F.batch_norm(a, a[0].clone(), a[0].clone(), training=True)],
    aten.binary_cross_entropy: [
        lambda a: F.binary_cross_entropy(a > 0, a > 0) if a.dtype == torch.bool else F.binary_cross_entropy(a, a * 0),
        lambda a, b: F.binary_cross_entropy(b.sigmoid(), a),
    ],
    aten.smooth_l1_loss: [lambda a: F.smooth_l1_loss(a, a), lambda a, b: F.smooth_l1_loss(a, b)],
    aten.huber_loss: [lambda a: F.huber_loss(a, a), lambda a, b: F.huber_loss(b, a)],
    aten.soft_margin_loss: [lambda a: F.soft_margin_loss(a, a), lambda a, b: F.soft_margin_loss(b, a)],
    aten.nll_loss_forward: [lambda a: F.nll_loss(a, ZEROS)],
    aten.nll_loss2d_forward: [lambda a: F.nll_loss(a[None, None], ZEROS.expand(1, 4, 4))],
    aten.bernoulli.default: [lambda a: torch.bernoulli(a * 0), lambda a: torch.bernoulli(a, p=1.0)],
    aten.im2col: [lambda a: F.unfold(a[None, None], 2)],
    aten.max_unpool2d: [lambda a: F.max_unpool2d(a[None, None, :2, :2], UNPOOLED, 2)],
    aten.max_unpool3d: [lambda a: F.max_unpool3d(a[None, None, None, :2, :2], UNPOOLED[None], 2)],
    aten.reflection_pad1d: [lambda a: F.pad(a[None], (1, 1), mode="reflect")],
    aten.reflection_pad2d: [lambda a: F.pad(a[None], (1, 1, 1, 1), mode="reflect")],
    aten.reflection_pad3d: [lambda a: F.pad(a[None, None].expand(2, 4, 4, 4), (1,) * 6, mode="reflect")],
    "neighbours": [
        F.elu,
        F.relu6,
        F.leaky_relu,
        F.hardtanh,
        torch.neg,
        torch.relu,
        torch.exp,
        torch.abs,
        torch.sign,
        lambda a: a.mean(),
        lambda a: a.var(0),
        lambda a: a.amax(0),
        lambda a: a.logsumexp(0),
        lambda a: F.layer_norm(a, (4,)),
        lambda a: a @ a,
        lambda a: a // (a + 2),
        lambda a: F.mse_loss(a, a),
        lambda a: torch.addcmul(a, a, a),
        lambda a: torch.where(a > 0, a, 1 + a),
    ],
}
DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]


def outcome(function, tensors):
    """(type of the exception, result)"""
    try:
        return None, function(*(t.clone() for t in tensors))
    except Exception as error:
        return type(error), None


def tensors_of(dtype, function):
    a = (torch.arange(16).reshape(4, 4) % 2).to(dtype)
    return [a, torch.linspace(-1, 2, 16).reshape(4, 4)][: function.__code__.co_argcount] if _is_ours(function) else [a]


def _is_ours(function) -> bool:
    return getattr(function, "__name__", "") == "<lambda>"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", CASES, ids=str)
def test_as_eager(op, dtype, monkeypatch):
    """Nothing is left to ATen that ATen runs: where the table refuses, eager raises."""
    refused, of = [], Refusal.of
    monkeypatch.setattr(Refusal, "of", lambda *arguments: refused.append(of(*arguments)) or refused[-1])
    for function in CASES[op]:
        refused.clear()
        tensors = tensors_of(dtype, function)
        expected, want = outcome(function, tensors)
        torch._dynamo.reset()
        raised, got = outcome(torch.compile(function, backend=ark), tensors)
        if expected is None:
            assert raised is None and not any(refused), (function, raised, refused)
            half = {"rtol": 0.02, "atol": 2e-3} if want.dtype.itemsize == 2 else {}
            torch.testing.assert_close(got, want, equal_nan=True, **half)
        elif raised is None or not issubclass(raised, expected):
            torch._dynamo.reset()  # torch refuses it itself, before any backend
            assert raised is TorchRuntimeError, (function, expected, raised)
            assert outcome(torch.compile(function, backend="aot_eager"), tensors)[0] is TorchRuntimeError


def test_every_refusal_has_a_case():
    assert set(TABLE) - set(CASES) == set()
    assert set(CASES) - set(TABLE) == {"neighbours"}


def test_strict_names_the_op():
    call = torch.compile(lambda a: a.softmax(-1), backend=ark, options={"strict": True})
    with pytest.raises(Exception, match="aten._softmax.default, which takes no int64"):
        call(torch.ones(3, 4, dtype=torch.int64))


def test_sizes_that_are_data():
    call = torch.compile(lambda a: F.gelu(a.softmax(-1)), backend=ark, dynamic=True)
    for rows in (3, 5):
        with pytest.raises(NotImplementedError):
            call(torch.ones(rows, 4, dtype=torch.int64))
    x = torch.randn(3, 4)
    torch.testing.assert_close(call(x), F.gelu(x.softmax(-1)))
