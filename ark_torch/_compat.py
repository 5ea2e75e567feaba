"""Torch's private modules that ark uses, imported here and nowhere else (torch 2.11 to 2.15, see versions.py)."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re

import sympy
import torch
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import _COMPILER_FNS as backend_functions  # name -> function
from torch._dynamo.exc import (
    BackendCompilerFailed,
    ObservedException,
    TorchDynamoException,
    UncapturedHigherOrderOpError,
)
from torch._dynamo.exc import Unsupported as GraphBreak
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import calculate_time_spent, get_compilation_metrics, graph_break_reasons
from torch._functorch._aot_autograd.functional_utils import gen_alias_from_base
from torch._guards import detect_fake_mode
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2 as auto_functionalized
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import CallMethodKey, guard_or_false, resolve_unbacked_bindings
from torch.utils import _pytree as pytree
from torch.utils import _sympy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import SequenceKey, key_get
from torch.utils._sympy import functions as sympy_functions

from ark_torch.versions import minor

try:
    from functorch.compile import min_cut_rematerialization_partition
except ImportError:  # pragma: no cover - the public alias of older versions
    from torch._functorch.partitioners import min_cut_rematerialization_partition

__all__ = [
    "ONE_BATCH_IS_FUSED",
    "BackendCompilerFailed",
    "FakeTensor",
    "FakeTensorMode",
    "GraphBreak",
    "ObservedException",
    "TorchDispatchMode",
    "TorchDynamoException",
    "UncapturedHigherOrderOpError",
    "WHILE_LOOPS",
    "alias_offsets_are_relative",
    "aot_autograd",
    "as_if_compiling",
    "auto_functionalized",
    "backend_functions",
    "calculate_time_spent",
    "decompositions",
    "detect_fake_mode",
    "functional_graph",
    "graph_break_reasons",
    "guard_or_false",
    "key_get",
    "pytree",
    "resolve_group",
    "min_cut_rematerialization_partition",
    "op_being_decomposed",
    "options_compiled_with",
    "resolve_unbacked_bindings",
    "resumed_at",
    "size_expr",
    "size_path",
    "skipped_frames",
    "sympy",
    "sympy_functions",
    "unset_fake_temporarily",
    "without_messages",
    "without_side_effect_checks",
]

# the loop, and the one that returns the values of every iteration (forward graphs have it)
WHILE_LOOPS = (while_loop_op, while_loop_stack_output_op)
# Calls a function; where Dynamo traces the call in a loop's body, the function may set attributes of objects from
# outside, and has to set them back in the end. None: Dynamo allows that without it.
without_side_effect_checks = None
if minor(torch.__version__) < (2, 13):
    without_side_effect_checks = dynamo_utils._disable_side_effect_safety_checks_for_current_subtracer
# Whether eager's fused attention of the CPU takes three dimensions, as those of one batch.
ONE_BATCH_IS_FUSED = minor(torch.__version__) >= (2, 14)
_ = _sympy  # the package must be imported for its printers to be registered


@contextlib.contextmanager
def as_if_compiling():
    """Optimizers take their numbers of steps and rates as tensors, and do not look at their devices."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def without_messages():
    """Dynamo leaves out what is told to loggers, instead of giving up."""
    config = torch._dynamo.config
    methods = {method for method in vars(logging.Logger).values() if callable(method)}
    with config.patch(ignore_logging_functions=config.ignore_logging_functions | methods):
        yield


def functional_graph(function, *arguments) -> torch.fx.GraphModule:
    """The ops that the function runs, of the types of these arguments (nested lists of tensors), with none in place."""
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    graph = make_fx(torch.func.functionalize(graph, remove="mutations"), tracing_mode="fake")(*arguments)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _cat_of_elements(tensors: list[torch.Tensor], dim: int = 0):
    """A cat without the inputs that are known to be empty, of the type and layout that they give it: those of all, and
    contiguous. What may be empty in some calls only stays, without a guard. Where eager's result is contiguous, one
    tensor again and again is an expanded one: on the host 64 pieces of 256 x 256 take 1.7 ms instead of 21."""
    first = tensors[0]
    if len(tensors) > 1 and first.dim() > 0 and all(x is first for x in tensors):
        if suggest_memory_format(first) != torch.contiguous_format:
            return NotImplemented
        sizes, dim = list(first.shape), dim % first.dim()
        pieces = first.unsqueeze(dim).expand(*sizes[:dim], len(tensors), *sizes[dim:])
        return pieces.clone(memory_format=torch.contiguous_format).flatten(dim, dim + 1)

    def empty(x: torch.Tensor) -> bool:
        return size_expr(x.shape[0 if x.dim() == 1 else dim]) == 0  # of rank 1: beside inputs of any rank

    kept = [x for x in tensors if x.dim() == 0 or not empty(x)]
    if not kept or len(kept) == len(tensors):
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    if kept[0].dtype != dtype or suggest_memory_format(kept[0]) != torch.contiguous_format:
        kept[0] = torch.ops.aten._to_copy.default(kept[0], dtype=dtype, memory_format=torch.contiguous_format)
    return torch.ops.aten.cat.default(kept, dim)


