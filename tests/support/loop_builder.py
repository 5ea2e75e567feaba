"""Random graphs that a launch may run several times (`CompiledGraph.loop`), as JSON."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from tests.support.graph_builder import GraphBuilder


class LoopBuilder(GraphBuilder):
    """A graph with a count of its iterations, carried on."""

    def __init__(self, name: str, symbols: Sequence[str] = ()):
        super().__init__(name, symbols)
        self.graph["loop"] = {"carried": [], "go": -1}
        self.count = self.input("count", [1], torch.int64)
        self.counted = self.pointwise("add", [self.count, self.number(1)], "counted", [1], torch.int64)
        self.carry(self.count, self.counted)

    def number(self, number: int) -> int:
        return self.node("full", [], self.value("number", [1], torch.int64), imm_int=number)

    def store(self, input: int, value: int) -> None:
        """`input`: or a view of one."""
        written, base = self.graph["values"][input], self.graph["values"][input]["base"]
        self.graph["values"].append(written | {"base": input if base < 0 else base})
        self.node("copy_to", [input, value], len(self.graph["values"]) - 1)

    def carry(self, input: int, value: int) -> None:
        self.store(input, value)
        self.graph["loop"]["carried"].append(self.graph["inputs"].index(input))

    @property
    def has_flag(self) -> bool:
        return self.graph["loop"]["go"] >= 0

    def go_below(self, limit: int) -> None:
        """A stop flag: as long as fewer iterations than the number in `limit`, an input, have ended."""
        flag = self.input("go", [2], torch.bool)
        next_one = self.node("view", [flag], self.value("next", [1], torch.bool, base=flag, offset=1))
        self.store(next_one, self.pointwise("lt", [self.counted, limit], "more", [1], torch.bool))
        self.graph["loop"]["go"] = self.graph["inputs"].index(flag)

    def keep_row(self, cache: int, row: int, sizes: list[int]) -> int:
        """`cache` with `row` at the place of the count, written in place; checked."""
        index = self.node("view", [self.count], self.value("index", [1, 1], torch.int64, base=self.count))
        stored = self.node("index_store", [cache, row, index], self.value("stored", sizes), map=[-1, 1])
        self.store(cache, stored)
        return stored


class RandomLoop(LoopBuilder):
    """Carries some matrices; the stop flag, if there is one, allows 6 iterations. `inputs` fit the graph."""

    def __init__(self, seed: int):
        self.draw, self.numbers = random.Random(seed), torch.Generator().manual_seed(seed)
        symbolic = self.draw.random() < 0.3
        super().__init__(f"random {seed}", ["rows"] if symbolic else [])
        self.inputs: list = [torch.zeros(1, dtype=torch.int64)]
        self.rows, self.columns = self.draw.randint(1, 40), 8 * self.draw.randint(1, 9)
        self.sizes = [self.sym(0) if symbolic else self.rows, self.columns]
        carried = [self.matrix() for _ in range(self.draw.randint(1, 4))]
        self.values = list(carried)
        for _ in range(self.draw.randint(2, 8)):
            self.draw.choice([self.product, self.centre, self.turn, self.pair, self.pair])(self.any())
        if self.draw.random() < 0.5:
            self.cached()
        for i, one in enumerate(carried):
            moves = len(carried) > 1 and self.draw.random() < 0.3  # another carried value, as it is
            self.carry(one, carried[i - 1] if moves else self.unary("tanh", self.any()))
        if self.draw.random() < 0.5:
            self.inputs.append(torch.tensor([6]))
            self.go_below(self.input("limit", [1], torch.int64))
            self.inputs.append(torch.tensor([True, True]))
        self.text = self.returns(self.unary("sigmoid", self.values[-1]))
        self.inputs += [self.rows] if symbolic else []

    def any(self) -> int:
        return self.draw.choice(self.values)

    def new(self, name: str, shape: list[int], sizes: list | None = None, **how) -> int:
        self.inputs.append(torch.randn(shape, generator=self.numbers) / 4)
        return self.input(name, sizes or shape, **how)

    def matrix(self) -> int:
        return self.new("matrix", [self.rows, self.columns], self.sizes)

    def unary(self, opcode: str, x: int) -> int:
        return self.pointwise(opcode, [x], opcode, self.sizes)

    def pair(self, x: int) -> None:
        opcode = self.draw.choice(["add", "mul", "maximum"])
        self.values.append(self.pointwise(opcode, [x, self.any()], opcode, self.sizes))

    def product(self, x: int) -> None:
        weight = self.new("weight", [self.columns, self.columns], immutable=self.draw.random() < 0.5)
        self.values.append(self.matmul(x, weight, "product", self.sizes))

    def centre(self, x: int) -> None:
        dim = self.draw.randrange(2)
        total = self.value("total", [1, self.columns] if dim == 0 else [self.sizes[0], 1])
        self.node("reduce", [x], total, dims=[dim], keepdim=True)
        self.values.append(self.pointwise("sub", [self.any(), total], "apart", self.sizes))

    def turn(self, x: int) -> None:
        half = self.columns // 2
        parts = []
        for begin in (half, 0):
            part = self.value("part", [self.sizes[0], half], strides=[self.columns, 1], base=x, offset=begin)
            parts.append(self.node("view", [x], part))
        self.values.append(self.node("cat", parts, self.value("turned", self.sizes), dim=1))

    def cached(self) -> None:
        """A row of each iteration in a cache, written in place, and what all of them are together."""
        sizes, row = [12, self.columns], [1, self.columns]
        cache, known = self.new("cache", sizes), self.new("row", row)
        count = self.pointwise("cast", [self.count], "count", [1])
        stored = self.keep_row(cache, self.pointwise("add", [known, count], "kept", row), sizes)
        total = self.node("reduce", [stored], self.value("sum", row), dims=[0], keepdim=True)
        self.values.append(self.pointwise("add", [self.any(), total], "with_cache", self.sizes))


def row_keeper(rows: int, columns: int) -> str:
    """Row `count` of a table becomes a vector, which moves on by the table's sum; returns the sum."""
    g = LoopBuilder("row keeper")
    table, vector = g.input("table", [rows, columns]), g.input("vector", [1, columns])
    stored = g.keep_row(table, vector, [rows, columns])
    total = g.node("reduce", [stored], g.value("total", [1, columns]), dims=[0], keepdim=True)
    g.carry(
        vector, g.pointwise("tanh", [g.pointwise("add", [total, vector], "both", [1, columns])], "next", [1, columns])
    )
    return g.returns(total)
