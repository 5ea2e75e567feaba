"""Decoding in one launch: python examples/generate.py [--rows 4] [--new 64] [--layers 4] [--width 256]

`ark_torch.generate` runs the prompts as one compiled call and all other tokens as the iterations of one loop. A Llama
with random weights says as much as it takes to compare tokens and times with transformers' own `generate`; draws are
compared by their time.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ark_torch


def make_model(layers: int, width: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        vocab_size=1024,
        max_position_embeddings=1024,
        initializer_range=0.1,
        pad_token_id=0,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def make_prompts(rows: int, length: int = 16) -> dict:
    """Row r is r tokens shorter than the first, and padded on the left."""
    ids = torch.randint(3, 1024, (rows, length))
    mask = (torch.arange(length) >= torch.arange(rows).clamp(max=length - 1)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def timed(function) -> tuple[torch.Tensor, float]:
    """What the second call returns, and its milliseconds: the first compiles."""
    function()
    begin = time.perf_counter()
    tokens = function()
    return tokens, 1e3 * (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(args.layers, args.width).to(device)
    inputs = {name: x.to(device) for name, x in make_prompts(args.rows).items()}
    options = {**inputs, "max_new_tokens": args.new, "cache_implementation": "static"}

    wanted, plainly = timed(lambda: model.generate(**options))
    tokens, natively = timed(lambda: model.generate(**options, custom_generate=ark_torch.generate))
    print(f"{args.rows} rows of {args.new} new tokens {'equal' if torch.equal(tokens, wanted) else 'NOT equal'}")
    print(f"ark: {natively / args.new:.2f} ms a token; transformers: {plainly / args.new:.2f} ms")
    options |= {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.9}
    _, plainly = timed(lambda: model.generate(**options))
    _, natively = timed(lambda: model.generate(**options, custom_generate=ark_torch.generate))
    print(f"drawn, ark: {natively / args.new:.2f} ms a token; transformers: {plainly / args.new:.2f} ms")
    print("\n".join(line for line in str(ark_torch.report()).splitlines() if "_loop" in line))


if __name__ == "__main__":
    main()
