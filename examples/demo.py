"""Generates tokens with a small Llama compiled by ark, compares them with eager's, reports plan and times.

python examples/demo.py [--layers 4] [--tokens 32]
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import ark_torch


def build_model(device: str, layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=4096,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(device).eval()


def generate(model: LlamaForCausalLM, prompt: torch.Tensor, tokens: int) -> tuple[torch.Tensor, list[float]]:
    """Greedy decoding with a StaticCache; returns the tokens and the seconds of every step after the prompt."""
    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + tokens)
    seconds, sequence = [], prompt
    with torch.no_grad():
        token = model(prompt, past_key_values=cache).logits[:, -1:].argmax(-1)
        for _ in range(tokens - 1):
            sequence = torch.cat([sequence, token], dim=1)
            begin = time.perf_counter()
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            if token.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    return torch.cat([sequence, token], dim=1), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(device, args.layers)
    prompt = torch.arange(1, 17, device=device).unsqueeze(0)

    expected, eager_seconds = generate(model, prompt, args.tokens)
    compiled = copy.copy(model)
    compiled.forward = torch.compile(model.forward, backend="ark")
    begin = time.perf_counter()
    generate(compiled, prompt, 4)
    compile_seconds = time.perf_counter() - begin
    times = ark_torch.compile_times()
    actual, ark_seconds = generate(compiled, prompt, args.tokens)

    print(f"ark {ark_torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the host target'}")
    print(ark_torch.report())
    print(
        f"first calls: {compile_seconds:.2f} s, of which Dynamo {times['dynamo']:.2f}, "
        f"AOTAutograd {times['backend'] - times['ark']:.2f}, ark {times['ark']:.2f}"
    )
    median = lambda values: sorted(values)[len(values) // 2] * 1e3
    print(f"one token: ark {median(ark_seconds):.3f} ms, eager {median(eager_seconds):.3f} ms")
    if not torch.equal(actual, expected):
        raise SystemExit(f"tokens differ from eager's:\nark   {actual.tolist()}\neager {expected.tolist()}")
    print(f"{args.tokens} tokens generated, equal to eager's")


if __name__ == "__main__":
    main()
