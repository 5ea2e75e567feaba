"""PyTorch's distributed suite with 2 and with 8 ranks, for CPU tensors and on the GPUs there are:

    python -m tests.support.distributed_suite_runs [--worlds 2 8] [--devices cpu cuda] [-k EXPRESSION] [--logs FOLDER]

Each of these runs is a pytest (tests/support/distributed_suite.py) with as many tests at a time as the machine bears;
the runs
on the CPU go beside those on GPUs. Prints a line per run, what failed, and why tests were skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRINTED_LINES = 60


def gpus() -> int:
    """Counted without starting CUDA here."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def workers(world: int, device: str, count: int) -> int:
    """Tests at a time. Two of them share a GPU: most of a test is the start of its processes."""
    cores = os.cpu_count() or 1
    if device == "cuda":
        return max(1, min(2 * (count // world), cores // world))
    return max(1, min(16, cores // (world + 2)))


def run(world: int, device: str, arguments: argparse.Namespace) -> None:
    at_a_time = workers(world, device, arguments.gpus)
    log = Path(arguments.logs) / f"{device}_{world}.txt"
    own = {"WORLD_SIZE": str(world), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    own |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    if device == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "pytest", "-q", "-rsfE", "--durations=10", "--tb=short"]
    command += ["-n", str(at_a_time), "tests/support/distributed_suite.py"]
    if arguments.k:
        command += ["-k", arguments.k]
    begin = time.monotonic()
    with open(log, "w") as file:
        subprocess.run(command, env=os.environ | own, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    print(summary(f"{world} ranks, {device}, {at_a_time} at a time", log, time.monotonic() - begin), flush=True)


def summary(title: str, log: Path, seconds: float) -> str:
    lines = log.read_text(errors="replace").splitlines()
    reasons: dict[str, int] = {}
    for line in lines:
        match = re.match(r"SKIPPED \[(\d+)\] [^ ]+ (.*)", line)
        if match:
            reasons[match[2]] = reasons.get(match[2], 0) + int(match[1])
    skipped = [f"  {count:4} skipped: {reason}" for reason, count in sorted(reasons.items(), key=lambda x: -x[1])]
    failed = [f"  {line[:400]}" for line in lines if line.startswith(("FAILED", "ERROR"))]
    outcome = lines[-1].strip("= ") if lines else "no output"
    return "\n".join([f"{title}: {outcome} ({seconds:.0f} s, {log})", *failed[:PRINTED_LINES], *skipped])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("-k", default="")
    parser.add_argument("--logs", default=tempfile.mkdtemp(prefix="ark-suite-logs-"))
    arguments = parser.parse_args()
    arguments.gpus = gpus()
    worlds = {"cpu": arguments.worlds, "cuda": [w for w in arguments.worlds if w <= arguments.gpus]}
    lanes = [
        threading.Thread(target=lambda device=device: [run(world, device, arguments) for world in worlds[device]])
        for device in arguments.devices
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


if __name__ == "__main__":
    main()
