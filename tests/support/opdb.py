"""Runs samples of torch's own operator database (`op_db`) through the backend and judges the results against fp64 and
eager's own error."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

from ark_torch.backend import ark
from ark_torch.records import REGISTRY, InternalCause, recording

# Results that are not a function of the arguments, or whose memory is uninitialised.
_NOT_COMPARABLE = {
    "bernoulli",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "multinomial",
    "normal",
    "randint",
    "randint_like",
    "rand_like",
    "randn",
    "randn_like",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "uniform",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.alpha_dropout",
    "bernoulli_",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "pca_lowrank",
    "svd_lowrank",
    "torch.ops.aten._efficient_attention_forward",
    "rand",
}

# The database resets the random numbers around these, where Dynamo makes no graph; without dropout there are none.
_WITHOUT_DROPOUT = {
    "nn.functional.scaled_dot_product_attention": (
        torch.nn.functional.scaled_dot_product_attention,
        {"dropout_p": 0.0},
    ),
    "nn.functional.multi_head_attention_forward": (
        torch.nn.functional.multi_head_attention_forward,
        {"training": False},
    ),
}


def _function(op):
    if op.name not in _WITHOUT_DROPOUT:
        return op.op
    function, fixed = _WITHOUT_DROPOUT[op.name]
    return lambda *args, **kwargs: function(*args, **{**kwargs, **fixed})


@dataclass
class Outcome:
    """What happened to one sample. `kind`: native, mixed, fallback, skipped, wrong or crash."""

    op: str
    kind: str
    detail: str = ""
    causes: Counter = field(default_factory=Counter)


def names() -> list[str]:
    return [_name(op) for op in op_db]


def _name(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def run(num_samples: int = 1, backward: bool = False, first: int = 0, every: int = 1):
    """Yields an Outcome per sample: of every `every`-th operator from number `first` on."""
    for op in op_db[first::every]:
        yield from _run_op(op, num_samples, backward)


def _run_op(op, num_samples: int, backward: bool):
    if torch.float32 not in op.supported_dtypes("cpu"):
        yield Outcome(_name(op), "skipped", "no float32 on the CPU")
        return
    torch.manual_seed(0)
    needs_grad = backward and op.supports_autograd
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=needs_grad), num_samples))
    except Exception as error:
        yield Outcome(_name(op), "skipped", f"no samples: {error}")
        return
    for sample in samples:
        yield _run_sample(op, sample, needs_grad)


def _copied(value, dtype=None):
    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        out = t.detach().clone()
        if dtype is not None and out.dtype == torch.float32:
            out = out.to(dtype)
        return out.requires_grad_(t.requires_grad)

    return tree_map(copy, value)


def _call(function, sample, dtype=None, backward=False) -> list[torch.Tensor]:
    arguments = _copied((sample.input, sample.args, sample.kwargs), dtype)
    result = function(arguments[0], *arguments[1], **arguments[2])
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
    if backward:
        leaves = [t for t in tree_flatten(arguments)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        scalars = [t.float().sum() if not t.is_complex() else t.abs().sum() for t in outputs if t.requires_grad]
        if leaves and scalars:
            outputs += [g for g in torch.autograd.grad(sum(scalars), leaves, allow_unused=True) if g is not None]
    return [t.detach() for t in outputs]


def _run_sample(op, sample, backward: bool) -> Outcome:
    name = _name(op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            eager = _call(_function(op), sample, backward=backward)
        except Exception as error:
            return Outcome(name, "skipped", f"eager fails: {error}")
        torch._dynamo.reset()
        REGISTRY.clear()
        with recording() as records:
            try:
                torch.manual_seed(0)
                function = _function(op)
                mine = _call(torch.compile(lambda *a, **k: function(*a, **k), backend=ark), sample, backward=backward)
            except Exception as error:
                return _crash(name, op, sample, backward, error)
        return _judge(name, op, sample, backward, mine, eager, records)


def _crash(name, op, sample, backward, error) -> Outcome:
    """A crash is ark's only if Dynamo and AOTAutograd alone manage."""
    torch._dynamo.reset()
    try:
        function = _function(op)
        _call(torch.compile(lambda *a, **k: function(*a, **k), backend="aot_eager"), sample, backward=backward)
    except Exception:
        return Outcome(name, "skipped", f"aot_eager fails too: {type(error).__name__}")
    return Outcome(name, "crash", f"{type(error).__name__}: {str(error)[:500]}")


def _judge(name, op, sample, backward, mine, eager, records) -> Outcome:
    causes = sum((r.fallbacks for r in records), Counter()) + REGISTRY.runtime_fallbacks
    errors = [e for r in records for e in r.internal_errors]
    errors += [cause for cause in REGISTRY.runtime_fallbacks if isinstance(cause, InternalCause)]
    num_segments = sum(len(r.segments) for r in records)
    kind = ("mixed" if causes else "native") if num_segments else ("fallback" if causes else "skipped")
    if errors:
        return Outcome(name, "crash", f"internal error: {errors[0][:500]}", causes)
    problem = _differs(name, op, sample, backward, mine, eager)
    return Outcome(name, "wrong", problem, causes) if problem else Outcome(name, kind, "", causes)


def _differs(name, op, sample, backward, mine, eager) -> str | None:
    if len(mine) != len(eager):
        return f"{len(mine)} results, expected {len(eager)}"
    for i, (a, e) in enumerate(zip(mine, eager)):
        if (a.shape, a.dtype, a.layout) != (e.shape, e.dtype, e.layout):
            return f"result {i}: {a.dtype} {tuple(a.shape)}, expected {e.dtype} {tuple(e.shape)}"
    if op.name in _NOT_COMPARABLE or name in _NOT_COMPARABLE:
        return None
    try:
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6, equal_nan=True)
        return None
    except AssertionError as error:
        first = str(error)
    try:
        exact = _call(_function(op), sample, torch.float64, backward)
    except Exception:
        exact = eager
    for i, (a, e, x) in enumerate(zip(mine, eager, exact)):
        if a.is_floating_point() and a.shape == x.shape:
            a, e, x = a.double(), e.double(), x.double()
            same = torch.where(
                torch.isfinite(x),
                (a - x).abs() <= 4 * (e - x).abs().amax() + 1e-5 * x.abs().clamp(max=1e30) + 1e-6,
                (a == e) | (a.isnan() & e.isnan()),
            )
            if not bool(same.all()):
                return f"result {i}: " + first.replace("\n", " ")[:300]
        elif not torch.equal(a, e):
            return f"result {i}: " + first.replace("\n", " ")[:300]
    return None
