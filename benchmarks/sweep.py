"""Where does a kind of task fall behind? Single ops over a grid of shapes against the best library kernel.

    python benchmarks/sweep.py --json benchmarks/results/h100/sweep
    python benchmarks/sweep.py --quick --json benchmarks/results/h100/sweep_quick
    python benchmarks/sweep.py --kinds "few rows,tiles" --budget-seconds 500

Each op (sweep_cases.py) is done on several sets of operands in one graph, so that the launch is shared; its time is
that of a call by the number of sets, with a cold L2. Rivals: the torch op and what inductor makes of it, in CUDA
graphs, and other kernels of the library where there are some. `ratio` is the best rival's time by ark's: below 1 ark is
behind.
Groups of ops first compile side by side in `--jobs` processes, then are timed one after another (sweep_row.py).
The JSON files are one per kind (PATH_KIND.json), with every row, the worst and the median ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from harness import write_json
from sweep_row import grid
from workers import Child, caches, kill_children_at_exit, one_after_another, side_by_side

MODES = "ark,eager-graph,inductor-graph"
COMPILING = 0.6  # of the time that is left


class Sweep:
    """The rows so far, by kind."""

    def __init__(self, args: argparse.Namespace, environment: dict[str, str]):
        self.args, self.environment, self.begin = args, environment, time.monotonic()
        self.rows: dict[str, list[dict]] = {}

    def left(self) -> float:
        return self.args.budget_seconds - (time.monotonic() - self.begin)

    def child(self, numbers: list[str], seconds: float, *more: str) -> Child:
        rest = ["--small"] if self.args.small else []
        arguments = [",".join(numbers), "--modes", self.args.modes, "--seconds", str(seconds), *rest, *more]
        return Child("sweep_row.py", arguments, self.environment)

    def compile(self, numbers: list[str]) -> None:
        """Dealt out like cards, as neighbours cost alike. What is not begun in time compiles when it is timed."""
        seconds = self.left() * COMPILING
        hands = [numbers[i :: self.args.jobs] for i in range(min(self.args.jobs, len(numbers)))]
        side_by_side([self.child(hand, seconds, "--compile") for hand in hands], self.args.jobs, self.args.limit)

    def time(self, numbers: list[str], ops: list) -> None:
        start = lambda rest: self.child(rest, self.left(), "--rounds", str(self.args.rounds))
        for number, row, error in one_after_another(numbers, start, self.args.limit, self.left):
            op = ops[int(number)]
            row = row or {"case": op.title, "kind": op.kind, "error": error}
            self.rows.setdefault(op.kind, []).append(row)
            print(line(row), flush=True)
            self.write(op.kind)

    def write(self, kind: str) -> None:
        if self.args.json:
            rows = self.rows[kind]
            write_json(f"{self.args.json}_{kind.replace(' ', '_')}.json", rows, kind=kind, **verdict(rows))


def line(row: dict) -> str:
    if "error" in row:
        return f"{row['case']}: FAILED {row['error'].splitlines()[-1]}"
    ratio = f"{row['ratio']:.2f}" if row["ratio"] else "no rival"
    rivals = ", ".join(f"{name} {result['median']:.2f}" for name, result in row["rivals"].items())
    text = f"{row['case']}: {ratio}; ark {row['ark']['median']:.2f} us, {rivals}, floor {row['floor']:.2f}"
    plan = row.get("plan", {"launches": 1, "fallbacks": {}})
    if plan["launches"] != 1 or plan["fallbacks"]:
        text += f"; {plan['launches']} launches, through ATen {plan['fallbacks']}"
    return text + "".join(f"; {name} failed: {why[:80]}" for name, why in row.get("failed", {}).items())


def verdict(rows: list[dict]) -> dict:
    """Of a kind."""
    ratios = {row["case"]: row["ratio"] for row in rows if row.get("ratio")}
    worst = min(ratios, key=ratios.get, default=None)
    return {
        "worst": ratios.get(worst),
        "worst_case": worst,
        "median": statistics.median(ratios.values()) if ratios else None,
        "behind": sum(ratio < 1 for ratio in ratios.values()),
        "measured": len(ratios),
        "failed": sum("error" in row for row in rows),
    }


def print_verdicts(rows: dict[str, list[dict]]) -> None:
    print("\nkind: median ratio, worst ratio, behind of measured, failed")
    for kind, of_kind in rows.items():
        v = verdict(of_kind)
        numbers = f"{v['median']:.2f}, {v['worst']:.2f} ({v['worst_case']})" if v["measured"] else "-"
        print(f"{kind}: {numbers}, {v['behind']} of {v['measured']}, {v['failed']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="PATH", help="how the names of the result files begin")
    parser.add_argument("--kinds", help="comma-separated (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few shapes of each kind: under three minutes on a GPU")
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile side by side")
    parser.add_argument("--group", type=int, default=112, help="ops that are compiled before they are timed")
    parser.add_argument("--limit", type=float, default=180, help="seconds that one op may take")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="no new op starts after that")
    parser.add_argument("--cache", help="folder for kernels (default: a new one)")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the file itself")
    args = parser.parse_args()
    kill_children_at_exit()
    ops = grid(args.small)
    kinds = [kind.strip() for kind in args.kinds.split(",")] if args.kinds else list(dict.fromkeys(o.kind for o in ops))
    unknown = set(kinds) - {o.kind for o in ops}
    if unknown:
        raise SystemExit(f"no kinds {sorted(unknown)}; there are: {list(dict.fromkeys(o.kind for o in ops))}")
    chosen = [str(i) for i, o in enumerate(ops) if o.kind in kinds and (o.quick or not args.quick)]
    total = len(chosen)
    with tempfile.TemporaryDirectory() as fresh:
        sweep = Sweep(args, caches(args.cache or fresh, threads=1))
        while chosen and sweep.left() > 0:
            group, chosen = chosen[: args.group], chosen[args.group :]
            sweep.compile(group)
            sweep.time(group, ops)
    print_verdicts(sweep.rows)
    missing = total - sum(map(len, sweep.rows.values()))
    if missing:
        print(f"not started: {missing} ops")


if __name__ == "__main__":
    main()
