"""Does training with ark follow eager? BERT-Large, bf16 autocast, 20 AdamW steps from equal weights on equal batches.

python benchmarks/loss_curve.py --json benchmarks/results/h200/loss_curve.json

Without dropout, step by step: the distance of ark's loss from the fp32 loss (eager, no autocast) is at most `FACTOR`
times the largest distance of eager's bf16 runs at that step and its neighbours (WINDOW to each side). Those runs differ
in the order of their sums only: the rows of every batch are permuted, which changes the rounding of loss and gradients
and nothing else.
With dropout: at every step the means over the seeds of ark and eager differ by at most LIMIT standard errors of their
difference (Student's t of two samples of 5, pooled variance; chosen so that equal distributions pass with 99 %
over all 20 steps). `--also inductor` trains it on the same seeds and judges it likewise.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch

from harness import compiled, device, print_row, summary, write_json
from models import bert_batch, bert_large

FACTOR = 2.0
WINDOW = 2
LIMIT = 5.62  # t of 8 degrees of freedom, two-sided, 1 % / 20 steps


class Trainer:
    """One model under one way of running it; `curve` trains it from its first weights."""

    def __init__(self, mode: str, where: str, dropout: float, args: argparse.Namespace, autocast: bool = True):
        shape = dict(hidden_size=args.hidden, num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden)
        self.model = bert_large(where, dropout, num_hidden_layers=args.layers, **shape)
        self.first = copy.deepcopy(self.model.state_dict())
        self.call, self.where, self.autocast, self.args = compiled(self.model, mode), where, autocast, args
        self.batches = [bert_batch(self.model, args.batch, args.sequence, seed) for seed in range(args.steps)]
        for batch in self.batches:
            batch["labels"] = batch["input_ids"]  # something to learn

    def curve(self, seed: int = 0, order: torch.Tensor | None = None) -> list[float]:
        """The losses of the steps. `seed` is dropout's; `order` permutes the rows of every batch."""
        self.model.load_state_dict(self.first)
        self.model.zero_grad(set_to_none=True)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.lr, weight_decay=0.01)
        torch.manual_seed(seed)
        losses = []
        for batch in self.batches:
            if order is not None:
                batch = {name: value[order] for name, value in batch.items()}
            with torch.autocast(self.where, dtype=torch.bfloat16, enabled=self.autocast):
                loss = self.call(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        return [loss.item() for loss in losses]


def case_name(args: argparse.Namespace, dropout: float, what: str) -> str:
    shape = f"{args.layers} layers, {args.batch} x {args.sequence}, bf16 autocast"
    return f"BERT ({args.hidden} wide), {shape}, {args.steps} AdamW steps, dropout {dropout}: {what}"


def distances(curve: list[float], reference: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(curve, reference)]


def without_dropout(where: str, args: argparse.Namespace) -> dict:
    exact = Trainer("eager", where, 0.0, args, autocast=False).curve()
    eager = Trainer("eager", where, 0.0, args)
    generator = torch.Generator().manual_seed(0)
    orders = [None] + [torch.randperm(args.batch, generator=generator).to(where) for _ in range(args.orders)]
    eager_curves = [eager.curve(order=order) for order in orders]
    del eager
    mine = Trainer("ark", where, 0.0, args).curve()
    spreads = [max(values) for values in zip(*(distances(curve, exact) for curve in eager_curves))]
    limits = [FACTOR * max(spreads[max(0, step - WINDOW) : step + WINDOW + 1]) for step in range(args.steps)]
    far = distances(mine, exact)
    row = {
        "case": case_name(args, 0.0, "distance from the fp32 loss, over the steps"),
        "unit": "loss",
        "better": "lower",
        "ark": summary(far),
        "rivals": {"eager": summary([d for curve in eager_curves for d in distances(curve, exact)])},
        "floor": None,
        "must": max(limits),
        "errors": {},
        "curves": {"ark": mine, "eager": eager_curves, "fp32": exact},
        "limits": limits,
        "within": all(a <= b for a, b in zip(far, limits)),
    }
    return row


def with_dropout(where: str, dropout: float, args: argparse.Namespace) -> dict:
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    curves = {}
    for mode in ("eager", "ark", *args.also):
        torch._dynamo.reset()
        trainer = Trainer(mode, where, dropout, args)
        curves[mode] = [trainer.curve(seed) for seed in seeds]
        del trainer
    means = {mode: [statistics.mean(values) for values in zip(*runs)] for mode, runs in curves.items()}
    variances = {mode: [statistics.variance(values) for values in zip(*runs)] for mode, runs in curves.items()}
    far = {mode: distances(means[mode], means["eager"]) for mode in ("ark", *args.also)}
    errors = {
        mode: [((a + b) / args.seeds) ** 0.5 for a, b in zip(variances[mode], variances["eager"])] for mode in far
    }
    limits = [LIMIT * error for error in errors["ark"]]
    return {
        "case": case_name(args, dropout, f"distance of the mean of {args.seeds} seeds from eager's, over the steps"),
        "unit": "loss",
        "better": "lower",
        "ark": summary(far["ark"]),
        "rivals": {mode: summary(far[mode]) for mode in args.also},
        "floor": None,
        "must": max(limits),
        "errors": {},
        "seeds": list(seeds),
        "curves": curves,
        "means": means,
        "limits": limits,
        "standard_errors": {mode: [d / error for d, error in zip(far[mode], errors[mode])] for mode in far},
        "within": all(a <= b for a, b in zip(far["ark"], limits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--sequence", type=int, default=384)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--orders", type=int, default=4, help="eager runs with permuted batches")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--dropouts", default="0,0.1")
    parser.add_argument("--also", nargs="*", default=[], choices=("inductor",), help="with dropout: beside ark")
    args = parser.parse_args()
    where, rows = device(), []
    for dropout in map(float, args.dropouts.split(",")):
        torch._dynamo.reset()
        rows.append(with_dropout(where, dropout, args) if dropout else without_dropout(where, args))
        print_row(rows[-1])
        write_json(args.json, rows)
    outside = [row["case"] for row in rows if not row["within"]]
    if outside:
        raise SystemExit("outside of eager's spread: " + "; ".join(outside))


if __name__ == "__main__":
    main()
