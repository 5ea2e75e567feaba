"""How the tests of the lowering compare an op, compiled alone, with eager."""

from __future__ import annotations

import torch

from ark_torch.backend import ark
from ark_torch.records import recording


def run(function, *inputs, strict=True, dynamic=False):
    """(result of ark, result of eager, records)."""
    with recording() as records:
        compiled = torch.compile(function, backend=ark, options={"strict": strict}, dynamic=dynamic)
        actual = compiled(*inputs)
    return actual, function(*inputs), records


def check(function, *inputs, rtol=None, atol=None, **kwargs):
    actual, expected, records = run(function, *inputs, **kwargs)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    flat = [(a, e) for a, e in zip(_flat(actual), _flat(expected)) if isinstance(e, torch.Tensor)]
    assert all(a.stride() == e.stride() for a, e in flat), [(a.stride(), e.stride()) for a, e in flat]
    assert records and not any(r.internal_errors for r in records)
    return records


def _flat(x):
    return [z for y in x for z in _flat(y)] if isinstance(x, (tuple, list)) else [x]


def f32(*shape):
    return torch.randn(*shape)
