"""What does the choice of a token add to the product that makes the scores? bf16, 128256 words, 2048 wide.

    python benchmarks/draws.py --json benchmarks/results/h200/draws.json

us of a call: the scores of b rows, then the likeliest word or a drawn one.

- ark: drawn by `ark_torch.sampling`, with the processors that the case names, in a CUDA graph
- ark, greedy: the likeliest word instead; `added_us` is ark less this
- eager: transformers' processors, softmax and multinomial, in a CUDA graph
- inductor: the same, compiled, in a CUDA graph

Checked: what is drawn is a word that transformers' processors leave, or one whose score is as good within
rounding (bf16 scores have many ties).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from transformers.generation import LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ark_torch import sampling, sampling_checks
from harness import Captured, Case, compiled, device, run_cases, write_json

GREEDY, WORDS, WIDE = "ark, greedy", 128256, 2048
PROCESSORS = {
    "temperature": [TemperatureLogitsWarper(0.8)],
    "top-k 50": [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50)],
    "top-p 0.9": [TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.9)],
    "top-k 50, top-p 0.9": [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.9)],
}


class Rows:
    """Activations, and the weights that make scores of them."""

    def __init__(self, batch: int, words: int, wide: int, where: str):
        torch.manual_seed(0)
        self.x = torch.randn(batch, wide, device=where, dtype=torch.bfloat16)
        self.weight = torch.randn(words, wide, device=where, dtype=torch.bfloat16) / 20
        self.ids = torch.zeros(batch, 4, dtype=torch.long, device=where)
        self.length = torch.zeros((), dtype=torch.long, device=where)

    def scores(self) -> torch.Tensor:
        return (self.x @ self.weight.t()).float()


class Replayed:
    """A CUDA graph of `call`, captured at the first call: a rival that does not compile is one that failed."""

    def __init__(self, call: Callable[[], torch.Tensor]):
        self.call, self.graph = call, None

    def __call__(self) -> torch.Tensor:
        self.graph = self.graph or Captured(self.call)
        return self.graph()


def refused(what: str) -> ValueError:
    return ValueError(f"sampling has no {what}")


def ways(rows: Rows, processors: list) -> dict:
    read = sampling_checks.read_processors(LogitsProcessorList(processors), rows.ids, refused)
    drawn = lambda: sampling.draw(rows.scores(), read, rows.length, None)[0]
    greedy = lambda: sampling.most_likely(rows.scores(), (), rows.length, None)

    def theirs() -> torch.Tensor:
        scores = rows.scores()
        for one in processors:
            scores = one(rows.ids, scores)
        return torch.multinomial(scores.softmax(-1), 1)[:, 0]

    modes = {
        "ark": ("ark", drawn),
        GREEDY: ("ark", greedy),
        "eager": ("eager", theirs),
        "inductor": ("inductor", theirs),
    }
    return {name: compiled(call, mode) for name, (mode, call) in modes.items()}


def case(rows: Rows, name: str, ways_of: dict) -> Case:
    def left(outputs: dict[str, torch.Tensor]) -> dict:
        scores = rows.scores()
        for one in PROCESSORS[name]:
            scores = one(rows.ids, scores)
        least = scores.masked_fill(scores.isinf(), torch.inf).amin(-1, keepdim=True)
        for way, tokens in outputs.items():
            own = PROCESSORS[name][0](rows.ids, rows.scores()).gather(1, tokens[:, None])
            if way != GREEDY and not (own >= least - least.abs() / 64).all():  # products round in other orders
                raise AssertionError(f"{way}: words {tokens.tolist()}, of which the processors leave some not")
        return {}

    on_gpu = rows.x.is_cuda
    return Case(
        f"{rows.x.size(0)} rows, {name}",
        {way: Replayed(call) if on_gpu else call for way, call in ways_of.items()},
        check=left,
        unit="us",
        scale=lambda ms: 1e3 * ms,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--processors", default=";".join(PROCESSORS), help="; between them")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--small", action="store_true", help="few words, to try the file")
    parser.add_argument("--json")
    args = parser.parse_args()
    where, rows = device(), []
    for batch in map(int, args.batches.split(",")):
        of = Rows(batch, *((WORDS, WIDE) if not args.small else (4000, 64)), where)
        for name in args.processors.split(";"):
            torch._dynamo.reset()
            rows += run_cases([case(of, name, ways(of, PROCESSORS[name]))], where, args.rounds)
            rows[-1]["added_us"] = rows[-1]["ark"]["median"] - rows[-1]["rivals"][GREEDY]["median"]
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
