"""The tables of measured numbers in the README, in docs/PERFORMANCE.md and its notes, made from the result files.

    python benchmarks/report.py --write

A table stands between `<!-- measured NAME: begin -->` and `<!-- measured NAME: end -->`;
tests/benchmarks/test_report.py compares.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/h200"
SYMMETRIC = ("one-shot", "two-shot", "inductor-symm")  # ways of benchmarks/tensor_parallel.py
INDUCTOR = ("inductor", "reduce-overhead", "max-autotune")


def document(name: str) -> dict:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def rows_of(name: str) -> list[dict]:
    return document(name)["rows"]


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def median(result: dict | None) -> float | None:
    return result["median"] if result else None


def model_line(row: dict, source: str) -> str:
    """A row of a table of models: medians, milliseconds."""
    rivals = row["rivals"]
    modes = {name: rivals[name]["median"] for name in INDUCTOR if name in rivals}
    best = min(modes, key=modes.get) if modes else None
    cells = [
        row["case"],
        number(median(row["ark"])),
        *(number(median(rivals.get(n))) for n in ("eager", "eager-graph")),
        f"{number(modes[best])} ({best})" if best else "",
        number(row["floor"]),
        source,
    ]
    return "| " + " | ".join(cells) + " |"


def models() -> str:
    """Whole models, of the drivers that time one model each."""
    lines = [
        "| what (ms) | ark | eager | eager in a CUDA graph | inductor, best mode | floor | file, commit |",
        "|" + "---|" * 7,
    ]
    for name in ("decode", "../h100/training_unmasked", "prefill"):
        source = f"`{name.removeprefix('../')}.json`, {document(name)['commit'][:7]}"
        lines += [model_line(row, source) for row in rows_of(name)]
    return "\n".join(lines)


MODEL_TABLES = ("models_table", "models_table_2", "models_table_strips", "models_table_columns_8",
                "models_table_few_rows", "models_table_few_rows_8b", "models_table_others",
                "models_table_norms", "models_table_more")  # fmt: skip


def model_table() -> str:
    """The table of models: of each the newest run with rivals."""
    rivals = ("eager-graph", "inductor-graph", "reduce-overhead")
    heads = ("what (ms)", "ark", "eager in a CUDA graph", "inductor in a CUDA graph", "reduce-overhead", "floor",
             "file, commit")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    newest = {row["case"]: (row, name) for name in MODEL_TABLES for row in rows_of(name)}
    for case, (row, name) in newest.items():
        times = (median(row["ark"]), *(median(row["rivals"].get(rival)) for rival in rivals), row["floor"])
        source = f"`{name}.json`, {document(name)['commit'][:7]}"
        lines.append("| " + " | ".join([case, *map(number, times), source]) + " |")
    return "\n".join(lines)


def record() -> str:
    """One code before and after a rebuilding of the house, a row of a table in one call."""
    lines = ["| what (ms) | before | after | ratio | commits |", "|" + "---|" * 5]
    for name in ("decode", "prefill", "training"):
        before, after = (document(f"record_{name}_{when}") for when in ("before", "after"))
        times = [median(found["rows"][0]["ark"]) for found in (before, after)]
        commits = " and ".join(found["commit"][:7] for found in (before, after))
        cells = [before["rows"][0]["case"], *map(number, times), f"{times[1] / times[0]:.3f}", commits]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def classes() -> str:
    """Of each class of the sweep's ops that memory bounds: the best rival's time by ark's, the newest run."""
    found = {document(path.stem)["kind"]: path.stem for run in ("slots", "windows", "grid")
             for path in sorted(RESULTS.glob(f"sweep_{run}_*.json"))}  # fmt: skip
    lines = ["| kind | median | worst | shapes | file, commit |", "|" + "---|" * 5]
    for kind, name in sorted(found.items(), key=lambda item: -document(item[1])["worst"]):
        run = document(name)
        cells = [kind, f"{run['median']:.2f}", f"{run['worst']:.2f}", str(len(run["rows"]))]
        lines.append("| " + " | ".join([*cells, f"`{name}.json`, {run['commit'][:7]}"]) + " |")
    return "\n".join(lines)


