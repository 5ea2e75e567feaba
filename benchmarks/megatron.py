"""How long does a training step of Megatron-Core take on the process group of ark, and on NCCL?

    python benchmarks/megatron.py --script megatron_step.py --json benchmarks/results/h200/megatron_4.json

`--script` trains one of Megatron-Core's GPT models for some steps, each between two timing events, and prints a JSON
line with `loss` (the losses of the steps); it takes --model, --tp, --mbs, --seq, --steps, --warmup and --backend. The
package `megatron` has to be importable. These steps are bound by the CPU, and two launches of the same program differ
by more than the backends do: so both backends are launched together, on the same GPUs and cores, and take turns, a step
each (turns.py). Their losses must agree. Every rank has its share of the CPU's cores to itself.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from harness import ROOT, print_row, summary, write_json
from turns import Table, take_turns

BACKENDS = ("nccl", "ark")
LOSS_TOLERANCE = 5e-3  # relative; equal weights and batches, sums of bf16 in another order
LIMIT = 400  # seconds that one launch may take


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
    with take_turns(BACKENDS, script):
        runpy.run_path(script, run_name="__main__")


def cases_of(gpus: int) -> dict[str, list[str]]:
    return {
        f"Megatron-Core GPT-3 XL, tensor parallel {gpus}": f"--model gpt3-xl --tp {gpus} --mbs 1 --seq 2048".split(),
        f"Megatron-Core GPT-2 large, data parallel {gpus}": "--model gpt2-large --tp 1 --mbs 4 --seq 384".split(),
    }


def start(script: str, gpus: int, backend: str, options: list[str], table: Table) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    command = [*launcher, __file__, AS_RANK, script, *options, "--backend", backend]
    # NVLink multicast stays off, for every backend.
    quiet = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | quiet | {"PYTHONPATH": paths} | table.environment(backend)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def losses_of(output: str) -> list[float]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{") and "loss" in line]
    if not found:
        raise RuntimeError(f"no losses in: {output[-3000:]}")
    return found[0]["loss"]


def run(script: str, gpus: int, options: list[str]) -> dict[str, dict]:
    """Both backends once, in turns; what each measured: `ms` (of every step, the slowest rank's) and `loss`."""
    table = Table()
    running = {backend: start(script, gpus, backend, options, table) for backend in BACKENDS}
    with ThreadPoolExecutor() as readers:  # both outputs at once: a full pipe would hold its program
        read = {backend: readers.submit(process.communicate, timeout=LIMIT) for backend, process in running.items()}
        try:
            outputs = {backend: output.result()[0] for backend, output in read.items()}
        finally:
            for process in running.values():
                process.terminate()  # torchrun ends its ranks
    for backend, process in running.items():
        if process.returncode != 0:
            raise RuntimeError(f"{backend} returned {process.returncode}: {outputs[backend][-3000:]}")
    return {b: {"ms": table.times(b, gpus), "loss": losses_of(outputs[b])} for b in BACKENDS}


def row_of(case: str, launches: list[dict[str, dict]], warmup: int) -> dict:
    expected = launches[0]["nccl"]["loss"]
    for result in (launch[backend] for launch in launches for backend in BACKENDS):
        for mine, theirs in zip(result["loss"], expected):
            if not abs(mine - theirs) <= LOSS_TOLERANCE * abs(theirs):
                raise AssertionError(f"{case}: losses differ: {result['loss']} and {expected}")
    steps = {backend: [ms for launch in launches for ms in launch[backend]["ms"][warmup:]] for backend in BACKENDS}
    times = {backend: summary(of_backend) for backend, of_backend in steps.items()}
    row = {"case": case, "unit": "ms", "better": "lower", "ark": times["ark"], "rivals": {"nccl": times["nccl"]}}
    ratios = [mine / theirs for mine, theirs in zip(steps["ark"], steps["nccl"])]
    rounded = [{b: [round(ms, 2) for ms in launch[b]["ms"]] for b in BACKENDS} for launch in launches]
    extra = {"ratio_of_neighbours": summary(ratios), "steps": rounded}
    return row | {"floor": None, "must": times["nccl"]["median"], "errors": {}} | extra


def main() -> None:
    if sys.argv[1:2] == [AS_RANK]:
        return run_as_rank(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--script", required=True)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--repeat", type=int, default=2, help="launches of each case")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    rows = []
    for case, options in cases_of(args.gpus).items():
        if args.only not in case:
            continue
        options = [*options, "--steps", str(args.steps), "--warmup", str(args.warmup)]
        launches: list[dict[str, dict]] = []
        rows.append({})
        for _ in range(args.repeat):
            launches.append(run(args.script, args.gpus, options))
            rows[-1] = row_of(case, launches, args.warmup)
            write_json(args.json, rows, multicast=False)
        print_row(rows[-1])


if __name__ == "__main__":
    main()
