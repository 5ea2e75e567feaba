"""Random graphs that a launch may run several times (`CompiledGraph.loop`), as JSON."""

from __future__ import annotations

import json
import random

import torch

from tests.support.graph_builder import GraphBuilder


class LoopBuilder(GraphBuilder):
    """A graph with a count of its iterations, carried on."""

    def __init__(self, name: str):
        super().__init__(name)
        self.graph["loop"] = {"carried": [], "go": -1}
        self.count = self.input("count", [1], torch.int64)
        self.counted = self.pointwise("add", [self.count, self.number(1)], "counted", [1], torch.int64)
        self.carry(self.count, self.counted)

    def number(self, number: int) -> int:
        return self.node("full", [], self.value("number", [1], torch.int64), imm_int=number)

    def store(self, input: int, value: int) -> None:
        written = self.graph["values"][input] | {"base": input}
        self.graph["values"].append(written)
        self.node("copy_to", [input, value], len(self.graph["values"]) - 1)

    def carry(self, input: int, value: int) -> None:
        self.store(input, value)
        self.graph["loop"]["carried"].append(self.graph["inputs"].index(input))

    def go_below(self, limit: int) -> None:
        """A stop flag: as long as fewer iterations than the number in `limit`, an input, have ended."""
        flag = self.input("go", [2], torch.bool)
        places = self.node("iota", [], self.value("places", [2], torch.int64))
        parity = self.pointwise("and", [self.counted, self.number(1)], "parity", [1], torch.int64)
        here = self.pointwise("eq", [places, parity], "here", [2], torch.bool)
        more = self.pointwise("lt", [self.counted, limit], "more", [1], torch.bool)
        self.store(flag, self.pointwise("where", [here, more, flag], "next_go", [2], torch.bool))
        self.graph["loop"]["go"] = self.graph["inputs"].index(flag)

    def keep_row(self, cache: int, row: int, sizes: list[int]) -> int:
        """`cache` with `row` at the place of the count, written in place; checked."""
        index = self.node("view", [self.count], self.value("index", [1, 1], torch.int64, base=self.count))
        stored = self.node("index_store", [cache, row, index], self.value("stored", sizes), map=[-1, 1])
        self.store(cache, stored)
        return stored


def random_loop(seed: int) -> tuple[str, list[torch.Tensor]]:
    """A graph that carries some matrices, and inputs for it; the stop flag, if there is one, allows 6 iterations."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    g = LoopBuilder(f"random {seed}")
    rows, columns = draw.randint(1, 40), 8 * draw.randint(1, 9)
    sizes, inputs = [rows, columns], [torch.zeros(1, dtype=torch.int64)]

    def new(name: str, shape: list[int], **how) -> int:
        inputs.append(torch.randn(shape, generator=numbers) / 4)
        return g.input(name, shape, **how)

    carried = [new(f"carried{i}", sizes) for i in range(draw.randint(1, 4))]
    values = list(carried)
    for _ in range(draw.randint(2, 8)):
        x, y = draw.choice(values), draw.choice(values)
        way = draw.randrange(5)
        if way == 0:
            weight = new("weight", [columns, columns], immutable=draw.random() < 0.5)
            values.append(g.matmul(x, weight, "product", sizes))
        elif way == 1:
            dim = draw.randrange(2)
            total = g.value("total", [1, columns] if dim == 0 else [rows, 1])
            g.node("reduce", [x], total, dims=[dim], keepdim=True)
            values.append(g.pointwise("sub", [y, total], "apart", sizes))
        elif way == 2 and x not in carried and columns % 16 == 0:
            half = [rows, columns // 2]
            parts = [
                g.node("view", [x], g.value("part", half, strides=[columns, 1], base=x, offset=at))
                for at in (columns // 2, 0)
            ]
            values.append(g.node("cat", parts, g.value("turned", sizes), dim=1))
        else:
            values.append(g.pointwise(draw.choice(["add", "mul", "maximum"]), [x, y], "both", sizes))
    if draw.random() < 0.5:
        cache, row = new("cache", [12, columns]), new("row", [1, columns])
        stored = g.keep_row(
            cache, g.pointwise("add", [row, g.pointwise("cast", [g.count], "c", [1])], "r", [1, columns]), [12, columns]
        )
        total = g.node("reduce", [stored], g.value("sum", [1, columns]), dims=[0], keepdim=True)
        values.append(g.pointwise("add", [draw.choice(values), total], "with_cache", sizes))
    for i, one in enumerate(carried):  # as it is: another carried value, moved on
        as_it_is = len(carried) > 1 and draw.random() < 0.3
        g.carry(one, carried[i - 1] if as_it_is else g.pointwise("tanh", [draw.choice(values)], "next", sizes))
    if draw.random() < 0.5:
        inputs.append(torch.tensor([6]))
        g.go_below(g.input("limit", [1], torch.int64))
        inputs.append(torch.tensor([True, True]))
    return g.returns(
        values[-1] if values[-1] not in carried else g.pointwise("exp", [values[-1]], "out", sizes)
    ), inputs


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


def has_flag(graph: str) -> bool:
    return json.loads(graph)["loop"]["go"] >= 0