def tasks() -> str:
    """What tasks and dependencies cost."""
    lines = [
        "| cost (us, one task more of a long chain) | ark | exposed wait | a kernel in a CUDA graph |",
        "|" + "---|" * 4,
    ]
    for row in (row for row in rows_of("tasks") if "of_ceiling" not in row):
        more = row.get("exposed") or row.get("over_equal")
        note = f"{more['median']:.2f}" if more else ""
        note += " over the mean of equal ones" if "over_equal" in row else ""
        rival = median(row["rivals"].get("kernels in a CUDA graph"))
        lines.append(f"| {row['case']} | {row['ark']['median']:.2f} | {note} | {number(rival)} |")
    return "\n".join(lines)


def kinds() -> str:
    """Kinds by themselves, against ceiling and library."""
    lines = ["| kind alone (us) | ark | ceiling | of ceiling | library, its best | of library |", "|" + "---|" * 6]
    for row in (row for row in rows_of("tasks") if "of_ceiling" in row):
        best = min(row["rivals"], key=lambda name: row["rivals"][name]["median"], default=None)
        library = f"{row['rivals'][best]['median']:.1f} ({best})" if best else ""
        of = f"{row['of_library']:.2f}" if best else ""
        ark = f"{row['ark']['median']:.1f}"
        lines.append(f"| {row['case']} | {ark} | {row['floor']:.1f} | {row['of_ceiling']:.2f} | {library} | {of} |")
    return "\n".join(lines)


def sweep() -> str:
    """Of each kind of the quick sweep: the best rival's time by ark's, the worst kinds first."""
    found = [document(path.stem) for path in RESULTS.glob("sweep_quick_*.json")]
    lines = ["| kind | median | worst | where | behind |", "|---|---|---|---|---|"]
    for kind in sorted(found, key=lambda kind: (kind["worst"], kind["kind"])):
        behind = f"{kind['behind']} of {len(kind['rows'])}"
        cells = [kind["kind"], f"{kind['median']:.2f}", f"{kind['worst']:.2f}"]
        cells += [kind["worst_case"].removeprefix(f"{kind['kind']}: "), behind]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def calls() -> str:
    """The CPU's part of a call."""
    lines = ["| one call (us of the CPU) | ark | limit |", "|---|---|---|"]
    lines += [f"| {r['case']} | {r['ark']['median']:.1f} | {number(r['must'])} |" for r in rows_of("call_overhead")]
    return "\n".join(lines)


def timeline() -> str:
    """Time per SM of traced graphs."""
    lines = ["| traced graph (ms per SM) | in all | wait | load | compute | idle |", "|" + "---|" * 6]
    for row in rows_of("timeline"):
        if split := row.get("per_sm"):
            parts = " | ".join(f"{split[name]:.3f}" for name in ("wait", "load", "compute", "idle"))
            lines.append(f"| {row['case']} | {row['ark']['median']:.3f} | {parts} |")
    return "\n".join(lines)


WORLDS = tuple(n for n in (8, 4, 2) if (RESULTS / f"collectives_{n}.json").exists())
SIZES = {8 << 10: "8 KB", 64 << 10: "64 KB", 1 << 20: "1 MB", 4 << 20: "4 MB", 16 << 20: "16 MB", 64 << 20: "64 MB",
         256 << 20: "256 MB", 1 << 30: "1 GB"}  # fmt: skip


def collective_cells(row: dict | None) -> list[str]:
    """ark (registered memory in parentheses where it was measured), NCCL, the best of torch's symmetric memory."""
    if row is None:
        return ["", "", ""]
    short = lambda r: f"{r['median']:.1f}" if r["median"] < 100 else f"{r['median']:.0f}"
    ark = short(row["ark"]) + (f" ({short(row['registered'])})" if row.get("registered") else "")
    symmetric = [r for name, r in row["rivals"].items() if name.startswith("symm_mem")]
    best = min(symmetric, key=lambda r: r["median"], default=None)
    nccl = row["rivals"].get("nccl")
    return [ark, short(nccl) if nccl else "", short(best) if best else "-"]


