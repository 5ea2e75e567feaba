"""What does one call of a compiled graph cost the CPU, by inputs and fresh outputs?

    python benchmarks/call_overhead.py --json benchmarks/results/h200/call_overhead.json

Limit: 30 us + 30 ns per input + 1.5 us per fresh output. The callable that ark hands to AOTAutograd is timed by itself
(Dynamo's guards and AOTAutograd's wrappers are not ark's), with the GPU idle enough that no launch has to wait. `parts`
has the whole call of the compiled function beside it, and what Dynamo and AOTAutograd add.
"""

from __future__ import annotations

import argparse
import time

import torch

import ark_torch
import ark_torch.backend
from harness import device, print_row, summary, write_json


def time_calls(call, inputs: list[torch.Tensor], rounds: int) -> list[float]:
    """Microseconds per call; `call` takes the inputs as one list."""
    samples = []
    for index in range(rounds + 20):
        boxed = list(inputs)
        begin = time.perf_counter_ns()
        outputs = call(boxed)
        samples.append((time.perf_counter_ns() - begin) / 1e3)
        del outputs
        if inputs[0].is_cuda and index % 16 == 0:
            torch.cuda.synchronize()
    return samples[20:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=400)
    args = parser.parse_args()
    where, rows = device(), []
    for num_inputs, num_outputs in [(1, 1), (100, 1), (400, 1), (100, 100), (400, 600)]:
        callables = []

        def body(*tensors, count=num_outputs):
            # sums of two inputs each, all different and all one program: compiling is not what is measured
            n = len(tensors)
            sums = tuple(tensors[i % n] + tensors[(i + 1 + i // n) % n] for i in range(count - 1))
            return sums + (sum(tensors),)

        inputs = [torch.randn(8, device=where) for _ in range(num_inputs)]
        with ark_torch.backend.record_callables(callables), torch.no_grad():
            torch._dynamo.reset()
            compiled = torch.compile(body, backend="ark")
            compiled(*inputs)
            whole = summary(time_calls(lambda boxed, call=compiled: call(*boxed), inputs, args.rounds))
        ark = summary(time_calls(callables[0], inputs, args.rounds))
        limit = 30 + 0.03 * num_inputs + 1.5 * num_outputs
        row = {
            "case": f"{num_inputs} inputs, {num_outputs} fresh outputs ({where})",
            "unit": "us",
            "better": "lower",
            "ark": ark,
            "rivals": {},
            "floor": None,
            "must": limit if where == "cuda" else None,
            "errors": {},
            "parts": {"whole_call": whole["median"], "dynamo_and_aot_autograd": whole["median"] - ark["median"]},
        }
        print_row(row)
        rows.append(row)
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
