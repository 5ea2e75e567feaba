"""What does work cost on this GPU? Measures the numbers by which the planner chooses, and keeps them for the GPU model.

    python benchmarks/costs.py --write                      # ark_torch/gpus/<model>.json, used from the next start on
    python benchmarks/costs.py --json costs.json --check    # to a file, and how well they foretell the kinds of tasks

A number is the difference between a long and a short chain of one kind (tasks.py), on two shapes where it takes two
numbers to say what a tile takes. Where the planner would choose another form for such a shape, the chain is planned by
costs that make it choose this one. Numbers that are not measured here stay as they are; the file says which were.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from pathlib import Path

import torch

from ark_torch import _C
from ark_torch.costs import FOLDER, file_of
from harness import commit, device, machine, versions
from task_graphs import (  # fmt: skip
    BF16,
    F32,
    GraphBuilder,
    Kind,
    Shape,
    add,
    attention,
    cast,
    column_sum,
    constant,
    layer_norm,
    moved,
    normal,
    product,
    softmax,
)
from tasks import Chains, TaskCosts, as_list, copies_of, executable

INSTRUCTIONS = 16  # of the longer epilogue
FREE = 1e-12  # seconds that make the planner take a form


def columns_product(m: int, k: int, n: int, copies: int = 4) -> Kind:
    """[m, k] x [k, n], the weight immutable and as it lies."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        a, b = g.input(f"a{i}", [m, k], BF16), g.input(f"b{i}", [k, n], BF16, immutable=True)
        return [g.matmul(a, b, "c", [m, n], BF16)]

    inputs = lambda device: [normal(m, k)(device), normal(k, n)(device)]
    floor = moved(m * k + k * n + m * n)
    return Kind(f"{m} x {k} x {n}, weight [k, n]", "matmul_rows", body, inputs, {}, torch.mm, floor, copies)


