"""Dtypes that an op's eager kernel does not take, though torch's decomposition of the op or ark's rule for it would.
Such an op stays whole, runs through ATen and raises eager's own error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import fx

from ark_torch._compat import op_being_decomposed
from ark_torch.errors import Unsupported

aten = torch.ops.aten

BOOL = frozenset([torch.bool])
INTEGERS = frozenset(
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
)
INTEGRAL = INTEGERS | BOOL
HALVES = frozenset([torch.float16, torch.bfloat16])


@dataclass(frozen=True)
class Refusal:
    """Of arguments of these dtypes at these places (or under these keywords): of all of them, or (`any`) of one; and
    (`alike`) of arguments there whose dtype is not that of the first, unless that one is of the dtypes `mixed`."""

    dtypes: frozenset[torch.dtype]
    places: tuple[int | str, ...] = (0,)
    any: bool = False
    alike: bool = False
    mixed: frozenset[torch.dtype] = frozenset()

    def of(self, args: tuple, kwargs: dict) -> torch.dtype | None:
        """The dtype that is refused; arguments are tensors, lists of them, numbers, dtypes."""
        given = {**dict(enumerate(args)), **kwargs}
        found = [dtype for place in self.places for dtype in _dtypes(given.get(place))]
        refused = [dtype for dtype in found if dtype in self.dtypes]
        if refused and (self.any or len(refused) == len(self.places)):
            return refused[0]
        if self.alike and found and found[0] not in self.mixed:
            return next((dtype for dtype in found if dtype != found[0]), None)
        return None


def _dtypes(argument) -> list[torch.dtype]:
    if isinstance(argument, torch.Tensor):
        return [argument.dtype]
    if isinstance(argument, (list, tuple)):
        return [dtype for item in argument for dtype in _dtypes(item)]
    if isinstance(argument, torch.dtype):
        return [argument]
    if isinstance(argument, (bool, torch.SymBool)):
        return [torch.bool]
    if isinstance(argument, (int, torch.SymInt)):
        return [torch.int64]
    return [torch.get_default_dtype()] if isinstance(argument, (float, torch.SymFloat)) else []


_BOTH = (0, 1)
_NORMS = Refusal(INTEGRAL, (0, 1, 2, 3, 4), any=True, alike=True, mixed=HALVES)  # input, weights, statistics
# op or packet of ops -> what its kernel refuses. Kernels of CPU and GPU take the same integers and bools.
TABLE = {
    aten._softmax: Refusal(INTEGRAL),
    aten._log_softmax: Refusal(INTEGRAL),
    aten._safe_softmax: Refusal(INTEGRAL),
    aten._softmax_backward_data: Refusal(INTEGRAL),
    aten._log_softmax_backward_data: Refusal(INTEGRAL),
    aten.gelu: Refusal(INTEGRAL),
    aten.silu: Refusal(INTEGRAL),
    aten.mish: Refusal(INTEGRAL),
    aten.softplus: Refusal(INTEGRAL),
    aten.hardswish: Refusal(INTEGRAL),
    aten.hardsigmoid: Refusal(INTEGRAL),
    aten.log_sigmoid_forward: Refusal(INTEGRAL),
    aten.threshold: Refusal(BOOL),
    aten.frac: Refusal(INTEGRAL),
    aten.floor: Refusal(BOOL),
    aten.ceil: Refusal(BOOL),
    aten.trunc: Refusal(BOOL),
    aten.round.default: Refusal(BOOL),
    aten.round.decimals: Refusal(INTEGRAL),
    aten.mvlgamma: Refusal(BOOL),
    aten.sub: Refusal(BOOL, _BOTH, any=True),
    aten.rsub: Refusal(BOOL, _BOTH, any=True),
    aten.clamp: Refusal(BOOL, (0, 1, 2)),
    aten.lerp: Refusal(INTEGRAL),
    aten._foreach_lerp: Refusal(INTEGRAL, any=True),
    aten.addcdiv: Refusal(INTEGRAL, (1, 2)),
    aten.logaddexp: Refusal(INTEGRAL, _BOTH),
    aten.logaddexp2: Refusal(INTEGRAL, _BOTH),
    aten.argmax: Refusal(BOOL),
    aten.argmin: Refusal(BOOL),
    aten.arange: Refusal(BOOL, ("dtype",)),
    aten.cumsum: Refusal(BOOL, ("dtype",)),
    aten.cumprod: Refusal(BOOL, ("dtype",)),
    aten.special_log_ndtr: Refusal(HALVES),
    aten.trace: Refusal(BOOL),
    aten.dot: Refusal(BOOL),
    aten.vdot: Refusal(BOOL),
    aten.mv: Refusal(BOOL),
    aten.addmv: Refusal(BOOL),
    aten.linalg_cross: Refusal(BOOL),
    aten.native_batch_norm: _NORMS,
    aten._native_batch_norm_legit.default: _NORMS,
    aten._native_batch_norm_legit.no_stats: replace(_NORMS, places=(0, 1, 2)),
    aten._native_batch_norm_legit_functional: _NORMS,
    aten._native_batch_norm_legit_no_training: _NORMS,
    aten.binary_cross_entropy: Refusal(INTEGRAL, (0, 1, 2), any=True, alike=True),
    aten.smooth_l1_loss: Refusal(INTEGRAL, _BOTH),
    aten.soft_margin_loss: Refusal(INTEGRAL),
    aten.huber_loss: Refusal(INTEGRAL),
    aten.nll_loss_forward: Refusal(INTEGRAL),
    aten.nll_loss2d_forward: Refusal(INTEGRAL),
    aten.bernoulli.default: Refusal(INTEGRAL),
    aten.im2col: Refusal(INTEGERS),
    aten.max_unpool2d: Refusal(INTEGRAL),
    aten.max_unpool3d: Refusal(INTEGRAL),
    aten.reflection_pad1d: Refusal(BOOL),
    aten.reflection_pad2d: Refusal(BOOL),
    aten.reflection_pad3d: Refusal(BOOL),
}


def _by_overload(table: dict) -> dict[torch._ops.OpOverload, Refusal]:
    result = {}
    for op, refusal in table.items():
        packet = isinstance(op, torch._ops.OpOverloadPacket)
        result.update({getattr(op, name): refusal for name in op.overloads()} if packet else {op: refusal})
    return result


REFUSALS = _by_overload(TABLE)


def keep_refused(decompositions: dict) -> dict:
    """The decompositions, of which none takes apart what eager refuses."""
    return decompositions | {op: _unless_refused(op, decompositions[op]) for op in REFUSALS if op in decompositions}


@functools.cache  # asked for at every compilation
def _unless_refused(op, decomposition: Callable) -> Callable:
    @functools.wraps(decomposition)
    def decompose(*args, **kwargs):
        if op_being_decomposed() in (None, op) and REFUSALS[op].of(args, kwargs) is not None:
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def check_taken(node: fx.Node) -> None:
    """Raises Unsupported for an op of the user's that eager refuses. What is inside another op's decomposition is not
    eager's."""
    refusal = REFUSALS.get(node.target)
    if refusal is None or str(node.meta.get("original_aten") or node.target) != str(node.target):
        return
    dtype = refusal.of(*fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val")))
    if dtype is not None:
        raise Unsupported(f"{node.target}, which takes no {str(dtype).removeprefix('torch.')}")
