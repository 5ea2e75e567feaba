"""Rows of sweep.py, in a process that it starts: ops by their numbers in the grid. `--compile`: ark's and inductor's
first calls of each, and no more; without it each is checked and timed in turns, a row per op."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from harness import Captured, Case, Timer, check_against_fp64, compiled, composition, contestants_of, device, measure
from sweep_cases import BuiltOp, Op, all_ops, small_ops
from tasks import Chains, copies_of, executable, kind_row
from workers import emit


def grid(small: bool) -> list[Op | BuiltOp]:
    return small_ops() if small else all_ops()


def together(run: Callable, number: int) -> Callable:
    """The op on as many sets of `number` operands, given one after another."""
    return lambda *flat: [run(*flat[i : i + number]) for i in range(0, len(flat), number)]


def called(function: Callable, flat: list[torch.Tensor], mode: str) -> Callable[[], object]:
    """One call on the operands, as the mode has it; in a CUDA graph where it ends with -graph."""
    call = compiled(function, mode.removesuffix("-graph"))
    run = lambda: call(*flat)
    return Captured(run) if mode.endswith("-graph") else run


def checked(op: Op, check: Callable) -> Callable[[dict[str, object]], dict]:
    """The last copy's result is compared."""
    return lambda outputs: check({name: each[-1] for name, each in outputs.items()})


def op_row(op: Op, where: str, modes: str, rounds: int) -> dict:
    torch._dynamo.reset()
    torch.manual_seed(0)
    sets = [op.inputs(where) for _ in range(op.copies)]
    flat, failed, contestants = [tensor for each in sets for tensor in each], {}, {}
    names, timed = contestants_of(modes, where)
    plans = {name: (op.run, name) for name in names}
    if where == "cuda":
        plans |= {name: (run, "eager-graph") for name, run in op.rivals.items()}
        timed += list(op.rivals)
    for name, (run, mode) in plans.items():
        try:
            contestants[name] = called(together(run, len(sets[0])), flat, mode)
        except Exception as error:  # a rival that cannot run is a result too
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    exact = op.run(*(t.double() if t.is_floating_point() else t for t in sets[-1]))
    case = Case(
        case=op.title,
        contestants=contestants,
        timed=timed,
        check=checked(op, check_against_fp64(exact, least=op.noise)),
        unit="us",
        floor=op.floor_us,
        scale=lambda ms: ms * 1e3 / op.copies,
        notes={"kind": op.kind, "copies": op.copies},
    )
    row = measure(case, Timer(where), rounds, warmup=2)
    row["failed"] = failed | row.get("failed", {})
    if row["ark"] is None:
        raise RuntimeError(f"ark: {row['failed']['ark']}")
    row["plan"] = composition(contestants["ark"])
    rivals = {name: result["median"] for name, result in row["rivals"].items()}
    best = min(rivals, key=rivals.get, default=None)
    return row | {"best": best, "ratio": rivals[best] / row["ark"]["median"] if best else None}


def built_row(op: BuiltOp, where: str, rounds: int) -> dict:
    row = kind_row(op.graph, where, Chains(where, rounds, flush_l2=True))
    return row | {"case": op.title, "kind": op.kind, "copies": op.graph.copies, "ratio": row.get("of_library")}


def compile_only(op: Op | BuiltOp, where: str, modes: str) -> None:
    if isinstance(op, BuiltOp):
        for number in (1, op.graph.copies):
            executable(op.graph.graph(number), where)([t for each in copies_of(op.graph, where)[:number] for t in each])
        return
    torch._dynamo.reset()
    sets = [op.inputs(where) for _ in range(op.copies)]
    for mode in {"ark", "inductor"} & {mode.removesuffix("-graph") for mode in modes.split(",")}:
        called(together(op.run, len(sets[0])), [t for each in sets for t in each], mode)()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", help="comma-separated")
    parser.add_argument("--modes", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no op starts after that")
    parser.add_argument("--compile", action="store_true", help="fill the caches, and no more")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    begin, ops, where = time.monotonic(), grid(args.small), device()
    torch.backends.cudnn.allow_tf32 = False
    for op in (ops[int(number)] for number in args.numbers.split(",")):
        if time.monotonic() - begin > args.seconds:
            return
        try:
            if args.compile:
                compile_only(op, where, args.modes)
                emit({"case": op.title})
            elif isinstance(op, BuiltOp):
                emit(built_row(op, where, args.rounds))
            else:
                emit(op_row(op, where, args.modes, args.rounds))
        except Exception as error:  # wrong, too many launches, or not able: the row says so, the next ones go on
            emit({"case": op.title, "kind": op.kind, "error": f"{type(error).__name__}: {error}"[:600]})


if __name__ == "__main__":
    main()