def decompositions(fallback_random: bool = False) -> dict:
    """Inductor's decomposition table without the ops that ark (or a library call) runs better as a whole, and, where
    random numbers are left to ATen, without its own forms of those."""
    aten = torch.ops.aten
    with inductor_config.patch(fallback_random=fallback_random):
        table = dict(select_decomp_table())
    whole = [aten.mm, aten.addmm, aten.bmm, aten.embedding_dense_backward, aten.index_add, aten.grid_sampler_2d]
    whole += [
        aten.max_pool2d_with_indices,
        aten.max_pool3d_with_indices,
        aten.adaptive_max_pool2d,
        aten.adaptive_max_pool3d,
    ]
    whole += [aten.native_dropout]  # else random numbers of the tensor's type: in bf16 p = 0.1 would drop 26 of 256
    whole += [aten.cat]  # inductor's form of one tensor again and again lies otherwise than eager's
    whole += [aten.index_select]  # takes no negative index, unlike the index that it would become
    whole += [aten.max_pool2d_with_indices_backward]  # inductor's own forms of pooling need inductor's lowering
    for packet in whole:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    table[aten.cat.default] = _cat_of_elements
    return table


def op_being_decomposed():
    """The op whose decomposition is being traced, the outermost one; None where torch does not note it."""
    return fx_traceback.get_current_meta().get("original_aten")


def size_expr(size) -> int | sympy.Expr:
    """The size as an int or a sympy expression over shape symbols; adds no guard."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_number else expr


def options_compiled_with(model, backend) -> dict:
    """The options of a module or function that torch.compile has made with this backend; of any other, none."""
    function = getattr(model, "_compiled_call_impl", None) or model  # of module.compile()
    context = getattr(model, "dynamo_ctx", None)
    wrapped = getattr(context, "callback", None)
    if context is None and inspect.isfunction(function) and hasattr(function, "_torchdynamo_orig_callable"):
        wrapped = inspect.getclosurevars(function).nonlocals.get("callback")
    while hasattr(wrapped, "_torchdynamo_orig_backend"):
        wrapped = wrapped._torchdynamo_orig_backend
    if getattr(wrapped, "compiler_fn", None) is not backend:
        return {}
    return dict(getattr(wrapped, "kwargs", {}).get("options") or {})


def resolve_group(name: str, device: str) -> object | None:
    """The backend that serves tensors of `device` in the process group of that name; None: there is none."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._resolve_process_group(name)._get_backend(torch.device(device))
    except (RuntimeError, ValueError, TypeError):
        return None


def size_path(dim: int) -> tuple:
    """The key path from a tensor to one of its sizes."""
    return CallMethodKey("size"), SequenceKey(dim)


def skipped_frames(begin_us: int) -> list[tuple[str, str | None, int | None]]:
    """(reason, file, line) of the functions that Dynamo has given up since then (the last 64 compilations are kept);
    what a backend refused is no such function."""
    found = [m for m in get_compilation_metrics() if m.fail_reason and m.fail_type != "BackendCompilerFailed"]
    late = [m for m in found if (m.start_time_us or 0) >= begin_us]
    return [(m.fail_reason, m.fail_user_frame_filename, m.fail_user_frame_lineno) for m in late]


def resumed_at() -> tuple[str, int] | None:
    """(file, line) of the break after which the function goes on that Dynamo traces now; None for a whole function."""
    try:
        code = InstructionTranslator.current_tx().f_code
    except AttributeError:  # Dynamo traces nothing
        return None
    match = re.fullmatch(r"torch_dynamo_resume_in_.*_at_(\d+)", code.co_name)
    return (code.co_filename, int(match[1])) if match else None


@functools.cache
def alias_offsets_are_relative() -> bool:
    """Whether AOTAutograd, where it makes an output that is a view of a written input anew, adds the input's storage
    offset to that of what the graph returned (torch 2.14). Earlier ones take the latter for the offset."""
    base, returned = torch.empty(2)[1:], torch.empty(1)
    return gen_alias_from_base(base, returned, False, replay_views=False).storage_offset() == 1
