"""Plans whose work lists are written by hand: the same tiny tasks again and again, with or without waits between them,
on chosen workers. tasks.py times them to find what a task and a dependency cost by themselves.

Every task is one item (all tiles of an op, or one tile a worker) and writes the same outputs each time, so that the
results stay right however often it is repeated.
"""

from __future__ import annotations

import copy
import json

from ark_torch import _C
from task_graphs import BF16, GraphBuilder, add, column_sum, product, softmax

KINDS = ["pointwise", "row", "column", "matmul_rows", "matmul_tile"]


def one_of_each() -> str:
    """A graph with one tiny independent task of every kind of KINDS (in some order of the plan's)."""
    g = GraphBuilder("one_of_each")
    tasks = [add(1, 256), softmax(1, 512), column_sum(64, 32), product("matmul_rows", 1, 64, 64)]
    return g.returns(
        *(o for i, task in enumerate([*tasks, product("matmul_tile", 128, 64, 128)]) for o in task.add(g, i))
    )


def one_element() -> str:
    """A graph of as little work as there can be: a + b of one element."""
    g = GraphBuilder("one_element")
    return g.returns(g.pointwise("add", [g.input("a", [1]), g.input("b", [1])], "sum", [1]))


def one_tile_each(workers: int) -> str:
    """a + b in one tile per worker."""
    g = GraphBuilder("one_tile_each")
    sizes = [workers, 8192]
    return g.returns(g.pointwise("add", [g.input("a", sizes, BF16), g.input("b", sizes, BF16)], "sum", sizes, BF16))


def planned(graph: str, workers: int) -> dict:
    return json.loads(_C.plan_graph(graph, [], {"workers": workers}))


def kind_of(op: dict) -> str:
    return op.get("kind", "pointwise")


def num_tiles(op: dict) -> int:
    first, second, third = op["grid"]
    return first * second * third


def repeated(plan: dict, sequence: list[tuple[int, int | None]], dependent: bool) -> str:
    """The plan with its ops in the given sequence: (op, worker that runs all its tiles; None: the tiles are dealt out).
    dependent: each waits for all tiles of the one before it."""
    plan, ops = copy.deepcopy(plan), []
    workers = plan.get("num_workers", 132)  # the default of plan.h is not written
    plan["lists"] = [[] for _ in range(workers)]
    for place, (number, worker) in enumerate(sequence):
        op = {key: value for key, value in plan["ops"][number].items() if key not in ("waits", "arrivals")}
        signal = {"extent": 1, "div": 1, "limit": 1}
        if dependent:
            op["arrivals"] = [signal | {"counter": place}]
        if dependent and place:
            tiles = num_tiles(ops[-1])
            op["waits"] = [signal | {"counter": place - 1, "target": tiles, "last_target": tiles}]
        tiles = num_tiles(op)
        if worker is not None:
            plan["lists"][worker].append([place, 0, tiles])
        else:
            for tile in range(tiles):
                plan["lists"][tile % workers].append([place, tile, 1])
        ops.append(op)
    plan |= {"ops": ops, "num_counters": len(sequence) if dependent else 0}
    return json.dumps(plan)
