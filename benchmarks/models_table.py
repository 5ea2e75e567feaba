"""How fast are models that nobody tuned for? ark, eager, and inductor, over the entries of model_entries.py.

    python benchmarks/models_table.py --json benchmarks/results/h100/models_table.json
    python benchmarks/models_table.py --list
    python benchmarks/models_table.py --models "resnet,gpt-2 small,8B decode" --budget-seconds 500

Each row is a process of its own (model_row.py). A group of `--jobs` rows first compiles side by side into caches that
are empty when the table starts: `first_call_s.cold`, with the others of the group beside it. Then its rows are timed
one after another: `first_call_s.warm` is a first call that finds its kernels on disk. The file is written after each.

With `--at-once` a row is one process: the rows of a group compile side by side, stay on the GPU together (which must
hold them), and are timed one after another when all have compiled. No first call is warm then; a third of the time.

Of a row: GPU time of a call (`ark`, `rivals`; the whole call where the CPU launches slower than the GPU works), time
by the clock of a call and waiting for it (`wall_ms`), `plan`: launches, tasks, fallbacks, spilled bytes of each kernel,
floor and prediction. ark's error may be at most `factor` (mostly 1.5) times eager's; else the row is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from harness import write_json
from model_entries import names_like
from workers import STAY, Child, caches, kill_children_at_exit, side_by_side

MODES = "ark,eager,eager-graph,inductor-graph,reduce-overhead"
Left = Callable[[], float]  # seconds until no new row may start


def child(name: str, modes: str, environment: dict, args: argparse.Namespace, *more: str) -> Child:
    rest = ["--small"] if args.small else []
    return Child("model_row.py", [name, "--modes", modes, *rest, *more], environment)


def compiled_first(names: list[str], environment: dict, args: argparse.Namespace) -> dict[str, dict]:
    """First calls of each model that get their kernels from nowhere, side by side."""
    modes = {mode.removesuffix("-graph") for mode in args.modes.split(",")} - {"eager"}
    children = [child(name, ",".join(sorted(modes)), environment, args, "--compile") for name in names]
    rows = side_by_side(children, args.jobs, args.limit)
    return {
        name: {"cold": found[0]["first_calls"]} if found else {"cold": {}, "cold_error": each.error}
        for name, found, each in zip(names, rows, children)
    }


def failed(name: str, why: str) -> dict:
    return {"case": name, "unit": "ms", "better": "lower", "ark": None, "rivals": {}, "floor": None, "must": None,
            "errors": {}, "error": why}  # fmt: skip


def timed(name: str, environment: dict, args: argparse.Namespace) -> dict:
    process = child(name, args.modes, environment, args, "--rounds", str(args.rounds))
    rows = list(process.rows(args.limit))
    return rows[0] if rows else failed(name, process.error)


def in_turns(group: list[str], environment: dict, args: argparse.Namespace, left: Left) -> Iterator[tuple[str, dict]]:
    """(name, row) of each, None where the time is over: compiled by processes side by side, timed by others."""
    first = compiled_first(group, environment, args)
    for name in group:
        row = timed(name, environment, args) if left() > 0 else None
        if row:
            row["first_call_s"] = row.get("first_call_s", {}) | first[name]
        yield name, row


def at_once(group: list[str], environment: dict, args: argparse.Namespace, left: Left) -> Iterator[tuple[str, dict]]:
    """(name, row) of each, None where the time is over: compiled side by side, and timed by the same processes."""
    children = [child(name, args.modes, environment, args, "--rounds", str(args.rounds), STAY) for name in group]
    rows = [each.rows(args.limit) for each in children]
    with ThreadPoolExecutor(args.jobs) as pool:
        ready = list(pool.map(lambda each: next(each, None), rows))
    for name, process, row, is_ready in zip(group, children, rows, ready):
        if left() > 0 and is_ready:
            process.go()
            found = next(row, None)
            list(row)  # to its end: the next row is timed alone
            yield name, found or failed(name, process.error)
        else:
            yield name, failed(name, process.error) if not is_ready else None
        row.close()


def packages() -> dict[str, str]:
    """Versions of what models come from; they are not imported here."""
    found = {name: None for name in ("transformers", "timm", "torchvision")}
    for name in found:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def line(row: dict) -> str:
    """A row in short."""
    if not row["ark"]:
        return f"{row['case']}: FAILED {row['error'].splitlines()[-1]}"
    rivals = ", ".join(f"{name} {result['median']:.3f}" for name, result in row["rivals"].items())
    plan, first = row["plan"], row["first_call_s"]
    whole = "" if plan["graphs"] else " (no graph: all of it runs eagerly)"
    ratio = f" ({row['best_rival_over_ark']:.2f} x)" if row["best_rival_over_ark"] else ""
    return (
        f"{row['case']}: ark {row['ark']['median']:.3f} ms{ratio}; {rivals}; floor {plan['floor_ms']:.3f}, "
        f"predicted {plan['predicted_ms']:.3f}; {plan['launches']} launches, {plan['aten_steps']} ATen steps "
        f"{list(plan['fallbacks'])}{whole}; spills {plan['spill_bytes']}; first call "
        f"{first['cold'].get('ark', float('nan')):.1f} cold, "
        f"{first.get('warm', {}).get('ark', float('nan')):.1f} warm"
        + "".join(f"; {name} failed: {why[:80]}" for name, why in row["failed"].items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--list", action="store_true", help="the names of the models")
    parser.add_argument("--models", default="", help="parts of names, comma-separated")
    parser.add_argument("--modes", default=MODES, help=f"default {MODES}; max-autotune and ark-graph are others")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=8, help="models that compile side by side")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a process of a row may take")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="no new row starts after that")
    parser.add_argument("--at-once", action="store_true", help="a row is one process, on the GPU from first to last")
    parser.add_argument("--cache", help="folder for kernels (default: a new one)")
    parser.add_argument("--small", action="store_true", help="narrow models, to try the file itself")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names_like("")))
        return
    kill_children_at_exit()
    begin, rows, names = time.monotonic(), [], names_like(args.models)
    left = lambda: args.budget_seconds - (time.monotonic() - begin)
    with tempfile.TemporaryDirectory() as fresh:
        environment = caches(args.cache or fresh, max(1, (os.cpu_count() or 1) // args.jobs))
        while names and left() > 0:
            group, names = names[: args.jobs], names[args.jobs :]
            for name, row in (at_once if args.at_once else in_turns)(group, environment, args, left):
                if row is None:
                    names = [name, *names]
                    continue
                rows.append(row)
                print(line(row), flush=True)
                write_json(args.json, rows, packages=packages(), jobs=args.jobs, not_started=names)
    write_json(args.json, rows, packages=packages(), jobs=args.jobs, not_started=names)
    print("\n".join(["", *(line(row) for row in rows)]))
    if names:
        print(f"not started: {names}")


if __name__ == "__main__":
    main()
