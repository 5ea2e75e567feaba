"""How long does a training step of Megatron-Core take on the process group of ark, and on NCCL?

    python benchmarks/megatron.py --script megatron_step.py --json benchmarks/results/h200/megatron_4.json

`--script` trains one of Megatron-Core's GPT models for some steps and prints a JSON line with `med_ms` (the median step
of the slowest rank, milliseconds) and `loss` (the first losses); it takes --model, --tp, --mbs, --seq, --steps,
--warmup and --backend. The package `megatron` has to be importable. Backends take turns; the losses of all runs of a
case must agree. Every rank has its share of the CPU's cores to itself: these steps are bound by the CPU, and ranks that
move from core to core scatter by more than the backends differ.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys

import torch

from harness import ROOT, print_row, summary, write_json

BACKENDS = ("nccl", "ark")
LOSS_TOLERANCE = 5e-3  # relative; equal weights and batches, sums of bf16 in another order


AS_RANK = "--as-rank"


def run_as_rank(script: str, arguments: list[str]) -> None:
    """What torchrun starts: the script on this rank's cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // int(os.environ["LOCAL_WORLD_SIZE"]))
    first = int(os.environ["LOCAL_RANK"]) * share
    os.sched_setaffinity(0, cores[first : first + share] or cores)
    sys.argv = [script, *arguments]
    here = os.path.realpath(os.path.dirname(__file__))  # where this file would be taken for the package `megatron`
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    runpy.run_path(script, run_name="__main__")


def cases_of(gpus: int) -> dict[str, list[str]]:
    return {
        f"Megatron-Core GPT-3 XL, tensor parallel {gpus}": f"--model gpt3-xl --tp {gpus} --mbs 1 --seq 2048".split(),
        f"Megatron-Core GPT-2 large, data parallel {gpus}": "--model gpt2-large --tp 1 --mbs 4 --seq 384".split(),
    }


def run(script: str, gpus: int, backend: str, args: list[str]) -> dict:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    command = [*launcher, __file__, AS_RANK, script, *args]
    # NVLink multicast stays off, for every backend.
    quiet = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | quiet | {"PYTHONPATH": paths}
    done = subprocess.run(
        [*command, "--backend", backend], capture_output=True, text=True, timeout=240, env=environment
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{") and "med_ms" in line]
    if done.returncode != 0 or not found:
        raise RuntimeError(f"{' '.join(command)} --backend {backend} returned {done.returncode}: {done.stderr[-3000:]}")
    return found[0]


def row_of(case: str, results: dict[str, list[dict]]) -> dict:
    expected = results["nccl"][0]["loss"]
    for result in (r for found in results.values() for r in found):
        for mine, theirs in zip(result["loss"], expected):
            if not abs(mine - theirs) <= LOSS_TOLERANCE * abs(theirs):
                raise AssertionError(f"{case}: losses differ: {result['loss']} and {expected}")
    times = {backend: summary([r["med_ms"] for r in found]) for backend, found in results.items()}
    row = {"case": case, "unit": "ms", "better": "lower", "ark": times["ark"], "rivals": {"nccl": times["nccl"]}}
    return row | {"floor": None, "must": times["nccl"]["median"], "errors": {}, "runs": results}


def main() -> None:
    if sys.argv[1:2] == [AS_RANK]:
        return run_as_rank(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--script", required=True)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    rows = []
    for case, options in cases_of(args.gpus).items():
        if args.only not in case:
            continue
        options = [*options, "--steps", str(args.steps), "--warmup", str(args.warmup)]
        results: dict[str, list[dict]] = {backend: [] for backend in BACKENDS}
        rows.append({})
        for repeat in range(args.repeat):
            for backend in BACKENDS if repeat % 2 == 0 else reversed(BACKENDS):
                results[backend].append(run(args.script, args.gpus, backend, options))
                print(f"{case}, {backend}: {results[backend][-1]['med_ms']} ms", flush=True)
            rows[-1] = row_of(case, results)
            write_json(args.json, rows, multicast=False)
        print_row(rows[-1])


if __name__ == "__main__":
    main()