def collective_table(op: str, mode: str = "graph", sizes: dict[int, str] = SIZES) -> str:
    heads = [f"{n} GPUs: ark" if i == 0 else name for n in WORLDS for i, name in enumerate(("ark", "NCCL", "symm_mem"))]
    lines = [f"| {op.replace('_', '-')} (us, {mode}) | " + " | ".join(heads) + " |", "|" + "---|" * (1 + len(heads))]
    found = {(n, r["bytes"]): r for n in WORLDS for r in rows_of(f"collectives_{n}")
             if (r["op"], r["mode"]) == (op, mode)}  # fmt: skip
    for size, text in sizes.items():
        if any((n, size) in found for n in WORLDS):
            cells = [cell for n in WORLDS for cell in collective_cells(found.get((n, size)))]
            lines.append("| " + " | ".join([text, *cells]) + " |")
    return "\n".join(lines)


def allreduce() -> str:
    """All-reduce calls in CUDA graphs."""
    return collective_table("all_reduce")


def collectives() -> str:
    """The other collectives, and eager all-reduces."""
    tables = [collective_table(op) for op in ("all_gather", "reduce_scatter", "all_to_all")]
    return "\n\n".join([*tables, collective_table("all_reduce", "eager")])


def communication() -> str:
    """Communication inside of kernels, beside computation, in training."""
    lines = ["| what | unit | ark | NCCL | goal |", "|" + "---|" * 5]
    names = [
        "collectives_device_side",
        *(f"{what}_{n}" for what in ("interference", "ddp", "megatron") for n in (4, 8)),
        "megatron_2",
    ]
    for row in (row for name in names for row in rows_of(name)):
        nccl = median(row["rivals"].get("nccl"))
        cells = [row["case"], row["unit"], *(number(x) for x in (median(row["ark"]), nccl, row["must"]))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tensor_parallel() -> str:
    """Steps of tensor-parallel models; ark's as it is called and in a CUDA graph, the rivals in CUDA graphs."""
    heads = ("what", "GPUs", "unit", "ark", "ark in a CUDA graph", "eager, NCCL", "inductor, NCCL",
             "symmetric memory, its best", "file, commit")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for path in sorted(RESULTS.glob("tensor_parallel_*.json")):
        found = document(path.stem)
        for row in (row for row in found["rows"] if "error" not in row):
            rivals = {name: result["median"] for name, result in row["rivals"].items()}
            symmetric = {name: time for name, time in rivals.items() if name.startswith(SYMMETRIC)}
            best = min(symmetric, key=symmetric.get, default=None)
            times = (median(row["ark"]), *map(rivals.get, ("ark-graph", "eager-graph", "inductor-graph")))
            cells = [row["case"], str(found["ranks"]), row["unit"], *map(number, times)]
            cells += [f"{number(symmetric[best])} ({best})" if best else "", f"`{path.name}`, {found['commit'][:7]}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES = {"models": models, "model_table": model_table, "record": record, "classes": classes, "tasks": tasks,
          "kinds": kinds, "sweep": sweep, "calls": calls, "timeline": timeline, "allreduce": allreduce,
          "collectives": collectives, "communication": communication,
          "tensor_parallel": tensor_parallel}  # fmt: skip
PAGES = [ROOT / "README.md", ROOT / "docs/PERFORMANCE.md",
         *(ROOT / f"docs/notes/{name}.md" for name in ("collectives", "planning", "tasks"))]  # fmt: skip
BLOCK = re.compile(r"(<!-- measured (\w+): begin -->\n)(.*?)(<!-- measured \2: end -->)", re.S)


def renewed(text: str) -> str:
    """The page with its tables as the result files have them."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + "\n" + found[4], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the pages (else printed)")
    args = parser.parse_args()
    if not args.write:
        print("\n\n".join(table() for table in TABLES.values()))
        return
    for page in PAGES:
        page.write_text(renewed(page.read_text()))


if __name__ == "__main__":
    main()
