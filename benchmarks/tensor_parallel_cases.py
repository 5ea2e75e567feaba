"""What tensor_parallel.py times: chains of few-row products, decode steps, products beside a collective, a layer's
training step.

A rank's part of each weight is drawn from a seed of its own. So every rank can compute the whole in fp32, layer after
layer, with the parts of all ranks and without any collective: that is the reference.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable

import torch
from torch.nn import functional as F

from tensor_parallel_llama import (
    LLAMA_8B,
    LLAMA_70B,
    TINY,
    Llama,
    attend_cached,
    causal,
    gated,
    layer_weights,
    norm,
    rotary_table,
)
from tensor_parallel_ways import gathered, scattered


@dataclasses.dataclass
class Problem:
    """function(comm, *tensors) is what is compiled; tensors may be lists. With a gradient (of the output) a call is
    forward and backward, and gives the output and the gradients of all tensors that require them. reference() gives
    the same in fp32. prepare() runs before the call that is checked. reduced: shape of what all-reduces sum."""

    case: str
    function: Callable
    tensors: list
    reference: Callable[[], list[torch.Tensor]]
    gradient: torch.Tensor | None = None
    prepare: Callable[[], None] = lambda: None
    reduced: tuple[int, int] | None = None
    collectives: bool = True
    layers: int = 0  # the unit is us per layer, where there are some
    notes: dict = dataclasses.field(default_factory=dict)


class Draw:
    """Random tensors by name; the same name and rank give the same values anywhere."""

    def __init__(self, case: str, device: torch.device, dtype: torch.dtype):
        self.case, self.device, self.dtype = case, device, dtype

    def __call__(self, name: str, rank: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
        seed = zlib.crc32(f"{self.case} {name} {rank}".encode())
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype).mul_(scale)

    def weight(self, name: str, rank: int, out: int, wide: int, whole: int) -> torch.Tensor:
        """[out, wide], of a weight whose inputs are `whole` wide over all ranks."""
        return self(name, rank, out, wide, scale=whole**-0.5)


def chain(
    draw: Draw, rank: int, world: int, rows: int, hidden: int, layers: int, collectives: bool, weighted: bool
) -> Problem:
    """Product of the rank's k slice, all-reduce, residual, norm (`weighted`: with a weight), product, so many times."""
    part = hidden // world

    def weights(r: int) -> list:
        names = (f"{i} {what}" for i in range(layers) for what in ("row", "column"))
        shapes = [(hidden, part), (part, hidden)] * layers
        return [draw.weight(name, r, *shape, hidden) for name, shape in zip(names, shapes)]

    scales = [draw(f"{i} scale", 0, hidden) for i in range(layers)] if weighted else []

    def function(comm, x, y, *given):
        products, factors = given[: 2 * layers], given[2 * layers :]
        for i, (row, column) in enumerate(zip(products[::2], products[1::2])):
            x = x + (comm.row_product(y, row) if collectives else F.linear(y, row))
            y = F.linear(norm(x) * factors[i] if weighted else norm(x), column)
        return y

    x = draw("x", 0, rows, hidden)
    starts = [draw("y", r, rows, part) for r in range(world)]

    def reference() -> list[torch.Tensor]:
        ranks = range(world) if collectives else [rank]
        everybody = [[w.float() for w in weights(r)] for r in ranks]
        total, ys = x.float(), [starts[r].float() for r in ranks]
        for i in range(0, 2 * layers, 2):
            total = total + sum(F.linear(y, w[i]) for y, w in zip(ys, everybody))
            normed = norm(total) * scales[i // 2].float() if weighted else norm(total)
            ys = [F.linear(normed, w[i + 1]) for w in everybody]
        return [ys[rank if collectives else 0]]

    what = ", norms with weights" if weighted else ""
    what += "" if collectives else ", without the all-reduces"
    return Problem(
        f"exchange: {layers} layers, {rows} x {hidden}{what}",
        function,
        [x, starts[rank], *weights(rank), *scales],
        reference,
        reduced=(rows, hidden),
        collectives=collectives,
        layers=layers,
    )


def decode(draw: Draw, rank: int, world: int, m: Llama, batch: int, cache: int, at: int) -> Problem:
    """One step: a token of each sequence, at position `at` of a static cache; all ranks get all logits."""
    device, dtype = draw.device, draw.dtype
    shape = (batch, m.kv_heads // world, cache, m.head)
    embedding = draw("embedding", 0, m.vocabulary, m.hidden)
    ids = torch.arange(batch, device=device) * 7 % m.vocabulary
    position = torch.tensor([at], device=device)
    cos, sin = rotary_table(cache, m.head, device, dtype)
    head = lambda r: draw.weight("head", r, m.vocabulary // world, m.hidden, m.hidden)
    caches = lambda i, r: [draw(f"{i} {what}", r, *shape) for what in ("keys", "values")]
    layer = lambda i, r: layer_weights(draw, m, i, r, world)

    def function(comm, ids, embedding, position, cos, sin, head, layers, caches):
        x = F.embedding(ids, embedding)
        for (qkv, o, gate_up, down), (keys, values) in zip(layers, caches):
            x = x + comm.row_product(attend_cached(m, world, norm(x), qkv, keys, values, position, cos, sin), o)
            x = x + comm.row_product(gated(norm(x), gate_up), down)
        return gathered(F.linear(norm(x), head), comm.world, comm.name)

    def reference() -> list[torch.Tensor]:
        x, wide = F.embedding(ids, embedding).float(), lambda tensors: [t.float() for t in tensors]
        tables = (cos.float(), sin.float())
        for i in range(m.layers):
            parts = []
            for r in range(world):
                qkv, o, *_ = wide(layer(i, r))
                parts.append(F.linear(attend_cached(m, world, norm(x), qkv, *wide(caches(i, r)), position, *tables), o))
            x = x + sum(parts)
            mlps = (wide(layer(i, r)[2:]) for r in range(world))  # one rank's at a time
            x = x + sum(F.linear(gated(norm(x), gate_up), down) for gate_up, down in mlps)
        return [torch.cat([F.linear(norm(x), head(r).float()) for r in range(world)])]

    layers, own = [layer(i, rank) for i in range(m.layers)], [caches(i, rank) for i in range(m.layers)]

    def forget() -> None:
        for tensor in (t for pair in own for t in pair):
            tensor[:, :, at] = float("nan")

    return Problem(
        f"decode: {m.name}, {m.layers} layers, batch {batch}, cache {cache}, position {at}",
        function,
        [ids, embedding, position, cos, sin, head(rank), layers, own],
        reference,
        prepare=forget,
        reduced=(batch, m.hidden),
        notes={"weight_bytes_of_a_rank": sum(w.nbytes for ws in layers for w in ws)},
    )


def product_scattered(draw: Draw, rank: int, world: int, m: int, n: int, k: int) -> Problem:
    """Each rank's k slice of x and weight; a rank gets its rows of the sum."""
    x = lambda r: draw("x", r, m, k // world)
    weight = lambda r: draw.weight("w", r, n, k // world, k)

    def reference() -> list[torch.Tensor]:
        rows = slice(rank * m // world, (rank + 1) * m // world)
        return [sum(F.linear(x(r)[rows].float(), weight(r).float()) for r in range(world))]

    function = lambda comm, x, w: scattered(F.linear(x, w), comm.world, comm.name)
    return Problem(f"gemm_rs: {m} x {n} x {k}", function, [x(rank), weight(rank)], reference)


def gathered_product(draw: Draw, rank: int, world: int, m: int, n: int, k: int) -> Problem:
    """Each rank's rows of x are gathered; a rank gets its columns of the product."""
    x = lambda r: draw("x", r, m // world, k)
    weight = draw.weight("w", rank, n // world, k, k)
    reference = lambda: [F.linear(torch.cat([x(r) for r in range(world)]).float(), weight.float())]
    function = lambda comm, x, w: F.linear(gathered(x, comm.world, comm.name), w)
    return Problem(f"ag_gemm: {m} x {n} x {k}", function, [x(rank), weight], reference)


def layer(draw: Draw, rank: int, world: int, m: Llama, tokens: int) -> Problem:
    """Forward and backward of a layer; each rank has its tokens outside of attention's and the MLP's products."""
    part = slice(rank * tokens // world, (rank + 1) * tokens // world)
    whole, gradient = draw("x", 0, tokens, m.hidden), draw("gradient", 0, tokens, m.hidden)
    cos, sin = rotary_table(tokens, m.head, draw.device, draw.dtype)
    weights = lambda r: layer_weights(draw, m, 0, r, world)

    def function(comm, x, cos, sin, qkv, o, gate_up, down):
        y = gathered(norm(x), comm.world, comm.name)
        x = x + scattered(F.linear(causal(m, world, y, qkv, cos, sin), o), comm.world, comm.name)
        y = gathered(norm(x), comm.world, comm.name)
        return x + scattered(F.linear(gated(y, gate_up), down), comm.world, comm.name)

    def reference() -> list[torch.Tensor]:
        x = whole.float().requires_grad_()
        everybody = [[w.float().requires_grad_(r == rank) for w in weights(r)] for r in range(world)]
        y = norm(x)
        z = x + sum(F.linear(causal(m, world, y, w[0], cos.float(), sin.float()), w[1]) for w in everybody)
        y = norm(z)
        z = z + sum(F.linear(gated(y, w[2]), w[3]) for w in everybody)
        own, *rest = torch.autograd.grad(z, [x, *everybody[rank]], gradient.float())
        return [z.detach()[part], own[part], *rest]

    leaves = [t.requires_grad_() for t in (whole[part].clone(), *weights(rank))]
    tensors = [leaves[0], cos, sin, *leaves[1:]]
    case = f"layer: {m.name}, {tokens} tokens, forward + backward, sequence parallel"
    return Problem(case, function, tensors, reference, gradient=gradient[part].clone())


def entries(
    kinds: list[str], small: bool, layers: int | None, batches: list[int], named: list[str]
) -> list[tuple[str, Callable, tuple]]:
    """(a name, what makes the problem, its sizes after draw, rank and world) of everything that is to be timed."""
    made = []
    chains = [(1, 64, 2), (8, 64, 2)] if small else [(m, h, 16) for h in (4096, 8192) for m in (1, 8)]
    models = [TINY] if small else [m for m in (LLAMA_8B, LLAMA_70B) if any(name in m.name for name in named)]
    if layers:
        models = [dataclasses.replace(model, layers=layers) for model in models]
    products = [(64, 64, 128)] if small else [(8192, 8192, 8192), (8192, 8192, 28672)]
    for kind in kinds:
        if kind == "exchange":
            sizes = [(*size, collectives, False) for size in chains for collectives in (True, False)]
            sizes += [(8, 64, 2, True, True)] if small else [(m, 2048, 16, True, True) for m in (2, 8)]
            made += [(kind, chain, size) for size in sizes]
        elif kind == "decode":
            cache = (32, 11) if small else (1024, 512)
            made += [(kind, decode, (model, batch, *cache)) for model in models for batch in batches]
        elif kind == "layer":
            made.append((kind, layer, (TINY, 64) if small else (LLAMA_8B, 4096)))
        else:
            made += [(kind, product_scattered if kind == "gemm_rs" else gathered_product, size) for size in products]
    return made
