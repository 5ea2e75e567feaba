"""How long does a prefill take? Llama-3.2-1B's configuration, bf16, batch 1, 2048 tokens into a StaticCache.

python benchmarks/prefill.py --json benchmarks/results/h200/prefill.json

`must`: 0.9 of the speed of inductor's best mode in the same run.
"""

from __future__ import annotations

import argparse
import copy

import torch

from harness import Captured, Case, check_against_fp64, compiled, contestants_of, device, run_cases, write_json
from models import SMALL_LLAMA, llama, set_position, static_cache

INDUCTOR = ("inductor", "reduce-overhead", "max-autotune")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--modes", default="ark,eager,eager-graph,inductor,reduce-overhead,max-autotune")
    parser.add_argument("--small", action="store_true", help="a narrow model, to try the file itself")
    args = parser.parse_args()
    where = device()
    model = llama(where, num_hidden_layers=args.layers, **(SMALL_LLAMA if args.small else {}))
    tokens = torch.randint(model.config.vocab_size, (1, args.tokens), device=where)
    modes, timed = contestants_of(args.modes, where)
    caches = {mode: static_cache(model, args.tokens) for mode in modes}

    def contestant(mode: str):
        call = lambda ids: model(ids, past_key_values=caches[mode], logits_to_keep=1).logits
        if mode == "eager-graph":
            with torch.no_grad():
                return Captured(lambda: call(tokens), lambda: set_position(caches[mode], 0))
        call = compiled(call, mode)
        return torch.no_grad()(lambda: call(tokens))

    with torch.no_grad():
        # A copy, not a new fp64 model: the rotary frequencies are buffers that the bf16 model has rounded
        double = copy.deepcopy(model).double()
        cache = static_cache(double, args.tokens)
        set_position(cache, 0)
        reference = double(tokens, past_key_values=cache, logits_to_keep=1).logits
        del double, cache
    parameters = sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()
    case = Case(
        case=f"Llama-3.2-1B prefill, {args.tokens} tokens, bf16",
        contestants={mode: contestant(mode) for mode in modes},
        timed=timed,
        prepare=lambda name: set_position(caches[name], 0),
        check=check_against_fp64(reference),
        floor=2 * parameters * args.tokens / 790e12 * 1e3,
        launches=1,
    )
    rows = run_cases([case], where, rounds=args.rounds)
    inductor = [rows[0]["rivals"][mode]["median"] for mode in INDUCTOR if mode in rows[0]["rivals"]]
    if inductor:
        rows[0]["must"] = min(inductor) / 0.9
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
