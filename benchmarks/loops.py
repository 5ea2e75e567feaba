"""How long does an iteration take that the CPU has no part in?

python benchmarks/loops.py --json benchmarks/results/h100/loops.json

A `torch.while_loop` in one launch (ark) against the same compiled step called, or replayed as a CUDA graph, once per
iteration. us an iteration: the time of a call of `iterations`, divided. `empty` counts and does nothing else; `decode`
is Llama-3.2-1B's configuration in bf16 with a StaticCache, its next token by argmax. The results of ark's ways are
equal in every bit; eager's differ by rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from harness import Captured, Case, compiled, device, run_cases, write_json
from models import SMALL_LLAMA, llama, set_position, static_cache

Step = Callable[..., tuple]


def looped(step: Step, iterations: int) -> Callable:
    options = {"strict": True}

    def run(*carry):
        return torch.while_loop(lambda i, *_: i < iterations, step, carry)

    return torch.compile(run, backend="ark", fullgraph=True, options=options)


class Replayed:
    """The step in a CUDA graph that stores its results where it reads them."""

    def __init__(self, step: Step, carry: tuple, before: Callable[[], None]):
        self.first = tuple(x.clone() for x in carry)
        self.values = tuple(x.clone() for x in carry)
        self.graph = Captured(lambda: self._store(step(*self.values)), before)

    def _store(self, results: tuple) -> None:
        for value, result in zip(self.values, results):
            value.copy_(result)

    def __call__(self, iterations: int) -> tuple:
        self._store(self.first)
        for _ in range(iterations):
            self.graph()
        return self.values


def called(step: Step, carry: tuple, iterations: int) -> tuple:
    for _ in range(iterations):
        carry = step(*carry)
    return carry


def check(outputs: dict[str, object]) -> dict:
    """ark's ways agree in every bit."""
    ways = [name for name in outputs if name.startswith("ark")]
    for name in ways:
        for k, (x, y) in enumerate(zip(outputs[name], outputs[ways[0]])):
            if not torch.equal(x, y):
                raise AssertionError(f"carried value {k} of {name!r} differs from that of {ways[0]!r}")
    return {"equal": ways}


def case(name: str, step: Step, carry: tuple, iterations: int, floor=None, must=None, before=lambda: None) -> Case:
    ark, inductor = compiled(step, "ark"), compiled(step, "inductor")
    loop = looped(step, iterations)
    ways = {
        "ark": lambda: loop(*carry),
        "ark, called": lambda: called(ark, carry, iterations),
        "eager": lambda: called(step, carry, iterations),
    }
    if carry[0].is_cuda:
        for way, function in (("ark", ark), ("inductor", inductor)):
            replayed = Replayed(function, carry, before)
            ways[f"{way}, a graph a step"] = lambda replayed=replayed: replayed(iterations)
    return Case(
        f"{name}, {iterations} iterations",
        ways,
        check,
        prepare=lambda _: before(),
        unit="us an iteration",
        scale=lambda ms: ms * 1e3 / iterations,
        floor=floor,
        must=must,
    )


def counter(where: str) -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64, device=where)


def small_cases(where: str, iterations: int) -> list[Case]:
    weight = torch.eye(8, device=where) * 0.75
    values = torch.linspace(-1, 1, 32, device=where).reshape(4, 8)
    return [
        case("empty", lambda i: (i + 1,), (counter(where),), iterations, must=3.0),
        case("4 x 8 by 8 x 8", lambda i, x: (i + 1, torch.tanh(x @ weight)), (counter(where), values), iterations),
    ]


def decode_case(where: str, batch: int, iterations: int, overrides: dict) -> Case:
    model = llama(where, **overrides)
    cache = static_cache(model, 1024, batch)

    def step(i, token, tokens):
        logits = model(token, past_key_values=cache).logits[:, -1]
        token = logits.argmax(-1, keepdim=True)
        return i + 1, token, tokens.index_copy(1, i.reshape(1), token)

    first = torch.full((batch, 1), 17, device=where)
    carry = counter(where), first, torch.zeros(batch, iterations, dtype=torch.int64, device=where)
    return case(f"decode, batch {batch}", step, carry, iterations, before=lambda: set_position(cache, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000, help="of the small steps")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batches", default="1,8", help="of decode, comma separated; empty: none")
    parser.add_argument("--layers", type=int, help="of the model (default: its own number)")
    parser.add_argument("--small", action="store_true", help="a small model, to try the file")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json")
    args = parser.parse_args()
    where = device()
    overrides = SMALL_LLAMA if args.small else {}
    if args.layers:
        overrides = overrides | {"num_hidden_layers": args.layers}
    rows = []
    with torch.no_grad():
        rows += run_cases(small_cases(where, args.iterations), where, args.rounds)
        for batch in filter(None, args.batches.split(",")):
            rows += run_cases([decode_case(where, int(batch), args.tokens, overrides)], where, args.rounds)
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
