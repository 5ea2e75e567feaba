"""Single ops, lowered and planned: which task kinds the planner takes for them, type by type."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

import ark_torch.compile  # noqa: F401  (fills the lowering table)
from ark_torch import _C
from ark_torch.graph_json import DTYPE_NAMES, to_text
from ark_torch.segment import lower_segment, probe

aten, ark = torch.ops.aten, torch.ops.ark


@dataclass(frozen=True)
class Sample:
    what: str
    target: torch._ops.OpOverload
    shapes: tuple  # of the tensors that come first
    more: tuple = ()  # the arguments behind them
    strides: dict | None = None  # number of a tensor -> strides other than contiguous
    types: dict | None = None  # number of a tensor -> type other than the row's
    floats: bool = False  # there is no such op of other types


def product(rows: int, n: int = 1024, k: int = 1024) -> Sample:
    """With a weight as nn.Linear has it."""
    return Sample(f"product, {rows} x {k} x {n}", aten.mm.default, ((rows, k), (k, n)), strides={1: (1, k)})


def attention(what: str, heads: tuple, rows: int, keys: int, size: int) -> Sample:
    q, kv = (1, heads[0], rows, size), (1, heads[1], keys, size)
    return Sample(what, ark.attention.default, (q, kv, kv), (None, size**-0.5, False), floats=True)


def backward(size: int) -> Sample:
    shape = (1, 8, 256, size)
    types = {5: torch.float32}
    what = f"attention's backward, heads of {size}"
    return Sample(
        what, ark.attention_backward.default, (shape,) * 5 + (shape[:3],), (None, 0.1, False), types=types, floats=True
    )


SAMPLES = (
    Sample("elementwise: add", aten.add.Tensor, ((64, 64), (64, 64))),
    Sample("sum along rows", aten.sum.dim_IntList, ((512, 1024),), ([1],)),
    Sample("sum along columns", aten.sum.dim_IntList, ((512, 1024),), ([0],)),
    Sample("softmax", aten._softmax.default, ((512, 1024),), (1, False), floats=True),
    Sample("argmax along rows", aten.argmax.default, ((512, 1024),), (1,)),
    Sample("prefix sum", aten.cumsum.default, ((64, 64),), (1,)),
    Sample("rows of a table by index", aten.embedding.default, ((512, 64), (32,)), types={1: torch.int64}),
    Sample("concatenation", aten.cat.default, ((64, 64), (64, 32)), (1,)),
    product(1),
    product(8),
    product(16),
    product(512),
    attention("attention, 256 x 256, heads of 64", (8, 8), 256, 256, 64),
    attention("attention, 256 x 256, heads of 80", (8, 8), 256, 256, 80),
    attention("attention, 256 x 256, heads of 256", (8, 8), 256, 256, 256),
    attention("attention, 1 query of 32 heads, 4096 keys of 8", (32, 8), 1, 4096, 64),
    attention("attention, 1 query of 4 heads of 256, 4096 keys of 1", (4, 1), 1, 4096, 256),
    attention("attention, 1 query of 32 heads of 72, 4096 keys of 8", (32, 8), 1, 4096, 72),
    backward(64),
    backward(256),
)


def _fakes(sample: Sample, dtype: torch.dtype) -> list[torch.Tensor]:
    types, strides = sample.types or {}, sample.strides or {}
    fakes = []
    for number, shape in enumerate(sample.shapes):
        fake = torch.empty(shape, dtype=types.get(number, dtype))
        fakes.append(fake.as_strided(shape, strides[number]) if number in strides else fake)
    return fakes


def kinds_of(sample: Sample, dtype: torch.dtype) -> str:
    """Task kinds of the plan; "-" where the op runs through ATen, nothing where there is no such op."""
    with FakeTensorMode():
        fakes = _fakes(sample, dtype)
        graph = fx.Graph()
        nodes = [graph.placeholder(f"x{i}") for i in range(len(fakes))]
        for node, fake in zip(nodes, fakes):
            node.meta["val"] = fake
        joined = sample.target is aten.cat.default
        node = graph.call_function(sample.target, (*((nodes,) if joined else nodes), *sample.more))
        try:
            node.meta["val"] = sample.target(*((fakes,) if joined else fakes), *sample.more)
        except (RuntimeError, NotImplementedError):
            return ""
        return "-" if probe(node, torch.device("cpu")) else _planned(graph, node)


def _planned(graph: fx.Graph, node: fx.Node) -> str:
    """Of attention, the result alone is asked for: what a backward pass would read keeps it from the decode kind."""
    body, outputs = [node], [node]
    if isinstance(values := node.meta["val"], (tuple, list)):
        values = values[:1] if node.target is ark.attention.default else values
        outputs = [graph.call_function(operator.getitem, (node, number)) for number in range(len(values))]
        for output, value in zip(outputs, values):
            output.meta["val"] = value
        body += outputs
    segment = lower_segment("sample", body, outputs, torch.device("cpu"))
    try:
        plan = json.loads(_C.plan_graph(to_text(segment.graph), [], {"workers": 132}))
    except _C.Unsupported:
        return "-"
    return ", ".join(sorted({op.get("kind", "pointwise") for op in plan["ops"]}))


def task_table() -> str:
    """A row per sample and set of kinds, with the types that get them."""
    lines = ["| op | tasks | types |", "|---|---|---|"]
    for sample in SAMPLES:
        rows: dict[str, list[str]] = {}
        for dtype, name in DTYPE_NAMES.items():
            if dtype.is_floating_point or not sample.floats:
                rows.setdefault(kinds_of(sample, dtype), []).append(name)
        rows.pop("", None)
        for kinds, names in rows.items():
            lines.append(f"| {sample.what} | {kinds} | {' '.join(names)} |")
    return "\n".join(lines)
