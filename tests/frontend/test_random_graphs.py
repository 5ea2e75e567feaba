"""Random ir graphs (views, reductions, products, gathers, scatters, copies into inputs): the host target against the
reference evaluator."""

from __future__ import annotations

import math
import random

import pytest
import torch

from ark_torch import _C
from tests.support.graph_builder import DTYPES, GraphBuilder, dense
from tests.support.reference_eval import ReferenceGraph

SEEDS = range(48)


class RandomGraph:
    """Grows a graph of float values; `values` are (id, owner, sizes, strides, offset)."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.dtype = self.random.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
        self.builder = GraphBuilder(f"random{seed}")
        self.values: list[tuple] = []
        self.tensors: list[torch.Tensor] = []
        self.mutable: list[int] = []
        self.copies: list[tuple] = []  # made at the end, as AOTAutograd does
        self.count = 0
        torch.manual_seed(seed)
        self.sizes = [self.random.choice([1, 2, 3, 4, 8]) for _ in range(2)] + [self.random.choice([4, 8, 16, 24])]
        for i in range(4):
            self.add_input(self.sizes if i < 2 else self.some_sizes())

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def some_sizes(self) -> list[int]:
        rank = self.random.randint(1, 3)
        return [self.random.choice(self.sizes) for _ in range(rank)]

    def add_input(self, sizes, dtype=None, tensor=None) -> int:
        dtype = dtype or self.dtype
        tensor = torch.randn(sizes).to(dtype) if tensor is None else tensor
        number = self.builder.input(self.name(), sizes, dtype)
        self.tensors.append(tensor)
        if dtype == self.dtype:
            self.values.append((number, number, list(sizes), dense(sizes), 0))
            self.mutable.append(number)
        return number

    def owner(self, op, inputs, sizes, dtype=None, strides=None, **attrs) -> int:
        strides = dense(sizes) if strides is None else strides
        number = self.builder.value(self.name(), sizes, dtype or self.dtype, strides)
        self.builder.node(op, inputs, number, **attrs)
        if (dtype or self.dtype) == self.dtype:
            self.values.append((number, number, list(sizes), list(strides), 0))
        return number

    def view(self, source, sizes, strides, offset) -> tuple:
        number = self.builder.value(self.name(), sizes, self.dtype, strides, base=source[1], offset=offset)
        self.builder.node("view", [source[0]], number)
        self.values.append((number, source[1], list(sizes), list(strides), offset))
        return self.values[-1]

    def pick(self) -> tuple:
        recent = self.values[-8:]
        return self.random.choice(recent if self.random.random() < 0.7 else self.values)

    def scalar(self, number: float) -> int:
        value = self.builder.value(self.name(), [], self.dtype)
        self.builder.node("full", [], value, imm=number)
        return value

    # ---- steps ----
    def unary(self):
        x = self.pick()
        self.owner(
            "pointwise",
            [x[0]],
            x[2],
            opcode=self.random.choice(["neg", "abs", "sin", "tanh", "sigmoid", "relu", "exp2"]),
        )
        if self.random.random() < 0.8:
            self.owner("pointwise", [self.values[-1][0], self.scalar(0.5)], x[2], opcode="mul")

    def binary(self):
        x = self.pick()
        y = self.random.choice([v for v in self.values if self.broadcasts(v[2], x[2])])
        opcode = self.random.choice(["add", "sub", "mul", "maximum"])
        permuted = self.random.random() < 0.2 and len(x[2]) > 1
        strides = dense(x[2])
        if permuted:
            strides = dense(x[2][::-1])[::-1]
        self.owner("pointwise", [x[0], y[0]], x[2], strides=strides, opcode=opcode)

    @staticmethod
    def broadcasts(small, large) -> bool:
        return len(small) <= len(large) and all(a in (1, b) for a, b in zip(small[::-1], large[::-1]))

    def compare(self):
        x, zero = self.pick(), self.scalar(0.1)
        mask = self.owner("pointwise", [x[0], zero], x[2], torch.bool, opcode="gt")
        self.owner("pointwise", [mask, x[0], zero], x[2], opcode="where")

    def copy(self):
        x = self.pick()
        self.owner("pointwise", [x[0]], x[2], opcode="cast")

    def permute(self):
        x = self.pick()
        order = list(range(len(x[2])))
        self.random.shuffle(order)
        self.view(x, [x[2][d] for d in order], [x[3][d] for d in order], x[4])

    def slice(self):
        x = self.pick()
        if not x[2] or max(x[2]) < 2:
            return
        d = self.random.choice([d for d, n in enumerate(x[2]) if n > 1])
        low = self.random.randrange(x[2][d])
        high = self.random.randint(low + 1, x[2][d])
        sizes = list(x[2])
        sizes[d] = high - low
        self.view(x, sizes, x[3], x[4] + low * x[3][d])

    def unsqueeze_expand(self):
        x = self.pick()
        if len(x[2]) > 3:
            return
        d = self.random.randint(0, len(x[2]))
        n = self.random.choice([1, 1, 2, 3])
        self.view(x, x[2][:d] + [n] + x[2][d:], x[3][:d] + [0 if n > 1 else 1] + x[3][d:], x[4])

    def reshape(self):
        x = self.random.choice([v for v in self.values if v[0] == v[1] and v[3] == dense(v[2])])
        total = math.prod(x[2])
        sizes = []
        while total > 1 and len(sizes) < 3:
            n = self.random.choice([n for n in (total, 2, 3, 4, 8) if total % n == 0])
            sizes.append(n)
            total //= n
        if total > 1:
            sizes.append(total)
        self.view(x, sizes, dense(sizes), 0)

    def reduce(self):
        x = self.pick()
        if not x[2]:
            return
        dims = sorted(self.random.sample(range(len(x[2])), self.random.randint(1, min(2, len(x[2])))))
        keep = self.random.random() < 0.6
        sizes = [1 if d in dims else n for d, n in enumerate(x[2]) if keep or d not in dims]
        kind = self.random.choice(["sum", "max", "min", "sum"])
        result = self.owner("reduce", [x[0]], sizes, reduce=kind, dims=dims, keepdim=keep)
        if keep and self.random.random() < 0.8:
            self.owner("pointwise", [x[0], result], x[2], opcode=self.random.choice(["sub", "mul", "add"]))

    def matmul(self):
        x = self.random.choice([v for v in self.values if len(v[2]) in (2, 3)] or [None])
        if x is None:
            return
        k, n = x[2][-1], self.random.choice([2, 8, 16])
        batch = x[2][:-2]
        if self.random.random() < 0.5:
            w = self.values_of(self.add_input([*batch, n, k]))
            w = self.view(w, [*batch, k, n], [*w[3][:-2], w[3][-1], w[3][-2]], 0)
        else:
            w = self.values_of(self.add_input([*batch, k, n]))
        self.owner("matmul", [x[0], w[0]], [*x[2][:-1], n])
        if self.random.random() < 0.5:
            self.unary()

    def values_of(self, number) -> tuple:
        return next(v for v in self.values if v[0] == number)

    def cat(self):
        x = self.pick()
        if not x[2]:
            return
        d = self.random.randrange(len(x[2]))
        same = [
            v
            for v in self.values
            if len(v[2]) == len(x[2]) and all(i == d or a == b for i, (a, b) in enumerate(zip(v[2], x[2])))
        ]
        parts = [x] + self.random.choices(same, k=self.random.randint(1, 2))
        sizes = list(x[2])
        sizes[d] = sum(p[2][d] for p in parts)
        self.owner("cat", [p[0] for p in parts], sizes, dim=d)

    def pad(self):
        x = self.pick()
        if not x[2]:
            return
        ints = [self.random.randint(0, 2) for _ in range(2 * len(x[2]))]
        self.owner("pad", [x[0]], [n + ints[2 * d] + ints[2 * d + 1] for d, n in enumerate(x[2])], ints=ints, imm=0.25)

    def index(self, extent, shape) -> int:
        return self.add_input(shape, torch.int64, torch.randint(-extent, extent, shape))

    def gather(self):
        x = self.pick()
        if not x[2]:
            return
        d = self.random.randrange(len(x[2]))
        n = self.random.choice([1, 3, 5])
        rank = len(x[2])
        idx = self.index(x[2][d], [n] + [1] * (rank - 1 - d))
        sizes = list(x[2])
        sizes[d] = n
        self.owner("index_load", [x[0], idx], sizes, map=[-1 if i == d else i for i in range(rank)])

    def scatter(self):
        x = self.pick()
        if not x[2]:
            return
        d = self.random.randrange(len(x[2]))
        rank = len(x[2])
        n = self.random.choice([1, min(2, x[2][d])])
        # distinct places, or the result would depend on the order
        places = torch.randperm(x[2][d])[:n].reshape([n] + [1] * (rank - 1 - d))
        idx = self.add_input(list(places.shape), torch.int64, places)
        sizes = list(x[2])
        sizes[d] = n
        source = self.add_input(sizes)
        self.owner("index_store", [x[0], source, idx], x[2], map=[-1 if i == d else i for i in range(rank)])

    def cache(self):
        """An index store into an input that is copied back."""
        d, rank = 1, 3
        sizes = [2, 6, 4]
        cache = self.add_input(sizes)
        position = self.add_input([], torch.int64, torch.tensor(self.random.randrange(5)))
        iota = self.builder.value(self.name(), [1], torch.int64)
        self.builder.node("iota", [], iota)
        at = self.owner("pointwise", [iota, position], [1], torch.int64, opcode="add")
        at2 = self.builder.value(self.name(), [1, 1], torch.int64, base=at)
        self.builder.node("view", [at], at2)
        x = self.owner("pointwise", [self.add_input([2, 1, 4]), self.scalar(0.3)], [2, 1, 4], opcode="add")
        out = self.owner("index_store", [cache, x, at2], sizes, map=[-1 if i == d else i for i in range(rank)])
        self.mutable.remove(cache)
        self.copies.append((cache, out, sizes))

    def copied(self, target, source, sizes):
        result = self.builder.value(self.name(), sizes, self.dtype, base=target)
        self.builder.node("copy_to", [target, source], result)

    def finish(self, steps: int):
        names = "unary binary binary compare copy permute slice unsqueeze_expand reshape reduce reduce matmul cat pad"
        choices = [getattr(self, name) for name in (names + " gather scatter cache").split()]
        for _ in range(steps):
            if math.prod(self.values[-1][2]) > 20000:
                break
            self.random.choice(choices)()
        owners = [v for v in self.values if v[1] not in self.builder.graph["inputs"]]
        outputs = {v[0] for v in owners[-3:]} | {v[0] for v in self.random.sample(owners, min(2, len(owners)))}
        # Some inputs are overwritten at the end by values of their shape.
        inputs = {v[0]: v for v in self.values}
        for number in self.random.sample(self.mutable, min(2, len(self.mutable))):
            fitting = [v for v in owners if v[2] == inputs[number][2]]
            if fitting:
                self.copies.append((number, self.random.choice(fitting)[0], inputs[number][2]))
        for copy in self.copies:
            self.copied(*copy)
        return self.builder.returns(*sorted(outputs))


def run(seed: int, **options):
    graph = RandomGraph(seed)
    text = graph.finish(6 + seed % 18)
    expected_inputs = [t.clone() for t in graph.tensors]
    actual_inputs = [t.clone() for t in graph.tensors]
    expected = ReferenceGraph(text)(expected_inputs)
    compiled = _C.CompiledGraph(text, "host", 0, options)
    compiled.prepare([])
    actual = compiled(actual_inputs)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2}[graph.dtype]
    for want, got in zip([*expected, *expected_inputs], [*actual, *actual_inputs]):
        assert got.shape == want.shape and got.stride() == want.stride()
        scale = max(1.0, float(want.abs().double().max())) if want.numel() and want.dtype.is_floating_point else 1
        torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(seed, tensor_cores):
    assert set(DTYPES) >= {torch.float32}
    run(seed, tensor_cores=tensor_cores)