def long_epilogue(plain: Kind, m: int, n: int) -> Kind:
    """The product with `INSTRUCTIONS` more in its epilogue."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, plain.add(g, i)[0], [m, n], F32)
        for step in range(INSTRUCTIONS):
            x = g.pointwise("mul" if step % 2 else "add", [x, constant(g, 1.0 + 0.5**step)], "y", [m, n], F32)
        return [cast(g, x, [m, n], BF16)]

    return dataclasses.replace(plain, name=f"{plain.name}, long epilogue", add=body)


def normed_product(rows: int, k: int, n: int) -> Kind:
    """rows / root mean square by rows, then a product of few rows."""

    def body(g: GraphBuilder, i: int) -> list[int]:
        x = cast(g, g.input(f"x{i}", [rows, k], BF16), [rows, k], F32)
        square = g.pointwise("mul", [x, x], "square", [rows, k], F32)
        total = g.node("reduce", [square], g.value("total", [rows, 1], F32), reduce="sum", dims=[1], keepdim=True)
        inverse = g.pointwise(
            "rsqrt", [g.pointwise("add", [total, constant(g, 1.0)], "t", [rows, 1], F32)], "r", [rows, 1], F32
        )
        normed = cast(g, g.pointwise("mul", [x, inverse], "normed", [rows, k], F32), [rows, k], BF16)
        b = g.input(f"b{i}", [k, n], BF16, strides=[1, k], immutable=True)
        return [g.matmul(normed, b, "c", [rows, n], BF16)]

    inputs = lambda device: [normal(rows, k)(device), normal(n, k)(device).t()]
    name = f"norm and {rows} x {k} x {n}"
    return Kind(name, "matmul_rows", body, inputs, {}, lambda x, b: x @ b, moved(k * n), 4)


class Measured:
    """Times kinds and gathers numbers. `table`: what the planner works with; numbers are in SI units."""

    def __init__(self, where: str, rounds: int, small: bool):
        self.where, self.rounds, self.small = where, rounds, small
        self.chains = Chains(where, rounds, flush_l2=True)
        self.table, self.found = _C.default_costs(), {}
        self.workers = torch.cuda.get_device_properties(0).multi_processor_count if where == "cuda" else 8

    def options(self, costs: dict[str, float]) -> dict:
        return {"workers": self.workers, "costs": self.table | self.found | costs}

    def seconds(self, kind: Kind, **costs: float) -> float:
        """Of one op more in a launch of several independent ones."""
        torch.manual_seed(0)
        inputs, calls = copies_of(kind, self.where), []
        for n in (1, kind.copies):
            run = executable(kind.graph(n), self.where, **self.options(costs))
            calls.append(lambda run=run, flat=[t for each in inputs[:n] for t in each]: run(list(flat)))
        for out in as_list(calls[0]()):
            if not bool(out.float().isfinite().all()):
                raise AssertionError(f"{kind.name}: results that are not finite")
        times = self.chains.per_task({"op": (kind.copies, *calls)})["op"]
        return max(statistics.median(times) * 1e-6, 1e-9)

    def op(self, kind: Kind, **costs: float) -> dict:
        """The op of the kind as it is planned: its tiles, bytes and flops. Raises where it has another form."""
        plan = json.loads(_C.plan_graph(kind.graph(1), [], self.options(costs)))
        wanted = kind.kind.split(" ")[0]
        ops = [op for op in plan["ops"] if op.get("kind", "pointwise") == wanted]
        if len(ops) != 1:
            raise AssertionError(f"{kind.name}: expected one op {wanted}, got {[op.get('kind') for op in plan['ops']]}")
        number = plan["ops"].index(ops[0])
        items = sum(item[0] == number for items in plan["lists"] for item in items)
        return ops[0] | {"tiles": math.prod(ops[0]["grid"]), "items": items}

    def tile_seconds(self, kind: Kind, **costs: float) -> float:
        """Of a tile without its share of an item."""
        op = self.op(kind, **costs)
        of_item = (self.table | self.found)["item"] * op["items"] / op["tiles"]
        whole = self.seconds(kind, **costs) * self.workers / op["tiles"]
        return max(whole - of_item, 0.1 * whole)

    def keep(self, **numbers: float) -> None:
        for name, number in numbers.items():
            name = name.replace("__", ".")
            self.found[name] = number
            print(f"{name:<28}{number:12.4g}   before {self.table[name]:12.4g}", flush=True)

    # ---- what the machine gives ----

    def machine(self) -> None:
        n = 512 if self.small else 8192
        rows = product("matmul_rows", 1, n, n)
        self.keep(read_bytes_per_second=self.op(rows)["bytes"] / self.seconds(rows))
        m = 256 if self.small else 4096
        tiles = product("matmul_tile", m, m, m)
        self.keep(tensor_flops=2 * m**3 / self.seconds(tiles))

    def hops(self, length: int) -> None:
        rows = {row["case"]: row["ark"]["median"] for row in TaskCosts(self.where, self.rounds, length).dependencies()}
        alone, _, other, tiles, every = rows.values()
        self.keep(hop=max(every - tiles, other - alone, 0.05) * 1e-6)

    # ---- kinds whose tiles take a time of their own, and bytes or flops at a rate ----

    def rates(self, kind: str, few: Kind, many: Kind, of: str = "bytes") -> None:
        """few, many: tiles that have little to do, and much. tile = seconds + work / (a worker's share x rate)."""
        ops, times = [self.op(x) for x in (few, many)], [self.tile_seconds(x) for x in (few, many)]
        work = [op[of] / op["tiles"] for op in ops]
        each = max((times[1] - times[0]) / (work[1] - work[0]), 0.25 * times[1] / work[1])
        own = max(times[0] - each * work[0], 0.1e-6)
        machine = (self.table | self.found)["read_bytes_per_second" if of == "bytes" else "tensor_flops"]
        self.keep(**{f"{kind}__{of}": self.workers / (each * machine), f"{kind}__seconds": own})

    def kinds(self) -> None:
        size = (lambda x: max(64, x // 64)) if self.small else lambda x: x
        self.rates("pointwise", add(2 * self.workers, 1024), add(size(8192), 4096))
        self.rates("row", softmax(size(8192), 128), layer_norm(size(16384), 1024))
        self.rates("column", column_sum(64, 32768), column_sum(512 if self.small else 4096, 32768))
        short, long = (Shape(4, 16, 16, length, length, 64) for length in ((64, 128) if self.small else (256, 2048)))
        of = [attention("attention_forward", x) for x in (short, long)]
        self.rates("attention_forward", *of, of="flops")

    # ---- products ----

    def tiles(self) -> None:
        short, long = (128, 256) if self.small else (512, 4096)
        m, n = (256, 256) if self.small else (128 * 11, 256 * 12)
        step = (long - short) / 64
        tile = lambda k, **costs: self.tile_seconds(product("matmul_tile", m, k, n), **costs)
        small = {"small_tile.block": FREE, "small_tile.own": FREE}
        wide = tile(short, narrow_share=10.0), tile(long, narrow_share=10.0)
        block = max((wide[1] - wide[0]) / step, 0.1 * wide[1] / (long / 64))
        plain = product("matmul_tile", m, short, n)
        more = self.tile_seconds(long_epilogue(plain, m, n), narrow_share=10.0)
        instruction = max((more - wide[0]) / INSTRUCTIONS, 0.01e-6)
        own = max(wide[0] - short / 64 * block - instruction, 0.1e-6)  # a plain epilogue has one, the cast
        self.keep(wide_tile__block=block, wide_tile__own=own, wide_tile__instruction=instruction)
        self.keep(narrow_share=min(tile(long, narrow_share=0.1) / wide[1], 1.0))
        few = lambda k: product("matmul_tile", 64, k, 64 * min(self.workers, 16 if self.small else 128), copies=8)
        times = [self.tile_seconds(few(k), **small) for k in (short, long)]
        block = max((times[1] - times[0]) / step, 0.1 * times[1] / (long / 64))
        own = max(times[0] - short / 64 * block - instruction / 8, 0.1e-6)  # of a fraction of a wide tile's sums
        self.keep(small_tile__block=block, small_tile__own=own, small_tile__instruction=instruction / 8)

    def float_tiles(self) -> None:
        """Of one block of 64 x 64 sums, where each worker has one, and of four."""
        short, long = (64, 128) if self.small else (512, 4096)
        shapes = {1: (128, 256) if self.small else (192, 64 * 44), 4: (512, 512) if self.small else (4096, 4096)}
        step, own = {}, {}
        for blocks, (m, n) in shapes.items():
            ops = [product("matmul_float", m, k, n, F32) for k in (short, long)]
            times = [self.tile_seconds(op) for op in ops]
            if m * n != self.op(ops[0])["tiles"] * blocks * 64 * 64:
                raise AssertionError(f"{ops[0].name}: expected tiles of {blocks} blocks")
            step[blocks] = max((times[1] - times[0]) / ((long - short) / 32), 0.1 * times[1] / (long / 32))
            own[blocks] = max(times[0] - short / 32 * step[blocks], 0.1e-6)
        block, epilogue = max((step[4] - step[1]) / 3, 0.1 * step[1]), max((own[4] - own[1]) / 3, 0.01e-6)
        self.keep(float_block=block, float_step=max(step[1] - block, 0.01e-6))
        self.keep(float_epilogue=epilogue, float_tile=max(own[1] - epilogue, 0.1e-6))

    def strips(self) -> None:
        """Of 8, 16 and 32 columns against 64; a card's columns that no strip of 64 divides would mix two."""
        n, k = (512, 256) if self.small else (64 * 4 * self.workers, 4096)
        kind, others = columns_product(1, k, n, copies=3), ("strip_8", "strip_16", "strip_32")
        dear = {name: 1e-6 for name in others}
        whole = self.seconds(kind, **dear)
        for name in others:
            self.keep(**{name: min(whole / self.seconds(kind, **(dear | {name: 1e6})), 1.0)})

    def prologues(self) -> None:
        rows, k, n = (8, 512, 256) if self.small else (8, 4096, 4096)
        normed, plain = normed_product(rows, k, n), product("matmul_rows", rows, k, n)
        inside = {"prologue_element": FREE / k}
        self.op(normed, **inside)  # one op
        inside = self.seconds(normed, **inside) - self.seconds(plain)
        self.keep(prologue_element=max(inside, 1e-8) / (rows * k * 2))


def foretold(measured: Measured, small: bool) -> dict[str, float]:
    """Mean of |log(predicted / measured)| over the kinds of tasks.py, by the numbers of before and by those found."""
    from task_graphs import kinds

    errors: dict[str, list[float]] = {"before": [], "found": []}
    for kind in kinds(small):
        for name, costs in {"before": measured.table, "found": {}}.items():
            options = measured.options(costs)
            run = [json.loads(_C.plan_graph(kind.graph(n), [], options))["predicted_ms"] for n in (1, kind.copies)]
            predicted = (run[1] - run[0]) / (kind.copies - 1) * 1e-3
            errors[name].append(abs(math.log(max(predicted, 1e-9) / measured.seconds(kind, **costs))))
    return {name: statistics.mean(values) for name, values in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("--write", action="store_true", help="write them to the package's file of this GPU model")
    parser.add_argument("--check", action="store_true", help="how well they foretell the kinds of tasks.py")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--length", type=int, default=201, help="tasks of a long chain")
    args = parser.parse_args()
    where = device()
    if args.write and where != "cuda":
        raise SystemExit("--write: numbers are kept per GPU model, and there is no GPU")
    measured = Measured(where, args.rounds, small=where != "cuda")
    measured.machine(), measured.hops(args.length), measured.kinds(), measured.tiles()
    measured.float_tiles(), measured.strips(), measured.prologues()
    model = torch.cuda.get_device_name(0) if where == "cuda" else "host"
    document = {"model": model, "machine": machine(), "versions": versions(), "commit": commit()}
    document |= {"measured": sorted(measured.found), "costs": measured.table | measured.found}
    if args.check:
        document["error_of_predictions"] = foretold(measured, measured.small)
        print(f"|log(predicted / measured)|, mean: {document['error_of_predictions']}")
    for path in filter(None, [args.json, file_of(model, FOLDER) if args.write else None]):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
