"""What torch does at every compilation that no test reads: more than half of the time of a small one."""

from __future__ import annotations

import logging
import os

import torch
import torch._decomp.decompositions_for_rng as rng
import torch._dynamo.guards
import torch._dynamo.utils

_EMPTY = torch.tensor(())
# They write out every setting of torch, for a record of the compilation.
CONFIGURATIONS = (
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
)


def _replace(module, name: str, value) -> None:
    if hasattr(module, name):  # some versions lack some of the functions
        setattr(module, name, lambda *arguments: value)


def _no_seed(state) -> None:
    """PhiloxState.reset without tensors of its own. They are looked at where random ops are made functional."""
    state.seed = state.base_offset = _EMPTY
    state.relative_offset, state.offset_advanced_at_least_once = 0, False


def leave_out() -> None:
    """Dynamo flushes the caches of the CPU to time its guards, for a line of its log. It formats its structured trace
    (graphs, stacks) where that has a handler: pytest gives one to every logger that does not propagate."""
    _replace(torch._dynamo.guards, "profile_guard_manager", 0.0)
    for name in CONFIGURATIONS:
        _replace(torch._dynamo.utils, name, None)
    rng.PhiloxState.reset = _no_seed  # twelve tensors each time
    if "TORCH_TRACE" not in os.environ:
        trace = logging.getLogger("torch.__trace")
        trace.handlers.clear()
        trace.addHandler = lambda handler: None


def leave_out_collection() -> None:
    """The collector of cycles runs when it would without a compilation."""
    if hasattr(torch._dynamo.config, "run_gc_after_compile"):
        torch._dynamo.config.run_gc_after_compile = False


def seed(number: int) -> None:
    """torch.manual_seed also tells every kind of device that is not there: with the stack of the caller each, for when
    it starts."""
    if torch.cuda.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
