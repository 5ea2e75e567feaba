"""Small ir graphs as JSON, for tests of the runtime that need no front end."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

DTYPES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
}


def dense(sizes: Sequence) -> list:
    """Row-major strides; the sizes after the first must be numbers."""
    strides, stride = [], 1
    for size in reversed(list(sizes)):
        strides.append(stride)
        stride = stride * size if isinstance(size, int) else stride
    return strides[::-1]


class GraphBuilder:
    """Values are ids. A size is an int or sym(i)."""

    def __init__(self, name: str, symbols: Sequence[str] = ()):
        self.graph = {
            "name": name,
            "symbols": list(symbols),
            "exprs": [{"op": "sym", "value": i} for i in range(len(symbols))],
            "values": [],
            "inputs": [],
            "immutable": [],
            "outputs": [],
            "nodes": [],
        }

    def sym(self, index: int) -> dict:
        return {"expr": index}

    def value(self, name: str, sizes: Sequence, dtype=torch.float32, strides=None, base: int = -1, offset=0) -> int:
        strides = dense(sizes) if strides is None else strides
        value = {"name": name, "dtype": DTYPES[dtype], "sizes": list(sizes), "strides": list(strides)}
        self.graph["values"].append(value | {"base": base, "offset": offset})
        return len(self.graph["values"]) - 1

    def input(self, name: str, sizes: Sequence, dtype=torch.float32, strides=None, immutable: bool = False) -> int:
        value = self.value(name, sizes, dtype, strides)
        self.graph["inputs"].append(value)
        self.graph["immutable"].append(immutable)
        return value

    def node(self, op: str, inputs: Sequence[int], output: int, **attrs) -> int:
        name = self.graph["values"][output]["name"]
        self.graph["nodes"].append(
            {"op": op, "inputs": list(inputs), "outputs": [output], "attrs": attrs, "name": name, "module": "test"}
        )
        return output

    def pointwise(self, opcode: str, inputs: Sequence[int], name: str, sizes: Sequence, dtype=torch.float32) -> int:
        return self.node("pointwise", inputs, self.value(name, sizes, dtype), opcode=opcode)

    def matmul(self, a: int, b: int, name: str, sizes: Sequence, dtype=torch.float32) -> int:
        return self.node("matmul", [a, b], self.value(name, sizes, dtype))

    def returns(self, *values: int) -> str:
        self.graph["outputs"] = list(values)
        return json.dumps(self.graph)


def add_relu(sizes: Sequence, dtype=torch.float32, name: str = "add_relu") -> str:
    """relu(a + b), elementwise."""
    g = GraphBuilder(name)
    a, b = g.input("a", sizes, dtype), g.input("b", sizes, dtype)
    total = g.pointwise("add", [a, b], "total", sizes, dtype)
    return g.returns(g.pointwise("relu", [total], "out", sizes, dtype))


def mlp(rows: int, inner: int, dtype=torch.float32, name: str = "mlp") -> str:
    """relu(x @ w1) @ w2 + x, with x [rows, 64], w1 [64, inner], w2 [inner, 64]."""
    g = GraphBuilder(name)
    x = g.input("x", [rows, 64], dtype)
    w1, w2 = g.input("w1", [64, inner], dtype, immutable=True), g.input("w2", [inner, 64], dtype, immutable=True)
    hidden = g.pointwise("relu", [g.matmul(x, w1, "hidden", [rows, inner], dtype)], "act", [rows, inner], dtype)
    back = g.matmul(hidden, w2, "back", [rows, 64], dtype)
    return g.returns(g.pointwise("add", [back, x], "out", [rows, 64], dtype))


def symbolic_scale(name: str = "scale") -> str:
    """a * a + a for a [s0, 8]."""
    g = GraphBuilder(name, ["s0"])
    sizes = [g.sym(0), 8]
    a = g.input("a", sizes)
    return g.returns(g.pointwise("add", [g.pointwise("mul", [a, a], "square", sizes), a], "out", sizes))


def accumulate_in_place(size: int, name: str = "accumulate") -> str:
    """state += x, and returns the state's new value times x."""
    g = GraphBuilder(name)
    state, x = g.input("state", [size]), g.input("x", [size])
    total = g.pointwise("add", [state, x], "total", [size])
    g.node("copy_to", [state, total], g.value("written", [size], base=state))
    return g.returns(g.pointwise("mul", [total, x], "out", [size]))
