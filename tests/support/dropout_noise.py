"""How much do gradients scatter over dropout's masks, with ark and in eager? Masks that are shared by rows, layers or
steps, or a backward that uses other masks than its forward, show here and in no single number of one step."""

from __future__ import annotations

import torch
import transformers

SEEDS = 16


def bert(where: str, layers: int, hidden: int) -> transformers.BertForPreTraining:
    torch.manual_seed(0)
    shape = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64)
    config = transformers.BertConfig(**shape, intermediate_size=4 * hidden, vocab_size=1000)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    return transformers.BertForPreTraining(config).to(where).train()


def scatter(model: torch.nn.Module, call, batch: dict, where: str) -> dict[str, float]:
    """Per parameter: the variance of its gradient over the masks of SEEDS seeds, summed over its elements."""
    sums: dict[str, torch.Tensor] = {}
    squares: dict[str, torch.Tensor] = {}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        with torch.autocast(where, dtype=torch.bfloat16):
            loss = call(**batch).loss
        loss.backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.double()
            sums[name] = sums.get(name, 0) + gradient
            squares[name] = squares.get(name, 0) + gradient**2
    return {n: ((squares[n] / SEEDS - (sums[n] / SEEDS) ** 2).sum() * SEEDS / (SEEDS - 1)).item() for n in sums}


def check_gradients_scatter_as_in_eager(where: str, layers: int, hidden: int, batch: int, sequence: int) -> None:
    model = bert(where, layers, hidden)
    generator = torch.Generator(where).manual_seed(1)
    ids = torch.randint(1000, (batch, sequence), device=where, generator=generator)
    label = torch.zeros(batch, dtype=torch.long, device=where)
    inputs = {"input_ids": ids, "labels": ids, "next_sentence_label": label}
    eager = scatter(model, model, inputs, where)
    ark = scatter(model, torch.compile(model, backend="ark"), inputs, where)
    # Weights of the layers: many elements, so that the estimate is within some per cent (0.89 to 1.12 over 24 seeds).
    names = [n for n in eager if ".layer." in n and n.endswith(("dense.weight", "value.weight"))]
    ratios = {n: ark[n] / eager[n] for n in names}
    assert len(ratios) == 4 * layers
    assert all(0.7 < ratio < 1.43 for ratio in ratios.values()), ratios
