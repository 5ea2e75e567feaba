"""How fast are steps of tensor-parallel models?

    python benchmarks/tensor_parallel.py --ranks 4 --json benchmarks/results/h200/tensor_parallel_4.json
    python benchmarks/tensor_parallel.py --cases exchange,decode --layers 8 --modes ark,ark-graph,eager-graph
    python benchmarks/tensor_parallel.py --device cpu --ranks 2 --modes ark,eager    # small shapes, to try the file
    python benchmarks/tensor_parallel.py --ranks 2 --modes ark,ark-graph,eager --small    # on one GPU

A process per GPU. Cases (tensor_parallel_cases.py): `exchange`, 16 layers of a few-row product, all-reduce, residual,
norm, product, with and without the all-reduces, and with weights in the norms, us per layer; `decode`, a step of
Llama-3.1's 8B and 70B; `gemm_rs` and `ag_gemm`, a product before a reduce-scatter and behind an all-gather; `layer`,
forward and backward of a Llama layer, sequence parallel. Ways (`--modes`, tensor_parallel_ways.py) take turns. A time
is that of one call on the slowest rank: GPU time in `ark` and `rivals`, by the clock in `wall_ms`. Before it is timed a
way's results are compared with an fp32 reference on every rank: errors up to twice eager's pass. `plan` has ark's
exchanges and ATen steps. A way that fails, hangs or crashes is in `failed`.

Of more ranks than GPUs, several share each: `ranks_of_a_gpu` in the file, and a line before the rows, say so. Plans
have their share of the SMs as workers, kernels of different processes take turns of some 2 ms (unless MPS runs them at
once), and eager and inductor have Gloo: such a table shows what is right, not what is fast.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

# NVLink multicast stays off, for every contestant.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NVSHMEM_DISABLE_NVLS"] = "1"

import torch
from torch.distributed import TCPStore

from harness import ROOT, print_row, write_json
from workers import MARK, kill_children_at_exit

CASES = "exchange,decode,gemm_rs,ag_gemm,layer"
MODES = "ark,ark-graph,eager-graph,inductor-graph,one-shot-graph,two-shot-graph,inductor-symm,inductor-symm-graph"
SCRIPT = ROOT / "benchmarks/tensor_parallel_rank.py"
AT, END = "AT ", "END"  # lines of rank 0: the way that is built now; all rows are measured
LAST = 20.0  # seconds for processes to end by themselves


def parsed(given: list[str]) -> argparse.Namespace:
    """The options, and as `words` what was given."""
    args = parser().parse_args(given)
    args.words = given
    return args


def parser() -> argparse.ArgumentParser:
    """Of the starter and of its ranks."""
    words = lambda text: [word for word in text.split(",") if word]
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json")
    made.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--cases", type=words, default=words(CASES), help=f"default {CASES}")
    made.add_argument("--modes", type=words, default=words(MODES), help=f"default {MODES}; others: eager, inductor")
    made.add_argument("--layers", type=int, help="of decode's models (default: all)")
    made.add_argument("--models", type=words, default=["8B", "70B"], help="of decode: what their names contain")
    made.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1], help="of decode")
    made.add_argument("--rounds", type=int, default=30)
    made.add_argument("--limit", type=float, default=300, help="seconds that a row may take")
    made.add_argument("--budget-seconds", type=float, default=float("inf"), help="rows that come later are left out")
    made.add_argument("--small", action="store_true", help="small shapes, as on CPUs")
    for name, default in (("rank", 0), ("port", 0), ("start", 0)):
        made.add_argument(f"--{name}", type=int, default=default, help=argparse.SUPPRESS)
    made.add_argument("--skip", default="{}", help=argparse.SUPPRESS)
    return made


def ranks_of_a_gpu(ranks: int, gpus: int) -> int:
    """As few as there is room for; all GPUs have as many, or the last fewer."""
    if gpus < 1:
        raise SystemExit("no GPU: --device cpu")
    return -(-ranks // gpus)


class Ranks:
    """The processes of a run, from one of the entries on. After `lines`, `error` says why they ended, None if well."""

    def __init__(self, args: argparse.Namespace, start: int, skip: dict):
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
        threads = max(1, (os.cpu_count() or 1) // args.ranks)
        environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": str(threads)} | os.environ
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        own = ["--port", str(self.store.port), "--start", str(start), "--skip", json.dumps(skip)]
        own += ["--ranks", str(args.ranks), "--device", args.device]
        self.error, self.heard, self.processes, self.outputs = None, queue.Queue(), [], []
        for rank in range(args.ranks):
            self.outputs.append(tempfile.TemporaryFile("w+"))
            command = [sys.executable, str(SCRIPT), *args.words, *own, "--rank", str(rank)]
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stderr=self.outputs[-1],
                    text=True,
                    start_new_session=True,
                )
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.processes[0].stdout:
            self.heard.put(line.rstrip("\n"))

    def lines(self, limit: float) -> Iterator[str]:
        """What rank 0 prints. All are killed when one has failed, and `limit` seconds after the start or a row."""
        since, ended = time.monotonic(), False
        try:
            while True:
                codes = [process.poll() for process in self.processes]
                try:
                    line = self.heard.get(timeout=0.2)
                    ended = line == END
                    since = time.monotonic() if ended or line.startswith(MARK) else since
                    yield line
                    continue
                except queue.Empty:
                    pass
                if failed := [rank for rank, code in enumerate(codes) if code]:
                    self.error = f"rank {failed[0]} ended with {codes[failed[0]]}: {self._last_words(failed[0])}"
                    return
                if None not in codes:
                    return
                over = LAST if ended else limit
                if time.monotonic() - since > over:
                    self.error = None if ended else f"the row took more than {limit:.0f} s"
                    return
        finally:
            self.kill()

    def _last_words(self, rank: int) -> str:
        self.outputs[rank].seek(0)
        return self.outputs[rank].read()[-600:].strip()

    def kill(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its compilers too
            except ProcessLookupError:
                pass
            process.wait()


def rows_of(args: argparse.Namespace, names: list[tuple[str, str]]) -> Iterator[dict]:
    """Where processes fail while a way is built, they start again without it, at the same row."""
    begin, start, skip = time.monotonic(), 0, {}
    while start < len(names) and time.monotonic() - begin < args.budget_seconds:
        ranks, at, (kind, name) = Ranks(args, start, skip), None, names[start]
        for line in ranks.lines(args.limit):
            if line.startswith(MARK):
                yield json.loads(line[len(MARK) :])
                start, at = start + 1, None
                if time.monotonic() - begin > args.budget_seconds:
                    return
                kind, name = names[min(start, len(names) - 1)]
            else:
                at = line[len(AT) :] if line.startswith(AT) else at
                print(f"{time.monotonic() - begin:7.1f} s  {line}", flush=True)
        if start == len(names):
            continue
        if ranks.error is None:  # the budget is spent
            return
        print(f"{name}, {at}: {ranks.error}", flush=True)
        if at in args.modes and at not in skip.get(kind, {}):
            skip.setdefault(kind, {})[at] = ranks.error
        else:
            yield {"case": name, "unit": "", "ark": None, "rivals": {}, "floor": None, "must": None, "errors": {},
                   "error": ranks.error}  # fmt: skip
            start += 1


def main() -> None:
    from tensor_parallel_cases import entries
    from tensor_parallel_ways import BASES, base_of

    args = parsed(sys.argv[1:])
    small = args.small or args.device == "cpu"
    if unknown := set(args.cases) - set(CASES.split(",")):
        raise SystemExit(f"no cases {sorted(unknown)}; there are {CASES}")
    if unknown := {base_of(mode) for mode in args.modes} - set(BASES):
        raise SystemExit(f"no modes {sorted(unknown)}; there are {BASES}, and each with -graph")
    kill_children_at_exit()
    names = [
        (kind, f"{kind} {sizes}") for kind, _, sizes in entries(args.cases, small, args.layers, args.batch, args.models)
    ]
    each = ranks_of_a_gpu(args.ranks, torch.cuda.device_count()) if args.device == "cuda" else None
    if each and each > 1:
        print(f"{each} ranks share a GPU and take turns there: what is right, not what is fast", flush=True)
    rows = []
    for row in rows_of(args, names):
        rows.append(row)
        print_row(row)
        extra = {"ranks": args.ranks, "device": args.device, "rounds": args.rounds, "multicast": False}
        extra |= {"ranks_of_a_gpu": each} if each else {}
        write_json(args.json, rows, **extra, not_started=[name for _, name in names[len(rows) :]])


if __name__ == "__main__":
    main()
