"""Small graphs, one task kind each, for tasks.py: the graph as ark takes it, what the library does for the same, and
the least time that the machine could need."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests/support"))
from graph_builder import DTYPES, GraphBuilder

BYTES_PER_SECOND = 4.7e12  # measured by reading
TENSOR_FLOPS = 790e12  # measured, dense bf16
F32_FLOPS = 60e12  # fused multiply-adds outside of the tensor cores
BF16, F32 = torch.bfloat16, torch.float32


@dataclasses.dataclass
class Kind:
    """One task kind alone. `add(builder, i)` adds the i-th independent copy to a graph and returns its outputs;
    `inputs(device)` makes the tensors of one copy; `library[name](*inputs)` returns what the graph returns; `exact`
    does so in fp64."""

    name: str
    kind: str
    add: Callable[[GraphBuilder, int], list[int]]
    inputs: Callable[[str], list[torch.Tensor]]
    library: dict[str, Callable[..., object]]
    exact: Callable[..., object]
    floor_us: float
    copies: int = 4

    def graph(self, copies: int) -> str:
        builder = GraphBuilder(self.name)
        return builder.returns(*(output for i in range(copies) for output in self.add(builder, i)))


def moved(elements: int, bytes_each: int = 2) -> float:
    """Microseconds that moving so many elements takes."""
    return elements * bytes_each / BYTES_PER_SECOND * 1e6


def computed(flops: float, rate: float = TENSOR_FLOPS) -> float:
    return flops / rate * 1e6


def normal(*sizes: int, dtype: torch.dtype = BF16) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.randn(sizes, device=device, dtype=dtype)


def random_inputs(graph: str, device: str) -> list[torch.Tensor]:
    """Tensors that fit a graph of floating-point inputs without symbols."""
    parsed, dtypes = json.loads(graph), {name: dtype for dtype, name in DTYPES.items()}
    values = [parsed["values"][number] for number in parsed["inputs"]]
    empty = [torch.empty_strided(v["sizes"], v["strides"], dtype=dtypes[v["dtype"]], device=device) for v in values]
    return [tensor.normal_() for tensor in empty]


def cast(g: GraphBuilder, x: int, sizes: Sequence[int], dtype: torch.dtype) -> int:
    return g.pointwise("cast", [x], "cast", sizes, dtype)


def constant(g: GraphBuilder, number: float) -> int:
    return g.node("full", [], g.value("constant", [], F32), imm=number)


def reduced(g: GraphBuilder, x: int, how: str, sizes: Sequence[int], dim: int, keepdim: bool = True) -> int:
    kept = [1 if d == dim else s for d, s in enumerate(sizes)]
    kept = kept if keepdim else [s for d, s in enumerate(sizes) if d != dim]
    return g.node("reduce", [x], g.value(how, kept, F32), reduce=how, dims=[dim], keepdim=keepdim)


def add(rows: int, columns: int) -> Kind:
    sizes = [rows, columns]

    def body(g: GraphBuilder, i: int) -> list[int]:
        a, b = (cast(g, g.input(f"{name}{i}", sizes, BF16), sizes, F32) for name in "ab")
        return [cast(g, g.pointwise("add", [a, b], "sum", sizes, F32), sizes, BF16)]

    make = normal(*sizes)
    return Kind(
        f"a + b, {rows} x {columns}",
        "pointwise",
        body,
        lambda device: [make(device), make(device)],
        {"torch": torch.add},
        torch.add,
        moved(3 * rows * columns),
    )


def softmax(rows: int, columns: int, copies: int = 4) -> Kind:
    sizes, kept = [rows, columns], [rows, 1]

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, g.input(f"x{i}", sizes, BF16), sizes, F32)
        shifted = g.pointwise("sub", [x, reduced(g, x, "max", sizes, 1)], "shifted", sizes, F32)
        e = g.pointwise("exp", [shifted], "e", sizes, F32)
        inverse = g.pointwise("reciprocal", [reduced(g, e, "sum", sizes, 1)], "inverse", kept, F32)
        return [cast(g, g.pointwise("mul", [e, inverse], "p", sizes, F32), sizes, BF16)]

    make, run = normal(*sizes), lambda x: torch.softmax(x, -1)
    floor = moved(2 * rows * columns)
    return Kind(f"softmax, {rows} x {columns}", "row", body, lambda d: [make(d)], {"torch": run}, run, floor, copies)


def layer_norm(rows: int, columns: int) -> Kind:
    sizes, kept = [rows, columns], [rows, 1]

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, g.input(f"x{i}", sizes, BF16), sizes, F32)
        weight, bias = (cast(g, g.input(f"{n}{i}", [columns], BF16), [columns], F32) for n in ("weight", "bias"))
        share, epsilon = constant(g, 1 / columns), constant(g, 1e-5)
        mean = g.pointwise("mul", [reduced(g, x, "sum", sizes, 1), share], "mean", kept, F32)
        centred = g.pointwise("sub", [x, mean], "centred", sizes, F32)
        square = g.pointwise("mul", [centred, centred], "square", sizes, F32)
        variance = g.pointwise("mul", [reduced(g, square, "sum", sizes, 1), share], "variance", kept, F32)
        inverse = g.pointwise("rsqrt", [g.pointwise("add", [variance, epsilon], "v", kept, F32)], "inverse", kept, F32)
        scaled = g.pointwise("mul", [centred, inverse], "scaled", sizes, F32)
        scaled = g.pointwise("add", [g.pointwise("mul", [scaled, weight], "w", sizes, F32), bias], "y", sizes, F32)
        return [cast(g, scaled, sizes, BF16)]

    def inputs(device: str) -> list[torch.Tensor]:
        return [normal(*sizes)(device), normal(columns)(device), normal(columns)(device)]

    run = lambda x, w, b: F.layer_norm(x, (columns,), w, b)
    name, floor = f"layer norm, {rows} x {columns}", moved(2 * rows * columns)
    return Kind(name, "row", body, inputs, {"torch": run}, run, floor)


def column_sum(rows: int, columns: int) -> Kind:
    sizes = [rows, columns]

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, g.input(f"x{i}", sizes, BF16), sizes, F32)
        return [reduced(g, x, "sum", sizes, 0, keepdim=False)]

    make, run = normal(*sizes), lambda x: torch.sum(x, 0, dtype=F32 if x.dtype == BF16 else x.dtype)
    floor = moved(rows * columns)
    return Kind(f"sum over {rows} rows of {columns}", "column", body, lambda d: [make(d)], {"torch": run}, run, floor)


def product(kind: str, m: int, k: int, n: int, dtype: torch.dtype = BF16, copies: int = 4) -> Kind:
    """[m, k] x [n, k] transposed, the weight immutable."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        a = g.input(f"a{i}", [m, k], dtype)
        b = g.input(f"b{i}", [k, n], dtype, strides=[1, k], immutable=True)
        return [g.matmul(a, b, "c", [m, n], dtype)]

    def inputs(device: str) -> list[torch.Tensor]:
        return [normal(m, k, dtype=dtype)(device), normal(n, k, dtype=dtype)(device).t()]

    bytes_each = 4 if dtype == F32 else 2
    rate = F32_FLOPS if dtype == F32 else TENSOR_FLOPS
    floor = max(moved(m * k + k * n + m * n, bytes_each), computed(2 * m * n * k, rate))
    name = f"{m} x {k} x {n}" + (", fp32" if dtype == F32 else "")
    return Kind(name, kind, body, inputs, {"cuBLAS": torch.mm}, torch.mm, floor, copies)


