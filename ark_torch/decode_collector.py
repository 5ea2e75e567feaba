"""transformers' models set a collector of outputs when they begin and take it away when they end. Dynamo of torch 2.11
and 2.12 refuses that in a loop's body; later ones see that nothing is left of it."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import torch

from ark_torch._compat import without_side_effect_checks
from ark_torch.versions import minor

try:
    from transformers.utils.output_capturing import CompileableContextVar as Collector
except ImportError:  # pragma: no cover - another version of transformers
    Collector = None


def _unchecked(method):
    @functools.wraps(method)
    def call(self, *arguments):
        return without_side_effect_checks(method, self, *arguments)

    return call


_METHODS = {}
if Collector is not None and minor(torch.__version__) < (2, 13):
    _METHODS = {name: _unchecked(getattr(Collector, name)) for name in ("set", "reset")}  # made once, for guards


def traceable_collector() -> contextlib.AbstractContextManager:
    """Within it the collector, and nothing else, may change where Dynamo traces; what it does is the same."""
    return mock.patch.multiple(Collector, **_METHODS) if _METHODS else contextlib.nullcontext()


__all__ = ["traceable_collector"]
