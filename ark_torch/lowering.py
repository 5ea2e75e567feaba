"""FX nodes to ir::Graph: the context that rules write into, and the table of rules (ATen overload -> function).

A rule is `rule(ctx, node, *args, **kwargs) -> Value | tuple[Value | None, ...]`. Tensor arguments arrive as `Value`,
symbolic ints as sympy expressions, everything else as it stands in the FX graph. A rule raises `Unsupported` for what
the ir cannot express; the node then runs as an ATen step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ark_torch._compat import size_expr, sympy, unset_fake_temporarily
from ark_torch.errors import Unsupported
from ark_torch.graph_json import DTYPE_NAMES, GraphBuilder, Value, compute_type, type_refused
from ark_torch.refusals import check_taken
from ark_torch.size_source import check_python

RULES: dict[Any, Callable] = {}
# ops without a rule, and what their message says besides the name
WITHOUT_RULE = {torch.ops.aten.convolution_backward.default: "native: no gradient of a convolution"}
SEED = "seed"


def rule(*targets):
    """Registers a lowering rule for operator overloads (a packet stands for all its overloads)."""

    def register(function):
        for target in targets:
            overloads = [target]
            if isinstance(target, torch._ops.OpOverloadPacket):
                overloads = [getattr(target, name) for name in target.overloads()]
            for overload in overloads:
                RULES[overload] = function
        return function

    return register


def meta_shape(val: torch.Tensor) -> tuple:
    return tuple(size_expr(s) for s in val.shape)


def meta_strides(val: torch.Tensor) -> tuple:
    return tuple(size_expr(s) for s in val.stride())


def check_meta(val: Any, device: torch.device | None, empty: bool) -> None:
    """Raises Unsupported for a tensor that no plan can hold. `empty`: one without elements may be there."""
    if not isinstance(val, torch.Tensor):
        return
    if val.layout != torch.strided:
        raise Unsupported(f"layout {str(val.layout).removeprefix('torch.')}")
    if val.dtype not in DTYPE_NAMES:
        raise Unsupported(type_refused(val.dtype))
    if device is not None and val.device != device:
        raise Unsupported(f"tensor on {val.device} in a graph on {device}")
    if not empty and any(isinstance(s, int) and s == 0 for s in meta_shape(val)):
        raise Unsupported("empty tensor (a size of 0)")
    if val.is_conj() or val.is_neg():
        raise Unsupported("lazy conjugate or negative (resolve_conj, resolve_neg make it a tensor of its own)")


def module_path(node: fx.Node) -> str:
    """The user's module that the node comes from, as in named_modules()."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    for prefix in ("L['self']", "L__self__", "L['fn']"):
        path = path.removeprefix(prefix)
    return path.replace("_modules.", "").lstrip("._")


def is_sym(val: Any) -> bool:
    return isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool))


