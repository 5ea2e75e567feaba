"""What Dynamo does at every compilation that no test reads: half of the time of a small one."""

from __future__ import annotations

import logging
import os

import torch._dynamo.guards as guards


def leave_out() -> None:
    """Dynamo flushes the caches of the CPU to time its guards, for a line of its log and a metric. And it formats its
    structured trace (graphs, stacks) where that has a handler: pytest gives one to every logger that does not
    propagate, unless TORCH_TRACE names a folder for it."""
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *arguments: 0.0
    if "TORCH_TRACE" not in os.environ:
        trace = logging.getLogger("torch.__trace")
        trace.handlers.clear()
        trace.addHandler = lambda handler: None
