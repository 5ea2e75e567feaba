"""How long does a new token take when many are made in a row? Llama-3.2-1B's configuration, bf16.

    python benchmarks/generate.py --json benchmarks/results/h200/generate.json

ms a token: the time of a whole call, prompt included, divided by the tokens that it makes.

- ark: `ark_torch.generate`, greedy like all that do not say otherwise, all tokens but the first in one launch
- ark, temperature / top-k 50 / top-p 0.9 / both: the same, drawn; `sampling_us` is what that adds to a token
- ark, a launch a token: transformers' generate with ark's forward
- transformers: its generate with a static cache, as it is by default: on a GPU it compiles the forward itself and
  replays CUDA graphs
- eager: the same without compiling
- ark, the step alone: ark's decode step in a CUDA graph, replayed once a token; `must` is 1.03 of it

`equal_fp32`: the tokens of `ark_torch.generate` are those of eager's generate, in fp32.
"""

from __future__ import annotations

import argparse
import copy

import torch

import ark_torch
from harness import Captured, Case, compiled, device, run_cases, write_json
from models import SMALL_LLAMA, llama, set_position, static_cache

STEP = "ark, the step alone"
RIVALS = ["ark, a launch a token", "transformers", "eager"]
SAMPLED = {
    "ark, temperature": dict(temperature=0.8, top_k=0),
    "ark, top-k 50": dict(temperature=0.8, top_k=50),
    "ark, top-p 0.9": dict(temperature=0.8, top_k=0, top_p=0.9),
    "ark, both": dict(temperature=0.8, top_k=50, top_p=0.9),
}


class Generate:
    """Calls of one way of generating, all with caches of one length."""

    def __init__(self, model: torch.nn.Module, ids: torch.Tensor, tokens: int, **how):
        self.model, self.ids = model, ids
        self.options = dict(max_new_tokens=tokens, do_sample=False, cache_implementation="static", eos_token_id=None)
        self.options |= how

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        return self.model.generate(self.ids, attention_mask=torch.ones_like(self.ids), pad_token_id=0, **self.options)


def with_forward(model: torch.nn.Module, mode: str) -> torch.nn.Module:
    """The same weights behind a compiled forward; a model of its own, since transformers keeps the cache in it."""
    other = copy.copy(model)
    other.forward = compiled(model.forward, mode)
    return other


class StepAlone:
    """As many replays of one step as a call of the others makes tokens; each moves the cache's position on."""

    def __init__(self, model: torch.nn.Module, batch: int, prompt: int, tokens: int):
        cache, self.tokens = static_cache(model, prompt + tokens, batch), tokens
        token = torch.full((batch, 1), 17, device=model.device)
        step = compiled(lambda token: model(token, past_key_values=cache).logits[:, -1].float().argmax(-1), "ark")
        self.back = lambda: set_position(cache, prompt)
        with torch.no_grad():
            self.graph = Captured(lambda: step(token), self.back)

    def __call__(self) -> None:
        self.back()
        for _ in range(self.tokens):
            self.graph()


def is_equal_fp32(model: torch.nn.Module, ids: torch.Tensor, tokens: int) -> bool:
    exact = copy.deepcopy(model).float()
    wanted = Generate(exact, ids, tokens, disable_compile=True)()
    return torch.equal(Generate(exact, ids, tokens, custom_generate=ark_torch.generate)(), wanted)


def case(model: torch.nn.Module, batch: int, prompt: int, tokens: int, ways: list[str]) -> Case:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(model.config.vocab_size, (batch, prompt), generator=generator).to(model.device)
    made = {
        "ark": lambda: Generate(model, ids, tokens, custom_generate=ark_torch.generate),
        "ark, a launch a token": lambda: Generate(with_forward(model, "ark"), ids, tokens, disable_compile=True),
        "transformers": lambda: Generate(copy.copy(model), ids, tokens),
        "eager": lambda: Generate(copy.copy(model), ids, tokens, disable_compile=True),
        STEP: lambda: StepAlone(model, batch, prompt, tokens),
    }
    for way, options in SAMPLED.items():
        more = options | dict(do_sample=True, custom_generate=ark_torch.generate)
        made[way] = lambda more=more: Generate(model, ids, tokens, **more)
    on = [way for way in ways if way != STEP or model.device.type == "cuda"]
    return Case(
        f"{batch} x {prompt} prompt, {tokens} new tokens",
        {way: made[way]() for way in on},
        unit="ms a token",
        scale=lambda ms: ms / tokens,
        notes={"equal_fp32": is_equal_fp32(model, ids, min(tokens, 32))},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--ways", default=";".join(["ark", *SAMPLED, *RIVALS, STEP]), help="; between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a narrow model, to try the file")
    parser.add_argument("--json")
    args = parser.parse_args()
    where = device()
    model = llama(where, num_hidden_layers=args.layers, **(SMALL_LLAMA if args.small else {}))
    rows = []
    for batch in map(int, args.batches.split(",")):
        torch._dynamo.reset()
        one = case(model, batch, args.prompt, args.tokens, args.ways.split(";"))
        rows += run_cases([one], where, args.rounds, warmup=2, flush_l2=False)
        rivals = rows[-1]["rivals"]
        if step := rivals.get(STEP):
            rows[-1]["must"] = 1.03 * step["median"]
        if greedy := rows[-1]["ark"]:
            drawn = {way: rivals[way]["median"] for way in SAMPLED if way in rivals}
            rows[-1]["sampling_us"] = {way: 1e3 * (ms - greedy["median"]) for way, ms in drawn.items()}
    write_json(args.json, rows)
    if not all(row["equal_fp32"] for row in rows):
        raise SystemExit("tokens differ from transformers' in fp32")


if __name__ == "__main__":
    main()
