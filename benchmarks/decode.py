"""How long does one decode step take? Llama-3.2-1B's configuration, bf16, batch 1, StaticCache.

python benchmarks/decode.py --json benchmarks/results/h200/decode.json

Caches longer than the first one are measured with ark alone: their rows ask whether an almost empty long cache costs
what a short one costs, `must` is the short one's median with the scatter of a run, `of_short` the ratio.
Of every row `plan` says what a step launches; another number than one, or a fallback, is an error.

`generate` in the JSON is the model's own generate with a StaticCache: tokens equal to eager's in fp32, launches per
token, and wall time per token in bf16 with all that transformers does on the CPU in between.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch

from harness import (
    Captured,
    Case,
    check_against_fp64,
    compiled,
    composition,
    contestants_of,
    device,
    run_cases,
    write_json,
)
from models import SMALL_LLAMA, llama, set_position, static_cache

MUST = {(1024, 96): 0.78, (1024, 1000): 0.82}
SCATTER = 1.02  # medians of equal runs on one machine differ by up to 2 %


def floor_ms(model: torch.nn.Module, position: int) -> float:
    """Weights (the tied embedding once, for the LM head), visible keys and values, at the measured 4.7 TB/s."""
    config = model.config
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 * (position + 1)
    return (sum(p.numel() * p.element_size() for p in model.parameters()) + kv_bytes) / 4.7e12 * 1e3


class Step:
    """One decode step of one contestant, with a cache of its own; returns the logits of the token."""

    def __init__(self, model: torch.nn.Module, mode: str, positions: int, seed_cache):
        self.model, self.cache = model, static_cache(model, positions)
        self.token = torch.full((1, 1), 17, device=model.get_input_embeddings().weight.device)
        self.graph = None
        self.call = compiled(
            lambda token: model(token, past_key_values=self.cache).logits, "eager" if "graph" in mode else mode
        )
        if "graph" in mode:
            with torch.no_grad():
                self.graph = Captured(lambda: self.call(self.token), lambda: set_position(self.cache, 8))
        for mine, theirs in zip(self.cache.layers, seed_cache.layers):  # last: capturing has written rows
            mine.keys.copy_(theirs.keys)
            mine.values.copy_(theirs.values)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        return self.call(self.token) if self.graph is None else self.graph()


@torch.no_grad()
def reference_logits(model: torch.nn.Module, seed_cache, position: int, positions: int) -> torch.Tensor:
    """The same step in fp64."""
    double = copy.deepcopy(model).double()
    cache = static_cache(double, positions)
    for mine, theirs in zip(cache.layers, seed_cache.layers):
        mine.keys.copy_(theirs.keys)
        mine.values.copy_(theirs.values)
    set_position(cache, position)
    return double(torch.full((1, 1), 17, device=double.device), past_key_values=cache).logits


def compare_with_short(row: dict, rows: list[dict], position: int) -> None:
    """Adds what the same position costs in the short cache, where that was measured."""
    same = [r for r in rows if r is not row and r["case"].endswith(f"position {position}") and r["ark"]]
    if same and row["ark"]:
        median = same[0]["ark"]["median"]
        row |= {"must": SCATTER * median, "of_short": row["ark"]["median"] / median}
        print(f"    {row['of_short']:.3f} of the short cache", flush=True)


def generated(model: torch.nn.Module, forward, positions: int, tokens: int) -> tuple[torch.Tensor, float]:
    """Tokens from a prompt of one token, as transformers' generate makes them, and the ms that each took."""
    model = copy.copy(model)
    model.forward = forward
    cache = static_cache(model, positions)
    set_position(cache, 0)
    prompt = torch.full((1, 1), 17, device=model.get_input_embeddings().weight.device)
    begin = time.perf_counter()
    result = model.generate(
        prompt,
        past_key_values=cache,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        disable_compile=True,
    )
    result = result.tolist()  # waits
    return torch.tensor(result), (time.perf_counter() - begin) * 1e3 / tokens


def through_generate(model: torch.nn.Module, positions: int, tokens: int) -> dict:
    """Equality with eager in fp32, where equal tokens can be asked for; the time of the model as it is."""
    torch._dynamo.reset()
    exact = copy.deepcopy(model).float()
    forward = torch.compile(exact.forward, backend="ark")
    wanted, _ = generated(exact, exact.forward, positions, tokens)
    generated(exact, forward, positions, 3)
    found = {}
    plan = composition(lambda: found.update(tokens=generated(exact, forward, positions, tokens)[0]))
    forward = torch.compile(model.forward, backend="ark")
    generated(model, forward, positions, 3)
    return {
        "tokens": tokens,
        "equal_fp32": torch.equal(found["tokens"], wanted),
        "launches_per_token": plan["launches"] / tokens,
        "fallbacks": plan["fallbacks"],
        "ms_per_token": {
            "ark": generated(model, forward, positions, tokens)[1],
            "eager": generated(model, model.forward, positions, tokens)[1],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--points", default="1024:96,1024:1000,8192:96", help="cache length:position, ...")
    parser.add_argument("--modes", default="ark,eager,eager-graph,inductor,reduce-overhead,max-autotune")
    parser.add_argument("--tokens", type=int, default=32, help="that generate makes; 0: without it")
    parser.add_argument("--small", action="store_true", help="a narrow model, to try the file itself")
    args = parser.parse_args()
    where = device()
    model, rows = llama(where, num_hidden_layers=args.layers, **(SMALL_LLAMA if args.small else {})), []
    points = [tuple(map(int, point.split(":"))) for point in args.points.split(",")]
    short = points[0][0]
    for positions in dict.fromkeys(length for length, _ in points):
        torch._dynamo.reset()
        modes, timed = contestants_of(args.modes if positions == short else "ark", where)
        seed_cache = static_cache(model, positions)
        steps = {mode: Step(model, mode, positions, seed_cache) for mode in modes}
        for position in (p for length, p in points if length == positions):
            case = Case(
                case=f"Llama-3.2-1B decode, batch 1, bf16, cache {positions}, position {position}",
                contestants=dict(steps),
                timed=timed,
                prepare=lambda name, s=steps, p=position: set_position(s[name].cache, p),
                check=check_against_fp64(reference_logits(model, seed_cache, position, positions)),
                floor=floor_ms(model, position),
                must=MUST.get((positions, position)),
                launches=1,
            )
            rows += run_cases([case], where, rounds=args.rounds)
            if positions != short:
                compare_with_short(rows[-1], rows, position)
        del steps
    generate = through_generate(model, short, args.tokens) if args.tokens and "ark" in args.modes else {}
    print("generate:", generate, flush=True)
    write_json(args.json, rows, generate=generate)
    if generate and not (generate["equal_fp32"] and generate["launches_per_token"] == 1 and not generate["fallbacks"]):
        raise SystemExit("generate: tokens differ from eager's, or a token is not one launch")


if __name__ == "__main__":
    main()
