"""The whole operator database: python -m tests.support.opdb_sweep [--samples N] [--backward] [--first I --every K]
[--json FILE]."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.support.opdb import run


def commit() -> str:
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "rev-parse", "-q", "--verify", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--reference", action="store_true", help="the reference evaluator instead of the extension")
    args = parser.parse_args()
    if args.reference:
        import ark_torch.segment
        from tests.support.reference_eval import ReferenceGraph

        ark_torch.segment.make_executable = lambda *arguments: ReferenceGraph(*arguments)
    logging.getLogger("ark").setLevel(logging.CRITICAL)
    measured = commit()
    begin, kinds, causes, bad = time.time(), Counter(), Counter(), []
    for outcome in run(args.samples, args.backward, args.first, args.every):
        kinds[outcome.kind] += 1
        causes.update(outcome.causes.keys())
        if outcome.kind in ("wrong", "crash"):
            bad.append(outcome)
            print(f"{outcome.kind}: {outcome.op}: {outcome.detail}", flush=True)
    print(
        f"{sum(kinds.values())} samples in {time.time() - begin:.0f} s: "
        + ", ".join(f"{k} {n}" for k, n in kinds.most_common())
    )
    print("through ATen:")
    for cause, count in causes.most_common(60):
        print(f"  {count:4d}  {cause}")
    if args.json:
        with open(args.json, "w") as file:
            document = {
                "commit": measured,
                "torch": torch.__version__,
                "command": "python -m tests.support.opdb_sweep " + " ".join(sys.argv[1:]),
                "samples": sum(kinds.values()),
                "kinds": kinds,
                "causes": dict(causes.most_common()),
                "bad": [vars(b) for b in bad],
            }
            json.dump(document, file, indent=1)
            file.write("\n")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
