"""Where does the time of a decode step, a training step or a prefill go? Per SM, and with --out per op (busy, load and
wait time, a picture per graph, which products begin before the product in front of them has ended).

    python benchmarks/timeline.py decode training prefill --json benchmarks/results/h200/timeline.json

A path instead of a name is a graph that ARK_DUMP has saved (graph.json): it is traced by itself, with made-up inputs.

The JSON has a row per graph: `ark` is the time from the first item to the last, and `per_sm` splits it (means over the
SMs, ms): wait (for other tiles), load (until the last page of an item has been seen; products run meanwhile), compute
(the rest of an item, its stores included), idle (before the first and after the last item, and between items). And a
row per layer of BERT's forward: by how much the second product of the feed-forward begins before the first ends.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import ark_torch
from ark_torch import _C
from ark_torch.graph_json import DTYPE_NAMES
from ark_torch.profile import Profile, Run
from harness import compiled, device, write_json
from models import bert_batch, bert_large, llama, set_position, static_cache


def decode(args: argparse.Namespace, where: str):
    model = llama(where, num_hidden_layers=args.layers or 16)
    cache = static_cache(model, 1024)
    call = compiled(lambda token: model(token, past_key_values=cache).logits, "ark")
    token = torch.full((1, 1), 17, device=where)

    def step() -> None:
        with torch.no_grad():
            set_position(cache, args.position)
            call(token)

    return step


def training(args: argparse.Namespace, where: str):
    model = bert_large(where, num_hidden_layers=args.layers or 24)
    call, batch = compiled(model, "ark"), bert_batch(model, 10, 384)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(where, dtype=torch.bfloat16):
            loss = call(**batch).loss
        loss.backward()

    return step


def prefill(args: argparse.Namespace, where: str):
    model = llama(where, num_hidden_layers=args.layers or 16)
    cache = static_cache(model, args.tokens)
    call = compiled(lambda ids: model(ids, past_key_values=cache, logits_to_keep=1).logits, "ark")
    tokens = torch.randint(model.config.vocab_size, (1, args.tokens), device=where)

    def step() -> None:
        with torch.no_grad():
            set_position(cache, 0)
            call(tokens)

    return step


def overlaps(run) -> list[str]:
    """Neighbouring matrix products on the tensor cores: how long before the end of the first the second begins to
    compute (negative: a gap)."""
    products = [t for t in run.op_times() if t.kind == "matmul_tile"]
    lines = ["tile products: begin of the second against the end of the first, us"]
    for first, second in zip(products, products[1:]):
        early = (first.end_ms - second.start_ms) * 1e3
        lines.append(f"{early:9.1f} us before the end: {second.name[:60]} after {first.name[:60]}")
    return lines


def feed_forward_rows(run) -> list[dict]:
    """One row per layer of the forward: how long before the end of the feed-forward's first product its second begins
    to compute (an op that waited for the whole of the one before it would have at most 0)."""
    products = {t.module: t for t in run.op_times() if t.kind == "matmul_tile" and t.module}
    rows = []
    if "forward" not in run.name:
        return rows  # a backward has products of the same modules, in the other order
    for module, first in products.items():
        second = products.get(module.removesuffix("intermediate.dense") + "output.dense")
        if not module.endswith(".intermediate.dense") or second is None:
            continue
        early = (first.end_ms - second.start_ms) * 1e3
        case = f"{second.module} begins before {module} ends"
        row = {"case": case, "unit": "us", "better": "higher", "ark": {"median": early, "p10": early, "p90": early}}
        spans = {"first_us": [first.start_ms * 1e3, first.end_ms * 1e3]}
        spans["second_us"] = [second.start_ms * 1e3, second.end_ms * 1e3]
        rows.append(row | {"rivals": {}, "floor": None, "must": 0.0, "errors": {}} | spans)
    return rows


def made_up(graph: dict, position: int) -> list[torch.Tensor]:
    """Inputs of a saved graph without symbols: small numbers, True, zeros as indices, `position` as scalar integers."""
    dtypes, generator = {name: dtype for dtype, name in DTYPE_NAMES.items()}, torch.Generator(device()).manual_seed(0)
    tensors = []
    for value in (graph["values"][number] for number in graph["inputs"]):
        sizes, dtype = value.get("sizes", []), dtypes[value.get("dtype", "f32")]
        tensor = torch.empty_strided(sizes, value.get("strides", []), dtype=dtype, device=device())
        if dtype.is_floating_point:
            tensor.normal_(generator=generator).mul_(0.02)
        else:
            tensor.fill_(True if dtype == torch.bool else 0 if sizes else position)
        tensors.append(tensor)
    return tensors


def traced_graph(path: str, args: argparse.Namespace) -> list[Run]:
    text = Path(path).read_text()
    graph = json.loads(text)
    options = {"trace": True, "name": graph["name"]}
    run = _C.CompiledGraph(text, "cuda" if device() == "cuda" else "host", 0, options)
    inputs, flush = made_up(graph, args.position), torch.zeros(64 << 20, device=device())
    for _ in range(2):
        flush.sum()
        records = run.trace(list(inputs))[1]
    return [Run(graph["name"], (), records)]


def split(times, workers: int) -> dict[str, float]:
    """Milliseconds of a mean SM."""
    sums = {"wait": 0.0, "load": 0.0, "compute": 0.0}
    for t in times:
        sums["wait"] += t.wait_ms
        sums["load"] += t.load_ms
        sums["compute"] += t.busy_ms - t.load_ms
    return {name: ms / workers for name, ms in sums.items()}


def time_per_sm(run, what: str) -> dict:
    """The row of a graph."""
    workers = 1 + max(record["worker"] for record in run.records)
    times = run.op_times()
    per_sm = split(times, workers)
    per_sm["idle"] = run.span_ms - sum(per_sm.values())
    kinds = sorted({t.kind for t in times})
    span = dict.fromkeys(("median", "p10", "p90"), run.span_ms)
    row = {"case": f"{what}: {run.name}, traced", "unit": "ms", "better": "lower", "ark": span | {"n": 1}}
    row |= {"rivals": {}, "floor": None, "must": None, "errors": {}, "workers": workers, "per_sm": per_sm}
    return row | {"kinds": {kind: split([t for t in times if t.kind == kind], workers) for kind in kinds}}


def save(profile: Profile, what: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, run in enumerate(profile.runs):
        stem = what if len(profile.runs) == 1 else f"{what}{index}"
        profile.save_timeline(str(folder / f"{stem}.svg"), index)
        text = "\n".join([Profile([run]).table(), "", *overlaps(run)])
        (folder / f"{stem}.txt").write_text(text + "\n")


def traced(what: str, args: argparse.Namespace) -> list[Run]:
    if what.endswith(".json"):
        return traced_graph(what, args)
    torch._dynamo.reset()
    step = {"decode": decode, "training": training, "prefill": prefill}[what](args, device())
    for _ in range(2):
        step()
    with ark_torch.profile() as warm:
        step()
    del warm
    with ark_torch.profile() as profile:
        step()
    return list(profile.runs)


def rows_of(runs: list[Run], label: str) -> list[dict]:
    rows = [time_per_sm(run, label) for run in runs]
    for row in rows:
        parts = ", ".join(f"{name} {ms:.4f}" for name, ms in row["per_sm"].items())
        print(f"{row['case']}: {row['ark']['median']:.4f} ms; per SM: {parts}", flush=True)
    return rows + [row for run in runs for row in feed_forward_rows(run)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="decode, training, prefill or a saved graph")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--position", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--out", help="folder for tables and pictures")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for what in args.what:
        runs = traced(what, args)
        label = f"{Path(what).parent.name}, the graph by itself" if what.endswith(".json") else what
        rows += rows_of(runs, f"decode, position {args.position}" if what == "decode" else label)
        if args.out:
            save(Profile(runs), Path(what).parent.name if what.endswith(".json") else what, Path(args.out))
        write_json(args.json, rows)
    gaps = [row["case"] for row in rows if row["must"] == 0.0 and not row["ark"]["median"] > 0]
    if gaps:
        raise SystemExit(f"of {sum(row['must'] == 0.0 for row in rows)} pairs these do not overlap: {gaps}")


if __name__ == "__main__":
    main()
