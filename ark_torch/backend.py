"""The entry point of `torch.compile(model, backend="ark")`."""

from __future__ import annotations

import itertools
import textwrap
from contextlib import contextmanager

import torch
from torch import fx

from ark_torch import _C
from ark_torch._compat import aot_autograd, decompositions
from ark_torch.assertions import Assertion, take_assertions
from ark_torch.attention import replace_attention
from ark_torch.bool_powers import replace_bool_powers
from ark_torch.breaks import check_break
from ark_torch.checkpoints import with_checkpointed
from ark_torch.compile import CompileOptions, compile_graph
from ark_torch.costs import read_costs
from ark_torch.eager_random import replace_dropout
from ark_torch.errors import Unsupported
from ark_torch.looped import looped_step
from ark_torch.modes import check_mode, describe_modes
from ark_torch.multihead import replace_multihead
from ark_torch.options import OPTIONS, check_options, describe_options
from ark_torch.recompute import partition_joint
from ark_torch.records import REGISTRY, GraphRecord, timed
from ark_torch.refusals import keep_refused
from ark_torch.regions import inline_regions
from ark_torch.value_checks import with_checks

_counter = itertools.count()
_recorders: list[list] = []


def parse_options(mode: str | None, options: dict | None) -> CompileOptions:
    """Raises ValueError (TypeError) naming the mode, option or value of the environment that ark does not know."""
    _C.check_environment()
    check_mode(mode)
    options = dict(options or {})
    check_options(options)
    if (costs := options.get("costs", "auto")) != "auto":
        read_costs(costs)
    native = {name: options.pop(name) for name in list(options) if OPTIONS[name].native}
    return CompileOptions(native=native, **options)


def ark(gm: fx.GraphModule, example_inputs, *, mode: str | None = None, options: dict | None = None):
    """A Dynamo graph to a callable.

    Options (`options={...}`), all of them optional; a value that does not fit is an error:
      OPTIONS

    Modes (`mode="..."`; torch takes a mode or options) are accepted, and compile as the default does:
      MODES

    Environment (for diagnostics and installation; every one optional):
      ARK_DUMP       folder that every graph's stages are written to, those of failures included, each rank's below
                     rank<n> (default: nothing is written)
      ARK_CACHE_DIR  folder of the compiled kernels, or "off" (default: $XDG_CACHE_HOME/ark, else ~/.cache/ark)
      ARK_NVRTC      folder to take NVRTC from, and from nowhere else (default: the Python packages nvidia-cuda-nvrtc,
                     torch, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, the loader's path)
      ARK_VERIFY     plans proved free of races: once (default: the first of each structure), full, or structure
      ARK_LOG        lines of the extension's log: error, warn (default), info or debug
    """
    parsed = parse_options(mode, options)
    if parsed.strict:
        check_break(gm)
    number = next(_counter)
    assertions: list[Assertion] = []
    for part in with_checkpointed(gm):
        inline_regions(part)
        assertions += take_assertions(part)
        replace_attention(part)
        replace_multihead(part)
        replace_bool_powers(part)
        if parsed.fallback_random:
            replace_dropout(part)

    def compiler(kind: str):
        def compile_one(graph_module: fx.GraphModule, inputs):
            record = GraphRecord(f"graph{number}_{kind}", kind)
            try:
                with timed(record):
                    function = compile_graph(graph_module, parsed, record, tuple(assertions))
            except Unsupported as error:
                if kind != "backward":
                    raise
                return _refuse(str(error))
            REGISTRY.add(record)
            for recorder in _recorders:
                recorder.append(function)
            return function

        return compile_one

    compile_all = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=keep_refused(with_checks(decompositions(parsed.fallback_random))),
        partition_fn=partition_joint,
        keep_inference_input_mutations=True,
    )
    try:
        return compile_all(gm, example_inputs)
    except Unsupported as error:
        raise Unsupported(str(error)) from None  # without the stack below here, which says nothing to the user


def _refuse(message: str):
    """A backward graph that strict forbids: AOTAutograd would print an error of its compilation as a warning, with a
    stack, and go on; so the backward pass raises it."""

    def call(args):
        raise Unsupported(message)

    call._boxed_call = True
    return call


def _reset() -> None:
    """Called by torch.compiler.reset()."""
    REGISTRY.clear()
    looped_step.cache_clear()


for _word, _list in (("OPTIONS", describe_options()), ("MODES", describe_modes())):
    ark.__doc__ = (ark.__doc__ or "").replace(_word, textwrap.indent(_list, " " * 6).lstrip())
ark._tags = ()
ark.reset = _reset


@contextmanager
def record_callables(into: list):
    """Appends to `into` the callable of every graph compiled inside the block, without Dynamo and AOTAutograd around
    it.

    Each takes the list of the graph's arguments and clears it; pass a copy.
    """
    _recorders.append(into)
    try:
        yield into
    finally:
        _recorders[:] = [r for r in _recorders if r is not into]


__all__ = ["ark", "parse_options", "record_callables"]
_ = torch
