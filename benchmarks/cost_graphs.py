"""Graphs that costs.py measures beside those of task_graphs.py."""

from __future__ import annotations

import dataclasses

from task_graphs import BF16, F32, GraphBuilder, Kind, cast, constant, moved, normal


def columns_product(m: int, k: int, n: int, copies: int = 4) -> Kind:
    """[m, k] x [k, n], the weight immutable and as it lies."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        a, b = g.input(f"a{i}", [m, k], BF16), g.input(f"b{i}", [k, n], BF16, immutable=True)
        return [g.matmul(a, b, "c", [m, n], BF16)]

    inputs = lambda device: [normal(m, k)(device), normal(k, n)(device)]
    floor = moved(m * k + k * n + m * n)
    return Kind(f"{m} x {k} x {n}, weight [k, n]", "matmul_rows", body, inputs, {}, lambda a, b: a @ b, floor, copies)


def long_epilogue(plain: Kind, m: int, n: int, times: int = 4) -> Kind:
    """The product with gelu, so many times, in its epilogue: functions and products as epilogues have them."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, plain.add(g, i)[0], [m, n], F32)
        for _ in range(times):
            inside = g.pointwise("mul", [x, constant(g, 0.5**0.5)], "inside", [m, n], F32)
            phi = g.pointwise(
                "add", [g.pointwise("erf", [inside], "erf", [m, n], F32), constant(g, 1.0)], "phi", [m, n], F32
            )
            x = g.pointwise(
                "mul", [g.pointwise("mul", [x, phi], "y", [m, n], F32), constant(g, 0.5)], "gelu", [m, n], F32
            )
        return [cast(g, x, [m, n], BF16)]

    return dataclasses.replace(plain, name=f"{plain.name}, long epilogue", add=body)


def normed_product(rows: int, k: int, n: int) -> Kind:
    """rows / root of the sum of squares by rows, then a product of few rows."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, g.input(f"x{i}", [rows, k], BF16), [rows, k], F32)
        square = g.pointwise("mul", [x, x], "square", [rows, k], F32)
        total = g.node("reduce", [square], g.value("total", [rows, 1], F32), reduce="sum", dims=[1], keepdim=True)
        more = g.pointwise("add", [total, constant(g, 1.0)], "more", [rows, 1], F32)
        inverse = g.pointwise("rsqrt", [more], "inverse", [rows, 1], F32)
        normed = cast(g, g.pointwise("mul", [x, inverse], "normed", [rows, k], F32), [rows, k], BF16)
        b = g.input(f"b{i}", [k, n], BF16, strides=[1, k], immutable=True)
        return [g.matmul(normed, b, "c", [rows, n], BF16)]

    inputs = lambda device: [normal(rows, k)(device), normal(n, k)(device).t()]
    name = f"norm and {rows} x {k} x {n}"
    return Kind(name, "matmul_rows", body, inputs, {}, lambda x, b: x @ b, moved(k * n), 4)


def chained_products(m: int, k: int, length: int) -> Kind:
    """`length` products [m, k] x [k, k], each of the one before: a copy more is a link more."""
    last: dict[int, int] = {}

    def body(g: GraphBuilder, i: int) -> list[int]:
        a = g.input("a", [m, k], BF16) if i == 0 else last[id(g)]
        b = g.input(f"b{i}", [k, k], BF16, strides=[1, k], immutable=True)
        last[id(g)] = g.matmul(a, b, "c", [m, k], BF16)
        return [last[id(g)]]

    def inputs(device: str) -> list:
        return [(normal(k, k)(device) * k**-0.5).t()]

    return Kind(f"a chain of {m} x {k} x {k}", "matmul_tile", body, inputs, {}, lambda b: b, moved(k * k), length)
