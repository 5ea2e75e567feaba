"""What does work cost on this GPU? Measures the numbers by which the planner chooses, and keeps them for the GPU model.

    python benchmarks/costs.py --write                      # ark_torch/gpus/<model>.json, used from the next start on
    python benchmarks/costs.py --json costs.json --check    # to a file, and how well they foretell the kinds of tasks

A number is the difference between a long and a short chain of one kind (tasks.py), on two shapes where it takes two
numbers to say what a tile takes. Shapes fill the workers in whole waves, however many there are. Where the planner
would choose another form for such a shape, the chain is planned by costs that make it choose this one. What is not
measured here is the default of `csrc/planner/costs.h`, and not in the file: a hop, an item, what splits and ops of rows
must save (they belong together, and were found in steps of whole models), the attention's backward pass and that of few
rows, sums by index, row selects. The file says what failed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from cost_graphs import chained_products, columns_product, long_epilogue, normed_product

from ark_torch import _C
from ark_torch.costs import FOLDER, file_of
from harness import commit, device, machine, versions
from task_graphs import F32, Kind, Shape, add, attention, column_sum, kinds, layer_norm, product, softmax
from tasks import Chains, as_list, executable

FREE = 1e-12  # what makes the planner take a form
MOST_SHARE, MOST_CHANGE = 1.2, 30.0  # of the machine's rate; of a number, either way: beyond, the measurement is wrong
NO_ARITHMETIC = ("root", "const", "load", "store", "index", "parameter")


class Measured:
    """Times kinds and gathers numbers. `table`: what the planner works with; numbers are in SI units."""

    def __init__(self, where: str, rounds: int, small: bool):
        self.where, self.small = where, small
        self.chains = Chains(where, rounds, flush_l2=True)
        self.table, self.found, self.failed = _C.default_costs(), {}, {}
        self.workers = torch.cuda.get_device_properties(0).multi_processor_count if where == "cuda" else 8

    @property
    def numbers(self) -> dict[str, float]:
        return self.table | self.found

    def plan(self, kind: Kind, copies: int, costs: dict[str, float]) -> dict:
        return json.loads(_C.plan_graph(kind.graph(copies), [], self.options(costs)))

    def options(self, costs: dict[str, float]) -> dict:
        """Copies of columns and pointwise ops have the tiles that one has."""
        return {"workers": self.workers, "costs": self.numbers | costs, "share_tiles": False}

    def seconds(self, kind: Kind, **costs: float) -> float:
        """Of one op more in a launch of several."""
        torch.manual_seed(0)
        calls = []
        for n in (1, kind.copies):
            graph = kind.graph(n)
            inputs = self.inputs(kind, n, graph)
            run = executable(graph, self.where, **self.options(costs))
            calls.append(lambda run=run, inputs=inputs: run(list(inputs)))
        if not all(bool(out.float().isfinite().all()) for out in as_list(calls[1]())):
            raise AssertionError(f"{kind.name}: results that are not finite")
        each = statistics.median(self.chains.per_task({"op": (kind.copies, *calls)})["op"]) * 1e-6
        return self.positive(each, 1e-9 if self.where == "cuda" else 1e-6)  # rates that follow stay within bounds

    def inputs(self, kind: Kind, copies: int, graph: str) -> list[torch.Tensor]:
        """Of each copy its own; the links of a chain have a weight each, and the first one its activation."""
        flat, parsed = [t for _ in range(copies) for t in kind.inputs(self.where)], json.loads(graph)
        if len(flat) == len(parsed["inputs"]):
            return flat
        sizes = parsed["values"][parsed["inputs"][0]]["sizes"]
        return [torch.randn(sizes, device=self.where, dtype=flat[0].dtype), *flat]

    def op(self, kind: Kind, **costs: float) -> dict:
        """An op of the kind as all are planned: its tiles, items, bytes, flops and instructions. Raises where the op of
        one copy has another form than those of several, or a copy is several ops."""
        found = []
        for copies in (1, kind.copies):
            plan = self.plan(kind, copies, costs)
            ops = [(i, op) for i, op in enumerate(plan["ops"]) if op.get("kind", "pointwise") == kind.kind]
            forms = {
                json.dumps([op["grid"], *(op.get("matmul", {}).get(t) for t in ("tile_m", "tile_n"))]) for _, op in ops
            }
            if len(ops) != copies or len(plan["ops"]) != copies or len(forms) != 1:
                raise AssertionError(f"{kind.name}: {copies} are {len(plan['ops'])} ops of the forms {sorted(forms)}")
            found.append((forms, plan, *ops[0]))
        if found[0][0] != found[1][0]:
            raise AssertionError(f"{kind.name}: one has the form {found[0][0]}, {kind.copies} have {found[1][0]}")
        _, plan, number, op = found[1]
        items = sum(item[0] == number for items in plan["lists"] for item in items)
        program = plan["programs"][op["programs"][0]]["instrs"] if op.get("programs") else []
        arithmetic = sum(instr.get("op", "const") not in NO_ARITHMETIC for instr in program)
        return op | {"tiles": math.prod(op["grid"]), "items": items, "instructions": arithmetic}

    def tile_seconds(self, kind: Kind, **costs: float) -> float:
        """Of a tile, without its share of an item."""
        op = self.op(kind, **costs)
        of_item = self.numbers["item"] * op["items"] / op["tiles"]
        whole = self.seconds(kind, **costs) * self.workers / op["tiles"]
        return self.positive(whole - of_item, 0.1 * whole)

    def positive(self, number: float, least: float) -> float:
        """A difference that says nothing on a CPU, where it only has to be some number, is an error on a GPU."""
        if self.where == "cuda" and number <= 0:
            raise AssertionError(f"a measured time of {number}")
        return max(number, least)

    def keep(self, **numbers: float) -> None:
        for name, number in numbers.items():
            name = name.replace("__", ".")
            before = self.table[name]
            print(f"{name:<28}{number:12.4g}   before {before:12.4g}", flush=True)
            if self.where == "cuda" and not before / MOST_CHANGE < number < before * MOST_CHANGE:
                raise AssertionError(f"{name}: {number:.4g} measured, {before:.4g} before")
            self.found[name] = number

    def keep_share(self, name: str, share: float) -> None:
        if self.where == "cuda" and share > MOST_SHARE:
            raise AssertionError(f"{name}: {share:.3g} of what the machine gives")
        self.keep(**{name: share})

    # ---- kinds whose tiles take a time of their own, and bytes or flops at a rate ----

    def memory(self) -> None:
        n = 64 * self.workers
        rows = product("matmul_rows", 1, n, n)
        self.keep(read_bytes_per_second=self.op(rows)["bytes"] / self.seconds(rows))

    def rates(self, kind: str, few: Kind, many: Kind, of: str = "bytes") -> None:
        """few, many: tiles that have little to do, and much. tile = seconds + work / (a worker's share x rate)."""
        ops, times = [self.op(x) for x in (few, many)], [self.tile_seconds(x) for x in (few, many)]
        work = [op[of] / op["tiles"] for op in ops]
        each = self.positive((times[1] - times[0]) / (work[1] - work[0]), 0.25 * times[1] / work[1])
        rate = self.numbers["read_bytes_per_second" if of == "bytes" else "tensor_flops"]
        self.keep_share(f"{kind}.{of}", self.workers / (each * rate))
        self.keep(**{f"{kind}__seconds": self.positive(times[0] - each * work[0], 0.1e-6)})

    def pointwise(self) -> None:
        w = self.workers
        self.rates("pointwise", add(2 * w, 1024), add(64 * w, 128 if self.small else 4096))

    def row(self) -> None:
        w = self.workers
        self.rates("row", softmax(64 * w, 128), layer_norm((16 if self.small else 128) * w, 1024))

    def column(self) -> None:
        n = 256 * self.workers
        self.rates("column", column_sum(64, n), column_sum(512 if self.small else 4096, n))

    def attention(self) -> None:
        """Of few keys and many, which are enough for arithmetic to take longer than memory."""
        queries, *lengths = (128, 128, 256) if self.small else (2048, 512, 4096)
        shapes = [Shape(1, self.workers, self.workers, queries, keys, 64) for keys in lengths]
        self.rates("attention_forward", *(attention("attention_forward", x) for x in shapes), of="flops")

    # ---- products ----

    def wide_tiles(self) -> None:
        """A wide tile of each worker; the arithmetic that the tensor cores reach follows from it."""
        short, long = (128, 256) if self.small else (512, 4096)
        m, n = 128, 256 * self.workers
        plain = product("matmul_tile", m, short, n)
        wide = [self.tile_seconds(product("matmul_tile", m, k, n), narrow_share=10.0) for k in (short, long)]
        block = self.positive((wide[1] - wide[0]) / ((long - short) / 64), 0.1 * wide[1] / (long / 64))
        more = long_epilogue(plain, m, n)
        ops = [self.op(kind, narrow_share=10.0)["instructions"] for kind in (plain, more)]
        longer = self.tile_seconds(more, narrow_share=10.0) - wide[0]
        instruction = self.positive(longer / (ops[1] - ops[0]), 0.01e-6)
        own = self.positive(wide[0] - short / 64 * block - ops[0] * instruction, 0.1e-6)
        self.keep(wide_tile__block=block, wide_tile__own=own, wide_tile__instruction=instruction)
        self.keep(small_tile__own=own / 8, small_tile__instruction=instruction / 8)  # an eighth of a wide one's sums
        self.keep(tensor_flops=self.workers * 2 * 128 * 256 * 64 / block)
        narrow = self.tile_seconds(product("matmul_tile", m, long, n), narrow_share=0.1)
        self.keep(narrow_share=min(narrow / wide[1], 1.0))

    def small_tiles(self) -> None:
        """In chains: products that nobody waits for, together more tiles than workers, would have none."""
        short, long = (128, 256) if self.small else (1024, 4096)
        forced = {"small_tile.block": FREE, "small_tile.own": FREE, "split_small": 1.0}
        times = [self.seconds(kind, **forced) for kind in (chained_products(64, k, 6) for k in (short, long))]
        for k in (short, long):
            if self.op(chained_products(64, k, 6), **forced)["matmul"]["tile_m"] != 64:
                raise AssertionError("chains without small tiles")
        self.keep(small_tile__block=self.positive((times[1] - times[0]) / ((long - short) / 64), 1e-9))

    def families(self) -> None:
        """Of what memory gives to products of few rows: as a family of their own, and in narrow tiles."""
        m, k, n = (8, 256, 64 * self.workers) if self.small else (8, 4096, 128 * self.workers)
        of_all = self.numbers["read_bytes_per_second"]
        for name, costs in {
            "matmul_rows": {"matmul_tile.bytes": FREE},
            "matmul_tile": {"matmul_rows.bytes": FREE, "narrow_share": 0.1, "small_tile.block": 1.0},
        }.items():
            kind = product(name, m, k, n)
            share = self.op(kind, **costs)["bytes"] / self.seconds(kind, **costs) / of_all
            self.keep_share(f"{name}.bytes", share if name == "matmul_tile" else min(share, 1.0))

    def activations(self) -> None:
        """Of few rows more, where each worker has a strip of weights."""
        few, many, k, n = (2, 8, 256, 256) if self.small else (2, 16, 8192, 16 * self.workers)
        times = [self.seconds(product("matmul_rows", m, k, n), **{"matmul_tile.bytes": FREE}) for m in (few, many)]
        each = self.positive((times[1] - times[0]) / (many - few), 0.01 * times[1] / many)
        self.keep(activation_bytes_per_second=2 * k * self.workers / each)

    def float_tiles(self) -> None:
        """Of one block of 64 x 64 sums, where each worker has one, and of four."""
        short, long = (64, 128) if self.small else (512, 4096)
        step, own = {}, {}
        for blocks, (m, n) in {1: (64, 64 * self.workers), 4: (512, 128 * self.workers)}.items():
            ops = [product("matmul_float", m, k, n, F32) for k in (short, long)]
            times = [self.tile_seconds(op) for op in ops]
            if m * n != self.op(ops[0])["tiles"] * blocks * 64 * 64:
                raise AssertionError(f"{ops[0].name}: expected tiles of {blocks} blocks")
            step[blocks] = self.positive((times[1] - times[0]) / ((long - short) / 32), 0.1 * times[1] / (long / 32))
            own[blocks] = self.positive(times[0] - short / 32 * step[blocks], 0.1e-6)
        block = self.positive((step[4] - step[1]) / 3, 0.1 * step[1])
        epilogue = self.positive((own[4] - own[1]) / 3, 0.01e-6)
        self.keep(float_block=block, float_step=self.positive(step[1] - block, 0.01e-6))
        self.keep(float_epilogue=epilogue, float_tile=self.positive(own[1] - epilogue, 0.1e-6))

    def strips(self) -> None:
        """Of 8, 16 and 32 columns against 64."""
        n, k = (512, 256) if self.small else (64 * 4 * self.workers, 4096)
        kind, others = columns_product(1, k, n, copies=3), ("strip_8", "strip_16", "strip_32")
        dear = {name: 1e-6 for name in others}
        whole = self.seconds(kind, **dear)
        for name in others:
            self.keep(**{name: min(whole / self.seconds(kind, **(dear | {name: 1e6})), 1.0)})

    def prologues(self) -> None:
        rows, k, n = (8, 512, 256) if self.small else (8, 4096, 4096)
        normed, plain = normed_product(rows, k, n), product("matmul_rows", rows, k, n)
        forced = {"prologue_element": FREE / k, "matmul_tile.bytes": FREE}
        self.op(normed, **forced), self.op(plain, **forced)  # one op each
        more = self.positive(self.seconds(normed, **forced) - self.seconds(plain, **forced), 1e-8)
        self.keep(prologue_element=more / (rows * k * 2))

    def all(self) -> None:
        """What fails is said, and costs the numbers of its own step: those of a step belong together."""
        steps: list[Callable[[], None]] = [self.memory, self.wide_tiles, self.pointwise, self.row, self.column]
        steps += [self.attention, self.small_tiles, self.families, self.activations, self.float_tiles]
        steps += [self.strips, self.prologues]
        for step in steps:
            before = dict(self.found)
            try:
                step()
            except (AssertionError, RuntimeError, ValueError) as error:
                self.found = before
                self.failed[step.__name__] = f"{type(error).__name__}: {error}"[:300]
                print(f"{step.__name__} FAILED: {error}", flush=True)

    def foretold(self) -> dict[str, float]:
        """Mean of |log(predicted / measured)| over the kinds of tasks.py, by the old numbers and by those found."""
        errors: dict[str, list[float]] = {"before": [], "found": []}
        for kind in kinds(self.small):
            for name, costs in {"before": self.table, "found": {}}.items():
                short, long = (self.plan(kind, n, costs)["predicted_ms"] for n in (1, kind.copies))
                predicted = max((long - short) / (kind.copies - 1) * 1e-3, 1e-9)
                errors[name].append(abs(math.log(predicted / self.seconds(kind, **costs))))
        return {name: statistics.mean(values) for name, values in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("--write", action="store_true", help="write them to the package's file of this GPU model")
    parser.add_argument("--check", action="store_true", help="how well they foretell the kinds of tasks.py")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    where = device()
    if args.write and where != "cuda":
        raise SystemExit("--write: numbers are kept per GPU model, and there is no GPU")
    measured = Measured(where, args.rounds, small=where != "cuda")
    measured.all()
    model = torch.cuda.get_device_name(0) if where == "cuda" else "host"
    document = {"model": model, "machine": machine(), "versions": versions(), "commit": commit()}
    document |= {"failed": measured.failed, "costs": measured.found}

    def write() -> None:
        keeps = args.write and measured.found
        for path in filter(None, [args.json, file_of(model, FOLDER) if keeps else None]):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps(document, indent=1) + "\n")
            print(f"wrote {path}")

    write()
    if args.check:
        document["error_of_predictions"] = measured.foretold()
        print(f"|log(predicted / measured)|, mean: {document['error_of_predictions']}")
        write()
    if measured.failed:
        raise SystemExit(f"not measured: {', '.join(measured.failed)}")


if __name__ == "__main__":
    main()