class Lowering:
    """The context of one native segment: FX node -> Value, and helpers to emit ir nodes."""

    def __init__(self, name: str, device: torch.device | None = None, uneven=False, empty=False, meets=False):
        self.graph = GraphBuilder(name)
        self.device = device
        self.uneven = uneven  # all-to-alls whose splits are even on this rank are not so on others
        self.meets = meets  # ranks meet before each launch with an exchange
        self.empty = empty  # tensors without elements are native, as they may be on this rank alone
        self.env: dict[fx.Node, Any] = {}
        # inputs made anew for each call: SEED, or the expression of a size that is data
        self.extras: dict[Any, Value] = {}
        self.num_rands = 0
        self._scalars: dict = {}
        self.node: fx.Node | None = None

    # ---- the segment ----
    def add_input(self, node: fx.Node) -> Value:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            raise Unsupported(f"result of {node.target}, of which no type is known")
        check_meta(val, self.device, self.empty)
        value = self.graph.add_input(val.dtype, meta_shape(val), meta_strides(val), node.name)
        self.env[node] = value
        return value

    def lower(self, node: fx.Node) -> Any:
        """Emits the node; raises Unsupported."""
        self.node = node
        self.graph.node_name, self.graph.module = node.name, module_path(node)
        if is_sym(node.meta.get("val")):
            return None
        result = self.env[node] = self._apply(node)
        return result

    def _apply(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._constant(node)
        if node.op != "call_function":
            raise Unsupported(node.op)
        if _is_getitem(node):
            source = self.env.get(node.args[0])
            if not isinstance(source, (tuple, list)):
                raise Unsupported("getitem of an ATen result")
            if source[node.args[1]] is None:
                raise Unsupported(f"output {node.args[1]} of {node.args[0].target}")
            return source[node.args[1]]
        check_taken(node)
        function = RULES.get(node.target)
        if function is None:
            more = WITHOUT_RULE.get(node.target)
            raise Unsupported(f"{_op_name(node)} ({more})" if more else _op_name(node))
        for val in _flat_vals(node.meta.get("val")):
            check_meta(val, self.device, self.empty)
        args = _map(node.args, self._argument)
        kwargs = _map(node.kwargs, self._argument)
        try:
            return function(self, node, *args, **kwargs)
        except TypeError as error:
            raise Unsupported(f"{node.target}: {error}") from error

    def _constant(self, node: fx.Node) -> Value:
        """A rank-0 tensor attribute of the graph."""
        tensor = operator.attrgetter(node.target)(node.graph.owning_module)
        if type(tensor) is not torch.Tensor or tensor.dim() != 0 or tensor.device.type != "cpu":
            raise Unsupported("constant tensor of the model that is no single number")
        with unset_fake_temporarily():
            return self.scalar(tensor.item(), tensor.dtype)

    def _argument(self, arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return size_expr(arg) if isinstance(arg, torch.SymInt) else arg
        val = arg.meta.get("val")
        if isinstance(val, torch.SymInt):
            return size_expr(val)
        if is_sym(val):
            raise Unsupported(f"{type(val).__name__} as data")
        if arg not in self.env:
            self.add_input(arg)
        return self.env[arg]

    # ---- what rules use ----
    def out(self, node: fx.Node) -> torch.Tensor:
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            raise Unsupported(f"{node.target} without a tensor result")
        return val

    def like(self, val: torch.Tensor) -> dict:
        """dtype, shape, strides of a result, for `pointwise` and `add_node`."""
        return {"dtype": val.dtype, "shape": meta_shape(val), "strides": meta_strides(val)}

    def pointwise(self, opcode: str, inputs: list[Value], dtype, shape=None, strides=None) -> Value:
        shape = broadcast(*[v.shape for v in inputs]) if shape is None else shape
        return self.graph.add_node("pointwise", inputs, dtype, shape, strides, opcode=opcode)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """The value in `dtype` exactly."""
        return value if value.dtype == dtype else self.pointwise("cast", [value], dtype)

    def to_compute(self, value: Value, dtype: torch.dtype) -> Value:
        """A value that an operation computing in compute_type(dtype) may read."""
        want = compute_type(dtype)
        return value if compute_type(value.dtype) == want else self.pointwise("cast", [value], want)

    def scalar(self, number: Any, dtype: torch.dtype) -> Value:
        """A rank-0 value of a Python number or a symbolic int."""
        key = (repr(number) if isinstance(number, float) else number, type(number), dtype)  # -0.0 == 0.0
        if key not in self._scalars:
            self._scalars[key] = self._make_scalar(number, dtype)
        return self._scalars[key]

    def _make_scalar(self, number: Any, dtype: torch.dtype) -> Value:
        if isinstance(number, sympy.Expr):
            check_python(number)
            return self.cast(self._extra(number, "size"), dtype)
        if isinstance(number, complex):
            raise Unsupported(f"complex number {number}")
        return self.full(number, dtype, ())

    def full(self, number, dtype: torch.dtype, shape, strides=None) -> Value:
        number = stored(number, dtype)
        if dtype.is_floating_point:
            return self.graph.add_node("full", [], dtype, shape, strides, imm=number)
        if not -(2**63) <= number < 2**63:
            raise Unsupported(f"integer constant {number}")
        return self.graph.add_node("full", [], dtype, shape, strides, imm_int=number)

    def operand(self, value: Any, dtype: torch.dtype) -> Value:
        """A tensor or number as an operand of an operation that computes in compute_type(dtype)."""
        if isinstance(value, Value):
            # a wider integer (of rank 0: it does not promote) wraps before the operation, not after it
            narrows = is_integer(dtype) and is_integer(value.dtype) and value.dtype.itemsize > dtype.itemsize
            return self.cast(value, dtype) if narrows else self.to_compute(value, dtype)
        return self.scalar(wrap_integer(value, dtype), compute_type(dtype))

    def fitting_operand(self, value: Any, dtype: torch.dtype) -> Value:
        """The same where ATen refuses a number that `dtype` does not hold."""
        if isinstance(value, (bool, int, float)):
            value = stored(fitting(value, dtype), dtype)
        return self.operand(value, dtype)

    def view(self, value: Value, shape, strides, shift=0) -> Value:
        return self.graph.add_view(value, tuple(shape), tuple(strides), value.offset + shift)

    def unsqueeze(self, value: Value, dim: int) -> Value:
        shape, strides = list(value.shape), list(value.strides)
        shape.insert(dim, 1)
        strides.insert(dim, 1)
        return self.view(value, shape, strides)

    def expand(self, value: Value, shape) -> Value:
        """`value` broadcast (right-aligned) to `shape` by a view of stride 0. Only sizes of 1 are repeated: two
        expressions that look different may well be the same number."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        lead = len(shape) - len(value.shape)
        strides = [0] * lead
        for have, want, stride in zip(value.shape, shape[lead:], value.strides):
            strides.append(0 if have == 1 and want != 1 else stride)
        return self.view(value, shape, strides)

    def reshape_rank(self, value: Value, rank: int, trailing: int = 0) -> Value:
        """`value` with `trailing` dimensions of size 1 appended and then as many in front as `rank` asks for."""
        lead = rank - trailing - len(value.shape)
        if lead == 0 and trailing == 0:
            return value
        return self.view(
            value, (1,) * lead + value.shape + (1,) * trailing, (1,) * lead + value.strides + (1,) * trailing
        )

    def iota(self, length, start=0, step: int = 1) -> Value:
        if isinstance(start, sympy.Expr):
            line = self.graph.add_node("iota", [], torch.int64, (length,), step=int(step))
            return self.pointwise("add", [line, self.scalar(start, torch.int64)], torch.int64)
        return self.graph.add_node("iota", [], torch.int64, (length,), step=int(step), imm_int=int(start))

    def finish_as(self, value: Value, val: torch.Tensor) -> Value:
        """`value` copied (cast) so that it has exactly the dtype and strides of `val`."""
        want = self.like(val)
        if value.dtype == want["dtype"] and value.strides == want["strides"] and value.owner == value.id:
            return value
        return self.pointwise("cast", [value], **want)

    def seed(self) -> Value:
        """The rank-0 i64 input that is drawn from ATen's generator before each call."""
        return self._extra(SEED, SEED)

    def _extra(self, key: Any, name: str) -> Value:
        """A size that is data is an input and no constant: another size must not need another kernel."""
        if key not in self.extras:
            self.extras[key] = self.graph.add_input(torch.int64, (), (), name)
        return self.extras[key]


def broadcast(*shapes) -> tuple:
    rank = max(len(s) for s in shapes)
    result = []
    for i in range(rank):
        sizes = [s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0]
        wide = [s for s in sizes if s != 1]
        if any(s != wide[0] for s in wide):
            raise Unsupported(f"broadcast of {shapes}")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def fitting(number: Any, dtype: torch.dtype) -> Any:
    """The number where ATen converts it to `dtype` without complaint; else the node is left to ATen, which raises.
    (Negative numbers down to -max may wrap to an unsigned type; infinities fit floats, everything fits bool.)"""
    if not isinstance(number, (int, float)) or isinstance(number, bool) or dtype == torch.bool:
        return number
    if not is_integer(dtype):
        most = torch.finfo(dtype).max
        fits = isinstance(number, float) and not math.isfinite(number) or -most <= number <= most
    else:
        info = torch.iinfo(dtype)
        low = -info.max if info.min == 0 and isinstance(number, int) else info.min
        fits = low <= number <= info.max
    if not fits:
        raise Unsupported(f"{number}, which {str(dtype).removeprefix('torch.')} does not hold")
    return number


def stored(number: bool | int | float, dtype: torch.dtype) -> int | float:
    """The number as an element of `dtype`: rounded to 16 bits or fewer (wider floats round where they are read), cut
    off and wrapped to an integer."""
    if dtype == torch.bool:
        return int(bool(number))
    if not dtype.is_floating_point:
        return wrap_integer(int(number), dtype)
    if dtype.itemsize > 2:
        return float(number)
    with unset_fake_temporarily():
        return torch.tensor(float(number), dtype=torch.float64).to(dtype).item()


def wrap_integer(number: Any, dtype: torch.dtype) -> Any:
    """A Python integer as ATen converts it to a narrow integer type; anything else as it is."""
    if not isinstance(number, int) or isinstance(number, bool) or dtype.is_floating_point or dtype == torch.bool:
        return number
    low, span = torch.iinfo(dtype).min, 1 << torch.iinfo(dtype).bits
    return (number - low) % span + low


def canonical_dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def _is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _op_name(node: fx.Node) -> str:
    """With the op that `with_effects` is around."""
    around = node.target is torch.ops.higher_order.with_effects
    return f"{node.target} of {node.args[1]}" if around else str(node.target)


def _map(arg: Any, function: Callable) -> Any:
    if isinstance(arg, (list, tuple)):
        return (
            type(arg)(_map(a, function) for a in arg)
            if type(arg) in (list, tuple)
            else [_map(a, function) for a in arg]
        )
    if isinstance(arg, dict):
        return {key: _map(value, function) for key, value in arg.items()}
    return function(arg)


def _flat_vals(val: Any) -> list:
    if isinstance(val, (tuple, list)):
        return [x for item in val for x in _flat_vals(item)]
    return [] if val is None else [val]
