"""How long does ark itself take to compile? Cold, and from a warm cache in a new process; Dynamo and AOTAutograd apart.

`parts` splits the first call, in seconds: total; dynamo (tracing and guards); backend (AOTAutograd, decompositions and
ark's share of the forward); ark (its lowering and the stages parse, bind, plan, source, compile, load; of a training
step the backward too, which is compiled after `backend`). What is left is the first run. `llama` is its decode step,
`prefill` 2048 tokens of the same model.

python benchmarks/compile_time.py --json benchmarks/results/h200/compile_time.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from harness import print_row, summary, write_json

CHILD = """
import json, time, torch, sys
sys.path.insert(0, {here!r})
from models import *
import ark_torch
model_name, device = {model!r}, "cuda" if torch.cuda.is_available() else "cpu"
if model_name in ("llama", "prefill"):
    model = llama(device, num_hidden_layers={layers})
    tokens, keys = (2048, 2304) if model_name == "prefill" else (1, 1024)
    cache = static_cache(model, keys)
    call = torch.compile(lambda t: model(t, past_key_values=cache).logits, backend="ark")
    with torch.no_grad():
        begin = time.perf_counter(); call(torch.zeros(1, tokens, dtype=torch.long, device=device))
else:
    model = bert_large(device, num_hidden_layers={layers})
    call = torch.compile(model, backend="ark")
    begin = time.perf_counter()
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = call(**bert_batch(model, 2, 384)).loss
    loss.backward()
if device == "cuda": torch.cuda.synchronize()
print("RESULT" + json.dumps({{"total": time.perf_counter() - begin, **ark_torch.compile_times()}}))
"""


def child(model: str, layers: int, cache: str) -> dict:
    here = os.path.dirname(os.path.abspath(__file__))
    code = CHILD.format(here=here, model=model, layers=layers)
    env = os.environ | {"ARK_CACHE_DIR": cache}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise RuntimeError(run.stderr[-2000:])
    return json.loads(lines[0][6:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="llama:16,prefill:16,bert:24", help="model:layers, ...")
    args = parser.parse_args()
    rows = []
    for model, layers in (item.split(":") for item in args.models.split(",")):
        runs = {"cold": [], "warm": []}
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as cache:
                runs["cold"].append(child(model, int(layers), cache))
                runs["warm"].append(child(model, int(layers), cache))
        for kind, must in (("cold", 10.0), ("warm", 1.0)):
            row = {
                "case": f"{model}, {layers} layers, {kind} cache: ark's own share",
                "unit": "s",
                "better": "lower",
                "ark": summary([run["ark"] for run in runs[kind]]),
                "rivals": {},
                "floor": None,
                "must": must if model != "bert" else None,
                "errors": {},
                "parts": runs[kind][0],
            }
            print_row(row)
            rows.append(row)
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
