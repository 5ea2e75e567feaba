"""Builder of the JSON form of ir::Graph (docs/GRAPH_JSON.md), and `Value`, the handle that lowering rules work with."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import torch

from ark_torch.errors import Unsupported
from ark_torch.sizes import SizePool, contiguous_strides

DTYPE_NAMES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}


def type_refused(dtype: torch.dtype) -> str:
    names = [str(t).removeprefix("torch.") for t in (dtype, *DTYPE_NAMES)]
    return f"dtype {names[0]} (native: {', '.join(names[1:])})"


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of `dtype` are computed (ark::compute_type)."""
    if dtype in (torch.float64, torch.bool):
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


@dataclass(frozen=True)
class Value:
    """A tensor of the graph under construction. Sizes, strides and the offset (elements, into `owner`) are ints or
    sympy expressions."""

    id: int
    dtype: torch.dtype
    shape: tuple
    strides: tuple
    offset: object = 0
    owner: int = -1  # id of the value that owns the storage (the own id when it is an owner)


def _json_float(x: float) -> float | str:
    if math.isnan(x):
        return "nan"
    return x if math.isfinite(x) else ("inf" if x > 0 else "-inf")


class GraphBuilder:
    """Collects values and nodes; `finish` gives the graph as a dict."""

    def __init__(self, name: str):
        self.name = name
        self.sizes = SizePool()
        self.values: list[dict] = []
        self.nodes: list[dict] = []
        self.inputs: list[int] = []
        self.immutable: list[bool] = []
        self.outputs: list[int] = []
        self.loop: dict = {}  # of a graph that is an iteration: what it carries, its stop flag (places in inputs)
        self.node_name = ""
        self.module = ""

    def _add_value(self, dtype, shape, strides, offset=0, base=None, name="") -> Value:
        if dtype not in DTYPE_NAMES:
            raise Unsupported(type_refused(dtype))
        entry = {
            "name": name or f"v{len(self.values)}",
            "dtype": DTYPE_NAMES[dtype],
            "sizes": [self.sizes.encode(s) for s in shape],
            "strides": [self.sizes.encode(s) for s in strides],
        }
        number = len(self.values)
        if base is not None:
            entry["offset"] = self.sizes.encode(offset)
            entry["base"] = base
        self.values.append(entry)
        return Value(number, dtype, tuple(shape), tuple(strides), offset, number if base is None else base)

    def add_input(self, dtype, shape, strides, name: str) -> Value:
        value = self._add_value(dtype, shape, strides, name=name)
        self.inputs.append(value.id)
        self.immutable.append(True)
        return value

    def add_node(self, op: str, inputs: list[Value], dtype, shape, strides=None, **attrs) -> Value:
        """A node with one fresh output."""
        strides = contiguous_strides(shape) if strides is None else strides
        out = self._add_value(dtype, shape, strides, name=self.node_name)
        self.emit(op, inputs, [out], attrs)
        return out

    def add_view(self, of: Value, shape, strides, offset, inputs=None, op="view") -> Value:
        """A value that addresses the storage of `of`; `offset` counts from the storage's begin."""
        out = self._add_value(of.dtype, shape, strides, offset, of.owner, self.node_name)
        self.emit(op, [of] if inputs is None else inputs, [out], {})
        return out

    def store(self, target: Value, source: Value) -> Value:
        """Writes an input, or a view of one, in place."""
        return self.add_view(target, target.shape, target.strides, target.offset, [target, source], op="copy_to")

    def add_value(self, dtype, shape, strides) -> Value:
        return self._add_value(dtype, shape, strides, name=self.node_name)

    def emit(self, op: str, inputs: list[Value], outputs: list[Value], attrs: dict) -> None:
        clean = {}
        for key, value in attrs.items():
            if key in ("imm", "scale"):
                value = _json_float(float(value))
            elif key == "start":
                value = self.sizes.encode(value)
            clean[key] = value
        node = {"op": op, "inputs": [v.id for v in inputs], "outputs": [v.id for v in outputs], "attrs": clean}
        node["name"], node["module"] = self.node_name, self.module
        self.nodes.append(node)

    def finish(self) -> dict:
        written = {self.values[n["outputs"][0]]["base"] for n in self.nodes if n["op"] == "copy_to"}
        immutable = [i not in written for i in self.inputs]
        loop = {"loop": self.loop} if self.loop else {}
        return {
            "name": self.name,
            "symbols": self.sizes.symbols,
            "exprs": self.sizes.exprs,
            "values": self.values,
            "inputs": self.inputs,
            "immutable": immutable,
            "outputs": self.outputs,
            "nodes": self.nodes,
            **loop,
        }


def to_text(graph: dict) -> str:
    return json.dumps(graph, separators=(",", ":"))
