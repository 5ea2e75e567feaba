"""Trains a small BERT with bf16 autocast through ark, eager beside it; the optimizer step is compiled too.

python examples/train_bert.py [--steps N] [--layers N]
"""

from __future__ import annotations

import argparse
import copy

import torch
from transformers import BertConfig, BertForMaskedLM


def build(device: str, layers: int) -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "vocab_size": 2000,
    }
    return (
        BertForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        .to(device)
        .train()
    )


def train(model, forward, step, optimizer, batches, device: str) -> list[float]:
    losses = []
    for ids in batches:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(device, args.layers)
    twin = copy.deepcopy(model)
    batches = [torch.randint(0, 2000, (4, 64), device=device) for _ in range(args.steps)]

    eager_optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-4, foreach=True)
    eager = train(twin, twin, eager_optimizer.step, eager_optimizer, batches, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    forward, step = torch.compile(model, backend="ark"), torch.compile(optimizer.step, backend="ark")
    ark = train(model, forward, step, optimizer, batches, device)

    for i, (a, e) in enumerate(zip(ark, eager)):
        print(f"step {i}: loss {a:.4f} with ark, {e:.4f} eager")
        if abs(a - e) > 0.02 * abs(e):
            raise SystemExit("the losses part")


if __name__ == "__main__":
    main()
