"""transformers' models set a collector of outputs when they begin and take it away when they end. Dynamo of torch 2.11
and 2.12 refuses that in a loop's body; later ones see that nothing is left of it."""

from __future__ import annotations

import contextlib
import functools
import threading

from ark_torch._compat import without_side_effect_checks

try:
    from transformers.utils.output_capturing import CompileableContextVar as Collector
except ImportError:  # pragma: no cover - a transformers without it
    Collector = None

_lock, _users = threading.Lock(), 0
_METHODS = {}  # name -> the collector's own, and one that may change in the body of a loop; made once, for guards


def _unchecked(method):
    @functools.wraps(method)
    def call(self, *arguments):
        return without_side_effect_checks(method, self, *arguments)

    return call


if Collector is not None and without_side_effect_checks is not None:
    _METHODS = {name: (getattr(Collector, name), _unchecked(getattr(Collector, name))) for name in ("set", "reset")}


def _enter(change: int) -> None:
    global _users
    with _lock:
        _users += change
        for name, methods in _METHODS.items():
            setattr(Collector, name, methods[_users > 0])


@contextlib.contextmanager
def traceable_collector():
    """Within it the collector, and nothing else, may change where Dynamo traces the body of a loop."""
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


__all__ = ["traceable_collector"]
