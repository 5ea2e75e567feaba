"""What do communication primitives cost inside a running kernel? A signal, an all-reduce, send requests.

    python benchmarks/device_side.py --json benchmarks/results/h200/collectives_device_side.json

Runs the C++ program tests/comm/test_collective_device (built by CMake, see csrc/CMakeLists.txt), which checks every
result and prints one JSON object a line; `--repeat` times for each number of GPUs. Send requests must reach 0.88 (8
CTAs) and 0.94 (16 CTAs) of the rate of 1 MB requests from 32 CTAs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict
from pathlib import Path

import torch

from harness import ROOT, print_row, summary, write_json

MUST = {
    ("signal, one way", 2): 1.0,
    ("all-reduce inside a running kernel", 2): 1.1,
    ("all-reduce inside a running kernel", 4): 1.4,
    ("all-reduce inside a running kernel", 8): 1.7,
}
OF_FULL_RATE = {8: 0.88, 16: 0.94}


def run(program: Path, gpus: int) -> list[dict]:
    done = subprocess.run([str(program), str(gpus)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{program} {gpus} returned {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def case_of(line: dict, gpus: int) -> str:
    """All that says what was measured, in a fixed order."""
    parts = [line["case"]] + [f"{line[key]} {key}" for key in ("ctas", "bytes", "lanes") if key in line]
    return ", ".join([*parts, f"{gpus} GPUs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gpus", type=int, nargs="*", help="default: 2 and all")
    parser.add_argument("--program", type=Path, default=ROOT / "build/cpp/test_collective_device")
    args = parser.parse_args()
    worlds = args.gpus or sorted({2, torch.cuda.device_count()})
    lines: dict[str, dict] = {}
    samples: dict[str, list[float]] = defaultdict(list)
    for gpus in worlds:
        for _ in range(args.repeat):
            for line in run(args.program, gpus):
                case = case_of(line, gpus)
                lines[case] = line | {"gpus": gpus}
                samples[case].append(line["us"] if "us" in line else line["GB/s"])
    full = {gpus: max(v for c, s in samples.items() for v in s if "GB/s" in lines[c] and lines[c]["gpus"] == gpus
                      and lines[c]["bytes"] == 1 << 20) for gpus in worlds}  # fmt: skip
    rows = []
    for case, line in lines.items():
        rate, must = "GB/s" in line, None
        if rate and line["bytes"] == 8192 and line["ctas"] in OF_FULL_RATE:
            must = OF_FULL_RATE[line["ctas"]] * full[line["gpus"]]
        elif not rate and line.get("bytes", 8192) == 8192:
            must = MUST.get((line["case"], line["gpus"]))
        row = {"case": case, "unit": "GB/s" if rate else "us", "better": "higher" if rate else "lower"}
        row |= {"ark": summary(samples[case]), "rivals": {}, "floor": None, "must": must, "errors": {}}
        rows.append(row)
        print_row(row)
    write_json(args.json, rows, multicast=False)


if __name__ == "__main__":
    main()
