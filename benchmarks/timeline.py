"""Where does the time of a decode step or a training step go? Per op: busy, load and wait time; a picture per graph,
and which products begin before the product in front of them has ended.

python benchmarks/timeline.py decode --out build/timeline
python benchmarks/timeline.py training --json benchmarks/results/h200/timeline.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import ark_torch
from ark_torch.profile import Profile
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["decode", "training"])
    parser.add_argument("--layers", type=int)
    parser.add_argument("--position", type=int, default=96)
    parser.add_argument("--out", default="build/timeline")
    parser.add_argument("--json", help="of a training step: by how much the feed-forward's products overlap")
    args = parser.parse_args()
    step = {"decode": decode, "training": training}[args.what](args, device())
    for _ in range(3):
        step()
    with ark_torch.profile() as warm:
        step()
    del warm
    with ark_torch.profile() as profile:
        step()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for index, run in enumerate(profile.runs):
        stem = args.what if len(profile.runs) == 1 else f"{args.what}{index}"
        profile.save_timeline(str(out / f"{stem}.svg"), index)
        text = "\n".join([Profile([run]).table(), "", *overlaps(run)])
        (out / f"{stem}.txt").write_text(text + "\n")
        print(text[:6000])
    if args.json:
        write_json(args.json, [row for run in profile.runs for row in feed_forward_rows(run)])


if __name__ == "__main__":
    main()
