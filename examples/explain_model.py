"""What becomes of a model: tasks, bytes, predicted time, and every op that runs through ATen with its cause.

python examples/explain_model.py
"""

from __future__ import annotations

import torch
from torch import nn

import ark_torch


class Classifier(nn.Module):
    """A small encoder with one op that ark leaves to ATen (the sort)."""

    def __init__(self, width: int = 256, heads: int = 4, num_layers: int = 4):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.encoder(self.embed(tokens)).mean(1))
        return torch.sort(scores, -1).values


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Classifier().to(device)
    print(ark_torch.explain(model, torch.randint(0, 1000, (4, 64), device=device)))


if __name__ == "__main__":
    main()
