"""What sweep.py measures: single ops over shapes, kind by kind, each as the torch function that ark compiles too."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from task_graphs import (  # fmt: skip
    BACKENDS,
    BF16,
    F32,
    F32_FLOPS,
    TENSOR_FLOPS,
    Kind,
    Shape,
    attention_backward,
    computed,
    moved,
    normal,
    with_backend,
)

ENOUGH_US, MOST_COPIES, LEAST_COPIES = 100, 32, 4
F16 = torch.float16
MOST_BYTES = 2 << 30  # of the operands of all copies


@dataclasses.dataclass
class Op:
    """One op. `run(*tensors)` is done on `copies` sets of `inputs(device)` in one graph; in fp64 it is the yardstick.
    rivals: other ways to have it done than by torch as it is. noise: a relative error that is none."""

    kind: str
    name: str
    run: Callable[..., object]
    inputs: Callable[[str], list[torch.Tensor]]
    floor_us: float
    bytes: float
    rivals: dict[str, Callable[..., object]] = dataclasses.field(default_factory=dict)
    noise: float = 0.0
    quick: bool = False

    @property
    def copies(self) -> int:
        wanted = max(LEAST_COPIES, min(MOST_COPIES, math.ceil(ENOUGH_US / max(self.floor_us, 0.5))))
        return max(1, min(wanted, int(MOST_BYTES / self.bytes)))

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclasses.dataclass
class BuiltOp:
    """An op that torch.compile has no function for; tasks.py measures it as a graph."""

    kind: str
    graph: Kind
    quick: bool = False

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.graph.name}"


def op(kind: str, name: str, run: Callable, inputs: list, elements: float, flops: float = 0.0, **more) -> Op:
    """Floor by the elements of two bytes each that are moved, or by products on the tensor cores."""
    make = lambda device: [each(device) for each in inputs]
    floor = max(moved(elements), computed(flops, more.pop("rate", TENSOR_FLOPS)))
    return Op(kind, name, run, make, floor, 2 * elements, **more)


EPILOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda product, *_: product,
    "bias": lambda product, bias, *_: product + bias,
    "gelu": lambda product, bias, *_: F.gelu(product + bias),
    "residual": lambda product, _, residual: product + residual,
}


def product(kind: str, m: int, n: int, k: int, layout: str, epilogue: str, dtype=BF16, quick: bool = False) -> Op:
    """[m, k] by weights that lie as n x k (nn.Linear's) or k x n (GPT-2's Conv1D), and what follows."""
    make = lambda *sizes: normal(*sizes, dtype=dtype)
    weight = (n, k) if layout == "n x k" else (k, n)
    times = (lambda x, w: x @ w.t()) if layout == "n x k" else (lambda x, w: x @ w)
    inputs, sizes = [make(m, k), make(*weight)], m * k + k * n + m * n
    if epilogue == "gate":
        inputs, sizes = [*inputs, make(*weight)], sizes + k * n
        run = lambda x, w, v: F.silu(times(x, w)) * times(x, v)
    elif epilogue == "plain":
        run = times
    else:
        inputs, after = [*inputs, make(n), make(m, n)], EPILOGUES[epilogue]
        run = lambda x, w, bias, residual: after(times(x, w), bias, residual)
        sizes += m * n if epilogue == "residual" else 0
    name = f"{m} x {k} x {n}, {layout}, {epilogue}"
    wide = dtype == F32
    flops, rate = 2 * m * n * k * (2 if epilogue == "gate" else 1), F32_FLOPS if wide else TENSOR_FLOPS
    return op(kind, name, run, inputs, sizes * (2 if wide else 1), flops, rate=rate, quick=quick, noise=1e-6)


FEW = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128)
LAYOUTS = ("n x k", "k x n")
AFTER = ("bias", "gelu", "gate", "residual")


def few_rows(shapes=((768, 768), (4096, 1024), (2048, 8192)), numbers=FEW, after=(4096, 1024)) -> Iterator[Op]:
    for n, k in shapes:
        for layout in LAYOUTS:
            for m in numbers:
                quick = (n, k) == (4096, 1024) and m in ((1, 8, 64) if layout == "n x k" else (1, 16))
                yield product("few rows", m, n, k, layout, "plain", quick=quick)
    quick = ((4, "n x k", "gate"), (16, "k x n", "gelu"), (1, "n x k", "residual"))
    for epilogue in AFTER:
        for layout in LAYOUTS:
            for m in (1, 4, 16, 64):
                yield product("few rows", m, *after, layout, epilogue, quick=(m, layout, epilogue) in quick)


TILES = (
    *((200, 768, 768), (384, 1024, 1024), (1000, 3072, 768), (2048, 2048, 2048), (2048, 8192, 2048)),
    *((3840, 1024, 4096), (6304, 768, 768), (4096, 4096, 4096)),
)


def tiles(shapes=TILES) -> Iterator[Op]:
    for m, n, k in shapes:
        for layout in LAYOUTS:
            yield product("tiles", m, n, k, layout, "plain", quick=layout == "n x k" and m in (384, 2048) and n < 4096)
        for epilogue in AFTER:
            yield product("tiles", m, n, k, "n x k", epilogue, quick=(m, epilogue) == (6304, "residual"))


FLOATS = ((1, 1024, 1024), (16, 1024, 1024), (100, 768, 768), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))


def float_products(shapes=FLOATS) -> Iterator[Op]:
    for m, n, k in shapes:
        for layout in LAYOUTS:
            quick = layout == "n x k" and m in (16, 1024)
            yield product("fp32 products", m, n, k, layout, "plain", F32, quick=quick)


def attention(kind: str, shape: Shape, quick: bool = False) -> Op:
    inputs = [lambda device, i=i: shape.inputs(device)[i] for i in range(3)]
    rivals = {name: with_backend(backend, shape.run) for name, backend in BACKENDS.items()}
    return op(kind, str(shape), shape.run, inputs, shape.elements, 2 * shape.flops, rivals=rivals, quick=quick)


DECODES = ((1, 32, 8, 128), (1, 32, 8, 1024), (8, 16, 16, 1024), (1, 32, 8, 8192))
PREFILLS = ((8, 12, 128, False), (1, 16, 197, False), (4, 16, 512, True), (1, 32, 2048, True))
BACKWARDS = ((8, 12, 128, False), (4, 16, 512, True), (1, 16, 2048, True))


def attentions(sizes=(64, 80, 96, 128, 256), decodes=DECODES, prefills=PREFILLS) -> Iterator[Op]:
    for size in sizes:
        for batch, heads, kv_heads, keys in decodes:
            quick = size in (64, 96) and (batch, keys) == (1, 1024)
            yield attention("attention decode", Shape(batch, heads, kv_heads, 1, keys, size), quick)
        for batch, heads, length, causal in prefills:
            quick = size in (64, 128) and length == 512
            yield attention("attention prefill", Shape(batch, heads, heads, length, length, size, causal), quick)


def backwards(sizes=(64, 80, 128), shapes=BACKWARDS) -> Iterator[BuiltOp]:
    for size in sizes:
        for batch, heads, length, causal in shapes:
            shape = Shape(batch, heads, heads, length, length, size, causal)
            yield BuiltOp("attention backward", attention_backward(shape), quick=(size, length) == (64, 512))


def turned(rows: int, columns: int) -> Callable[[str], torch.Tensor]:
    return lambda device: normal(columns, rows)(device).t()


def pointwise(shapes=((1, 4096), (128, 1024), (2048, 1024), (3001, 769), (8192, 4096), (512, 50257))) -> Iterator[Op]:
    for rows, columns in shapes:
        full, size, name = normal(rows, columns), rows * columns, f"{rows} x {columns}"
        more = {"quick": (rows, columns) in ((2048, 1024), (3001, 769))}
        yield op("pointwise", f"a + b, {name}", torch.add, [full, full], 3 * size, **more)
        yield op("pointwise", f"gelu, {name}", F.gelu, [full], 2 * size)
        yield op("pointwise", f"cast to fp32, {name}", lambda x: x.to(F32), [full], 3 * size)
        yield op("pointwise", f"a + b transposed, {name}", torch.add, [full, turned(rows, columns)], 3 * size, **more)
        yield op("transpose", f"copy of a transpose, {name}", lambda x: x.t().contiguous(), [full], 2 * size, **more)


def broadcasts(shapes=((4096, 4097), (16384, 1001), (65536, 257), (4096, 4096))) -> Iterator[Op]:
    """A value per column and one per row."""
    run = lambda x, y, z: F.gelu(x) * y + z
    for rows, columns in shapes:
        inputs, name = [normal(rows, columns), normal(columns), normal(rows, 1)], f"{rows} x {columns}"
        title = f"gelu * columns + rows, {name}"
        yield op("pointwise", title, run, inputs, 2 * rows * columns, quick=columns in (4097, 257))


def transposes(shapes=((4096, 4096), (4095, 4097), (512, 32000)), image=(32, 56, 56, 128)) -> Iterator[Op]:
    """Transposes with something computed on the way, and permutations of images."""
    for rows, columns in shapes:
        make, elements, name = normal(rows, columns), 2 * rows * columns, f"{rows} x {columns}"
        yield op("transpose", f"2 x transposed, {name}", lambda x: (x.t() * 2).contiguous(), [make], elements)
    make, elements, name = normal(*image), 2 * math.prod(image), " x ".join(map(str, image))
    yield op("transpose", f"channels first, {name}", lambda x: x.permute(0, 3, 1, 2).contiguous(), [make], elements)
    yield op("transpose", f"all turned, {name}", lambda x: x.permute(3, 2, 1, 0).contiguous(), [make], elements)


def heads_last(shapes=((1, 32, 2048, 64), (8, 12, 197, 64), (4, 16, 511, 80))) -> Iterator[Op]:
    for batch, heads, length, size in shapes:
        make, elements = normal(batch, length, heads, size), 2 * batch * heads * length * size
        name = f"heads of {batch} x {length} x {heads} x {size}"
        yield op("transpose", name, lambda x: x.transpose(1, 2).contiguous(), [make], elements)


def entropy(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), targets.long(), reduction="none")


def rows(lengths=(64, 197, 768, 1024, 1500, 4096, 8192, 30522, 50257), counts=(1, 16, 4096)) -> Iterator[Op]:
    for length in lengths:
        for count in counts:
            count = min(count, 512) if length > 8192 else count
            x, w, wide = normal(count, length), normal(length), normal(count, length, dtype=F32)
            targets = lambda device, c=count, n=length: torch.randint(n, (c,), device=device)
            size, name = count * length, f"{count} x {length}"
            more = {"quick": (count, length) in ((4096, 768), (16, 50257)), "noise": 1e-6}
            norm = lambda x, w, b: F.layer_norm(x, w.shape, w, b)
            yield op("softmax", name, lambda x: torch.softmax(x, -1), [x], 2 * size, **more)
            yield op("log-sum-exp", name, lambda x: torch.logsumexp(x, -1), [x], size, **more)
            yield op("layer norm", name, norm, [x, w, w], 2 * size, **more)
            yield op("rms norm", name, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), [x, w], 2 * size, **more)
            yield op("argmax", name, lambda x: x.argmax(-1), [wide], 2 * size, **more)
            yield op("cross entropy", name, entropy, [x, targets], size, **more)


SHORT_ROWS = ((100000, 64), (30000, 320), (2364, 197), (30000, 321))


def short_rows(shapes=SHORT_ROWS) -> Iterator[Op]:
    """Many rows of a few vectors each, aligned and of odd lengths."""
    norm = lambda x, w, b: F.layer_norm(x, w.shape, w, b)
    for count, length in shapes:
        x, w, size, more = normal(count, length), normal(length), count * length, {"quick": True, "noise": 1e-6}
        name = f"{count} x {length}"
        yield op("short rows", f"softmax, {name}", lambda x: torch.softmax(x, -1), [x], 2 * size, **more)
        yield op("short rows", f"layer norm, {name}", norm, [x, w, w], 2 * size, **more)
        yield op("short rows", f"log-sum-exp, {name}", lambda x: torch.logsumexp(x, -1), [x], size, **more)


ODD_ROWS = (
    (150000, 65),
    (75000, 127),
    (75000, 129),
    (37500, 257),
    (30000, 321),
    (18750, 513),
    (12500, 769),
    (9600, 1001),
)


def odd_rows(shapes=ODD_ROWS) -> Iterator[Op]:
    """Rows that begin anywhere between aligned addresses, of one size each."""
    norm = lambda x, w, b: F.layer_norm(x, w.shape, w, b)
    sum_and_norm = lambda x, y, w, b: (x + y, norm(x + y, w, b))
    for (count, length), dtype in itertools.product(shapes, (BF16, F16, F32)):
        x, w, size = normal(count, length, dtype=dtype), normal(length, dtype=dtype), count * length
        more = {"quick": length == 321 and dtype == BF16, "noise": 1e-6}
        name, moves = f"{count} x {length}, {dtype}", size * dtype.itemsize // 2
        yield op("odd rows", f"softmax, {name}", lambda x: torch.softmax(x, -1), [x], 2 * moves, **more)
        yield op("odd rows", f"log-sum-exp, {name}", lambda x: torch.logsumexp(x, -1), [x], moves, **more)
        yield op("odd rows", f"layer norm, {name}", norm, [x, w, w], 2 * moves, **more)
        yield op("odd rows", f"residual and norm, {name}", sum_and_norm, [x, x, w, w], 4 * moves, **more)


TABLES = ((50257, 1024, 768), (30522, 3840, 1024), (512, 3840, 1024), (2, 3840, 1024), (128256, 4096, 2048))


def tables(shapes=TABLES) -> Iterator[Op]:
    """Gradients of lookup tables."""
    for count, terms, width in shapes:
        run = lambda x, index, n=count: torch.ops.aten.embedding_dense_backward(x, index, n, -1, False)
        index = lambda device, n=count, terms=terms: torch.randint(n, (terms,), device=device)
        name, moved = f"{terms} rows of {width} into {count}", (terms + count) * width
        yield op("sums by index", name, run, [normal(terms, width), index], moved, quick=count < 100000, noise=1e-6)


COLUMNS = ((16, 4096), (128, 768), (4096, 1024), (3840, 769), (16384, 4096), (512, 50257), (65536, 64))


def columns(shapes=COLUMNS) -> Iterator[Op]:
    total = lambda x: torch.sum(x, 0, dtype=F32 if x.dtype == BF16 else x.dtype)
    for count, width in shapes:
        more = {"quick": (count, width) in ((4096, 1024), (3840, 769)), "noise": 1e-6}
        yield op("column sums", f"{count} rows of {width}", total, [normal(count, width)], count * width, **more)


JOINS = ((2048, (1024, 1024)), (2048, (768, 769)), (1, (4096, 4096, 4096)), (8192, (64, 64)), (512, (50257, 1)))


def joins(shapes=JOINS) -> Iterator[Op]:
    for count, widths in shapes:
        name, quick = f"{count} rows of {' + '.join(map(str, widths))}", widths in ((1024, 1024), (768, 769))
        inputs = [normal(count, width) for width in widths]
        join = lambda *parts: torch.cat(parts, -1)
        yield op("concatenation", name, join, inputs, 2 * count * sum(widths), quick=quick)


def other_joins() -> Iterator[Op]:
    """Other dimensions, and pieces that are computed."""
    a, b, wide = normal(32, 64, 56 * 56), normal(32, 32, 56 * 56), normal(4096, 128)
    size = 2 * 32 * (64 + 32) * 56 * 56
    yield op(
        "concatenation", "channels 64 + 32 of 32 images of 56 x 56", lambda a, b: torch.cat([a, b], 1), [a, b], size
    )
    name = "the same, one of them by relu"
    yield op("concatenation", name, lambda a, b: torch.cat([a.relu(), b], 1), [a, b], size)
    rotate = lambda x: torch.cat([-x[:, 64:], x[:, :64]], -1)
    yield op("concatenation", "4096 rows of 128, halves rotated", rotate, [wide], 2 * 4096 * 128)
    rows = [normal(2000, 1024), normal(1003, 1024)]
    yield op("concatenation", "2000 + 1003 rows of 1024", lambda *x: torch.cat(x), rows, 2 * 3003 * 1024)


IMAGES = ((8, 64, 112), (8, 256, 56), (8, 512, 28), (8, 2048, 7), (32, 128, 28), (1, 96, 55))


def batch_norms(shapes=IMAGES) -> Iterator[Op]:
    run = lambda x, w, b, mean, var: F.relu(F.batch_norm(x, mean, var.abs() + 0.5, w, b))
    for n, c, side in shapes:
        inputs, elements = [normal(n, c, side, side), *[normal(c)] * 4], 2 * n * c * side * side
        yield op("batch norm + relu", f"{n} x {c} x {side} x {side}", run, inputs, elements, quick=c in (256, 2048))


PARTS = (
    *(few_rows, tiles, float_products, attentions, backwards),
    *(
        pointwise,
        broadcasts,
        transposes,
        heads_last,
        rows,
        short_rows,
        odd_rows,
        tables,
        columns,
        joins,
        other_joins,
        batch_norms,
    ),
)


def all_ops() -> list[Op | BuiltOp]:
    return [each for part in PARTS for each in part()]


def small_ops() -> list[Op | BuiltOp]:
    """The same kinds at sizes for trying the sweep without a GPU."""
    parts = (
        few_rows(((64, 96),), (1, 2, 5), (64, 32)),
        tiles(((130, 64, 64),)),
        float_products(((16, 32, 64),)),
        attentions((64,), ((1, 4, 2, 33),), ((1, 2, 40, True),)),
        backwards((64,), ((1, 2, 64, True),)),
        pointwise(((5, 33),)),
        broadcasts(((5, 33),)),
        transposes(((20, 33),), (2, 5, 4, 17)),
        heads_last(((1, 2, 5, 8),)),
        rows((64, 33), (3,)),
        short_rows(((40, 64), (7, 33))),
        odd_rows(((7, 33),)),
        tables(((20, 9, 16),)),
        columns(((40, 33),)),
        joins(((5, (8, 9)),)),
        batch_norms(((2, 3, 5),)),
    )
    return [each for part in parts for each in part]
