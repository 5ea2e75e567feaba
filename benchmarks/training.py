"""How long does a training step take? BERT-Large, sequence 384, batch 10, bf16 autocast, forward + backward.

python benchmarks/training.py --json benchmarks/results/h200/training.json
python benchmarks/training.py --unmasked --json benchmarks/results/h200/training_unmasked.json

Where a model without a mask is traced or captured, transformers makes one (all visible, of no effect), and torch then
composes attention of products where it has one kernel without. `--unmasked` keeps that mask from being made, for every
contestant.
"""

from __future__ import annotations

import argparse

import torch

from harness import Captured, Case, compiled, contestants_of, device, eager_of, relative_error, run_cases, write_json
from models import SMALL_BERT, bert_batch, bert_large


class Step:
    """Forward and backward of one contestant on its own model (equal weights); returns loss and some gradients."""

    def __init__(self, mode: str, where: str, args: argparse.Namespace):
        self.model = bert_large(
            where, args.dropout, num_hidden_layers=args.layers, **(SMALL_BERT if args.small else {})
        )
        if args.unmasked:
            self.model.bert._create_attention_masks = lambda **_: (None, None)
        self.batch = bert_batch(self.model, args.batch, args.sequence)
        self.where, self.graph = where, None
        self.call = compiled(self.model, "eager" if "graph" in mode else mode)
        if "graph" in mode:
            self.graph = Captured(self.step, self.clear)

    def clear(self) -> None:
        if self.graph is None:
            self.model.zero_grad(set_to_none=True)
        else:
            for parameter in self.model.parameters():
                parameter.grad.zero_()

    def step(self) -> list[torch.Tensor]:
        with torch.autocast(self.where, dtype=torch.bfloat16):
            loss = self.call(**self.batch).loss
        loss.backward()
        layer = self.model.bert.encoder.layer[0]
        probes = (layer.attention.self.query.weight, layer.intermediate.dense.weight, layer.output.LayerNorm.weight)
        return [loss.detach(), *(p.grad for p in probes)]

    def __call__(self) -> list[torch.Tensor]:
        return self.step() if self.graph is None else self.graph()


def reference(where: str, args: argparse.Namespace) -> list[torch.Tensor]:
    """Loss and gradients of the same step in fp32 (TF32 off), the reference that bf16's rounding is judged by."""
    step = Step("eager", where, args)
    loss = step.model(**step.batch).loss
    loss.backward()
    layer = step.model.bert.encoder.layer[0]
    probes = (layer.attention.self.query.weight, layer.intermediate.dense.weight, layer.output.LayerNorm.weight)
    return [loss.detach(), *(p.grad for p in probes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--sequence", type=int, default=384)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--unmasked", action="store_true", help="no mask is made where a contestant is traced")
    parser.add_argument("--small", action="store_true", help="a narrow model, to try the file itself")
    parser.add_argument("--modes", default="ark,eager,eager-graph,inductor,reduce-overhead,max-autotune")
    args = parser.parse_args()
    where = device()
    modes, timed = contestants_of(args.modes, where)
    expected = reference(where, args) if args.dropout == 0 else None

    def check(outputs: dict[str, list[torch.Tensor]]) -> dict:
        if expected is None:
            return {}
        errors = {name: [relative_error(a, b) for a, b in zip(out, expected)] for name, out in outputs.items()}
        # The loss (first) is one number: its error is a single draw, reported and not judged. The gradients are.
        for mine, eager in zip(errors.get("ark", [])[1:], eager_of(errors)[1:]):
            if not mine <= 1.5 * eager:
                raise AssertionError(f"ark's error {mine:.3e} is over 1.5 times eager's {eager:.3e}: {errors}")
        return errors

    steps = {mode: Step(mode, where, args) for mode in modes}
    what = f"BERT-Large forward + backward, {args.batch} x {args.sequence}, bf16 autocast, dropout {args.dropout}"
    case = Case(
        case=what + (", no mask made" if args.unmasked else ""),
        contestants=dict(steps),
        timed=timed,
        prepare=lambda name: steps[name].clear(),
        check=check,
        floor=13.6,
        must=27.0,
        product_launches=2,  # the layers in one loop kernel each way; another adds up the tied embedding's gradients
    )
    write_json(args.json, run_cases([case], where, rounds=args.rounds, flush_l2=False))


if __name__ == "__main__":
    main()