@dataclasses.dataclass
class Shape:
    """Of an attention."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    masked: bool = False  # a mask of bools for all heads: every sequence ends somewhere in its second half
    dtype: torch.dtype = BF16

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}" if self.heads != self.kv_heads else str(self.heads)
        lengths = f"{self.queries}" if self.queries == self.keys else f"{self.queries} of {self.keys}"
        return (
            f"{self.batch} x {heads} x {lengths} x {self.size}"
            + ((", causal" if self.causal else "") + (", mask" if self.masked else ""))
            + (", fp32" if self.dtype == F32 else "")
        )

    @property
    def flops(self) -> float:
        """Of one product of scores' size (what a causal mask hides not counted)."""
        return 2 * self.batch * self.heads * self.queries * self.keys * self.size / (2 if self.causal else 1)

    @property
    def elements(self) -> int:
        """Of queries, keys, values and output."""
        return 2 * self.batch * self.size * (self.heads * self.queries + self.kv_heads * self.keys)

    def inputs(self, device: str) -> list[torch.Tensor]:
        rows = [(self.heads, self.queries), (self.kv_heads, self.keys), (self.kv_heads, self.keys)]
        tensors = [normal(self.batch, h, length, self.size, dtype=self.dtype)(device) for h, length in rows]
        return [*tensors, self.mask(device)] if self.masked else tensors

    def mask(self, device: str) -> torch.Tensor:
        lengths = torch.linspace(self.keys // 2, self.keys, self.batch, device=device).int()
        visible = torch.arange(self.keys, device=device) < lengths[:, None]
        return visible[:, None, None, :].expand(-1, 1, self.queries, -1).contiguous()

    def values(self, g: GraphBuilder, i: int) -> list[int]:
        rows = [(self.heads, self.queries), (self.kv_heads, self.keys), (self.kv_heads, self.keys)]
        sizes = [[self.batch, h, length, self.size] for h, length in rows]
        values = [g.input(f"{name}{i}", size, self.dtype) for name, size in zip("qkv", sizes)]
        if self.masked:
            values.append(g.input(f"mask{i}", [self.batch, 1, self.queries, self.keys], torch.bool))
        return values

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        how = {"is_causal": self.causal, "enable_gqa": self.heads != self.kv_heads}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **how)

    def scores(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Scaled and masked."""
        scores = q @ k.repeat_interleave(self.heads // self.kv_heads, 1).mT * self.size**-0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        if self.causal:
            hidden = torch.ones(self.queries, self.keys, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores

    def exact(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.scores(q, k, mask).softmax(-1) @ v.repeat_interleave(self.heads // self.kv_heads, 1)


def with_backend(backend: SDPBackend, function: Callable) -> Callable:
    def run(*tensors):
        with sdpa_kernel(backend):
            return function(*tensors)

    return run


BACKENDS = {"sdpa flash": SDPBackend.FLASH_ATTENTION, "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION}
GENERAL_BACKENDS = {"sdpa efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION}


def attention(kind: str, shape: Shape, copies: int = 4) -> Kind:
    def body(g: GraphBuilder, i: int) -> list[int]:
        values = shape.values(g, i)
        out = g.value("out", [shape.batch, shape.heads, shape.queries, shape.size], shape.dtype)
        logsumexp = g.value("logsumexp", [shape.batch, shape.heads, shape.queries], F32)
        attrs = {"scale": shape.size**-0.5, "causal": shape.causal, "has_mask": shape.masked}
        node = {"op": "attention", "inputs": values, "outputs": [out, logsumexp], "attrs": attrs}
        g.graph["nodes"].append(node | {"name": "attention", "module": "test"})
        return [out]

    wide = shape.dtype == F32
    masks = moved(shape.batch * shape.queries * shape.keys, 1) if shape.masked else 0.0
    bound = computed(2 * shape.flops, F32_FLOPS if wide else TENSOR_FLOPS)
    floor = max(moved(shape.elements, 4 if wide else 2) + masks, bound)
    backends = GENERAL_BACKENDS if wide or shape.masked else BACKENDS
    library = {name: with_backend(backend, shape.run) for name, backend in backends.items()}
    return Kind(f"attention, {shape}", kind, body, shape.inputs, library, shape.exact, floor, copies)


def attention_backward(shape: Shape, copies: int = 4) -> Kind:
    """The three kinds of the backward together. The library's forward runs outside of what is timed."""
    of_queries = [shape.batch, shape.heads, shape.queries, shape.size]

    def body(g: GraphBuilder, i: int) -> list[int]:
        q, k, v = shape.values(g, i)
        dout, out = (g.input(f"{name}{i}", of_queries, BF16) for name in ("dout", "out"))
        logsumexp = g.input(f"logsumexp{i}", of_queries[:3], F32)
        of_keys = [shape.batch, shape.kv_heads, shape.keys, shape.size]
        outputs = [g.value(n, s, BF16) for n, s in (("dq", of_queries), ("dk", of_keys), ("dv", of_keys))]
        attrs = {"scale": shape.size**-0.5, "causal": shape.causal, "has_mask": False}
        node = {"op": "attention_backward", "inputs": [dout, q, k, v, out, logsumexp], "outputs": outputs}
        g.graph["nodes"].append(node | {"attrs": attrs, "name": "attention_backward", "module": "test"})
        return outputs

    def inputs(device: str) -> list[torch.Tensor]:
        q, k, v = shape.inputs(device)
        dout = torch.randn(of_queries, device=device, dtype=BF16)
        logsumexp = shape.scores(q.float(), k.float()).logsumexp(-1)
        return [q, k, v, dout, shape.exact(q.float(), k.float(), v.float()).to(BF16), logsumexp]

    forwards: dict[tuple, tuple] = {}

    def library(backend: SDPBackend | None) -> Callable:
        def run(q, k, v, dout, out, logsumexp):
            key = (backend, q.data_ptr())
            if key not in forwards:  # the first call is never timed
                leaves = [t.detach().requires_grad_() for t in (q, k, v)]
                with torch.enable_grad():
                    forwards[key] = leaves, with_backend(backend, shape.run)(*leaves)
            leaves, output = forwards[key]
            return torch.autograd.grad(output, leaves, dout, retain_graph=True)

        return run

    def exact(q, k, v, dout, out, logsumexp):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            return torch.autograd.grad(shape.exact(*leaves), leaves, dout)

    floor = max(moved(2 * shape.elements), computed(5 * shape.flops))
    rivals = {name: library(backend) for name, backend in BACKENDS.items()}
    return Kind(f"attention backward, {shape}", "attention_backward", body, inputs, rivals, exact, floor, copies)


def kinds(small: bool) -> list[Kind]:
    """What is measured; `small`: shapes for trying the benchmark where there is no GPU."""
    if small:
        return [
            add(64, 256),
            softmax(64, 256),
            layer_norm(64, 256),
            column_sum(256, 64),
            product("matmul_rows", 1, 256, 512),
            product("matmul_tile", 128, 64, 256),
            attention("attention_forward", Shape(1, 4, 2, 128, 128, 64, True)),
            attention("attention_forward + mask_range", Shape(2, 4, 4, 128, 128, 64, masked=True)),
            attention("attention_simple", Shape(1, 2, 2, 64, 64, 64, dtype=F32)),
            attention_backward(Shape(1, 2, 2, 128, 128, 64)),
        ]
    bert, llama = Shape(10, 16, 16, 384, 384, 64), Shape(1, 32, 8, 2048, 2048, 64, True)
    eighty = Shape(4, 16, 16, 1024, 1024, 80)
    return [
        add(8192, 4096),
        layer_norm(16384, 1024),
        softmax(8192, 4096),
        softmax(3840, 30528, copies=3),
        column_sum(16384, 4096),
        product("matmul_rows", 1, 8192, 8192),
        product("matmul_rows", 1, 2048, 8192, copies=8),
        product("matmul_tile", 3840, 1024, 4096),
        product("matmul_tile", 3840, 4096, 1024),
        product("matmul_tile", 4096, 4096, 4096),
        product("matmul_float", 1024, 1024, 1024, F32),
        product("matmul_float", 3840, 4096, 1024, F32),
        product("matmul_float", 4096, 4096, 4096, F32),
        attention("attention_decode", Shape(1, 32, 8, 1, 32768, 64)),
        attention("attention_forward", bert),
        attention("attention_forward", llama),
        attention("attention_forward", eighty),
        attention("attention_forward + mask_range", dataclasses.replace(bert, masked=True)),
        attention("attention_simple", Shape(1, 16, 16, 512, 512, 64, dtype=F32)),
        attention("attention_simple", Shape(1, 16, 16, 1024, 1024, 256)),
        attention_backward(bert),
        attention_backward(llama),
        attention_backward(eighty),
    ]
