"""What does a new batch, sequence or position cost a compiled model? No NVRTC call, and only a plan.

    python benchmarks/new_sizes.py --json benchmarks/results/h200/new_sizes.json

The model is compiled once with its sizes marked dynamic; then every call has sizes that were not there before. A row's
number is ark's own work for them, summed over the model's graphs, milliseconds of the CPU: binding the symbols and
planning, which `must` limits (`parts` has the rest: looking the plan up in the kernel, and, as `load`, laying it out
and uploading it; `total` is all of it). `nvrtc` and `graphs` count what was compiled for the new sizes: both have to be
0, or the benchmark fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from ark_torch.records import recording
from harness import device, print_row, write_json
from models import bert_batch, bert_large, llama, set_position, static_cache

MUST = {"Llama-3.2-1B": 10.0, "BERT-Large": 100.0}
STAGES = ("bind", "plan", "source", "compile", "load")
Step = tuple[str, Callable[[], object]]


class Work:
    """What ark has done for the graphs of `records` so far."""

    def __init__(self, records: list):
        stats = [segment.executable.stats() for record in records for segment in record.segments]
        self.graphs, self.nvrtc = len(records), sum(s["compiles"] for s in stats)
        self.executables = sum(s["executables"] for s in stats)
        self.seconds = {stage: sum(s["seconds"][stage] for s in stats) for stage in STAGES}


def row_of(model: str, case: str, before: Work, after: Work) -> dict:
    parts = {stage: (after.seconds[stage] - before.seconds[stage]) * 1e3 for stage in STAGES}
    total, plan = sum(parts.values()), parts["bind"] + parts["plan"]
    row = {"case": f"{model}: {case}", "unit": "ms", "better": "lower"}
    row |= {"ark": {"median": plan, "p10": plan, "p90": plan, "n": 1}, "rivals": {}, "floor": None, "must": MUST[model]}
    counts = {"graphs": after.graphs - before.graphs, "nvrtc": after.nvrtc - before.nvrtc}
    return row | {
        "errors": {},
        "new_plans": after.executables - before.executables,
        **counts,
        "total": total,
        "parts": parts,
    }


def measure(model: str, steps: Iterator[Step]) -> list[dict]:
    """The first step compiles; each later one is a row."""
    rows = []
    with recording() as records:
        before = None
        for case, call in steps:
            call()
            after = Work(records)
            if before is not None:
                rows.append(row_of(model, case, before, after))
                print_row(rows[-1])
            before = after
    return rows


def mark(tensors: Iterable[torch.Tensor], *dims: int) -> None:
    for tensor in tensors:
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


MANY = ((16, 96), (24, 96), (40, 96), (40, 1000))
FEW = ((2, 96), (3, 96), (5, 96), (8, 96), (8, 1000))  # another task kind: products of few rows


def decode_steps(model: torch.nn.Module, where: str, batches=MANY) -> Iterator[Step]:
    """One token for each of several sequences: batch, then position."""
    call = torch.no_grad()(torch.compile(model, backend="ark"))
    for batch, position in batches:
        cache = static_cache(model, 1024, batch)
        set_position(cache, position)
        tokens = torch.zeros(batch, 1, dtype=torch.long, device=where)
        mark([tokens, *(t for layer in cache.layers for t in (layer.keys, layer.values))], 0)
        case = f"decode, batch {batch}, position {position}"
        yield case, lambda tokens=tokens, cache=cache: call(tokens, past_key_values=cache)


def prefill_steps(model: torch.nn.Module, where: str) -> Iterator[Step]:
    call = torch.no_grad()(torch.compile(model, backend="ark"))
    cache = static_cache(model, 1024)
    for length in (128, 200, 1000):
        tokens = torch.zeros(1, length, dtype=torch.long, device=where)
        mark([tokens], 1)

        def step(tokens=tokens) -> None:
            set_position(cache, 0)
            call(tokens, past_key_values=cache, logits_to_keep=1)

        yield f"prefill of {length} tokens", step


def training_steps(model: torch.nn.Module, where: str) -> Iterator[Step]:
    call = torch.compile(model, backend="ark")
    for batch, length in ((10, 384), (12, 384), (10, 256), (7, 131)):
        tensors = bert_batch(model, batch, length)
        mark(tensors.values(), 0)
        mark((tensors["input_ids"], tensors["labels"]), 1)

        def step(tensors=tensors) -> None:
            with torch.autocast(where, dtype=torch.bfloat16):
                loss = call(**tensors).loss
            loss.backward()

        yield f"training step, {batch} x {length}", step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--cases", default="few,decode,prefill,training")
    parser.add_argument("--layers", type=int, help="fewer layers than the models have, to try the benchmark")
    args = parser.parse_args()
    where, rows = device(), []
    for name in args.cases.split(","):
        torch.compiler.reset()
        if name == "training":
            model = bert_large(where, num_hidden_layers=args.layers or 24)
            rows += measure("BERT-Large", training_steps(model, where))
        else:
            model = llama(where, num_hidden_layers=args.layers or 16)
            few = partial(decode_steps, batches=FEW)
            steps = {"few": few, "decode": decode_steps, "prefill": prefill_steps}[name]
            rows += measure("Llama-3.2-1B", steps(model, where))
        del model
        write_json(args.json, rows)
    again = [row["case"] for row in rows if row["nvrtc"] or row["graphs"]]
    if again:
        raise SystemExit(f"compiled again for: {'; '.join(again)}")


if __name__ == "__main__":
    main()
