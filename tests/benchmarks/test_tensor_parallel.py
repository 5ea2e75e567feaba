"""The benchmark of tensor-parallel steps, at toy sizes on CPUs; a way that fails, crashes or hangs costs itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import tensor_parallel
from tensor_parallel_cases import Draw, entries
from tensor_parallel_rank import Row, largest
from tensor_parallel_together import Together
from tensor_parallel_ways import without_rivals_of_gpus
from tests.conftest import has_extension
from tests.support.prepared_python import prepared_python

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *arguments: str, **variables: str) -> dict:
    file = tmp_path / "tensor_parallel.json"
    command = [prepared_python(), "benchmarks/tensor_parallel.py", "--device", "cpu", "--ranks", "2", "--rounds", "2"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "ARK_VERIFY": "once"} | variables
    done = subprocess.run(
        [*command, "--limit", "100", "--json", str(file), *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(file.read_text())


def test_every_case(tmp_path):
    found = run(tmp_path, "--modes", "ark,eager", "--batch", "1,3")
    assert found["ranks"] == 2 and found["multicast"] is False and found["not_started"] == []
    exchanges = {row["case"].split(" cache")[0].rstrip(","): row["plan"]["exchanges"] for row in found["rows"]}
    assert exchanges == {
        "exchange: 2 layers, 1 x 64": 2,
        "exchange: 2 layers, 1 x 64, without the all-reduces": 0,
        "exchange: 2 layers, 8 x 64": 2,
        "exchange: 2 layers, 8 x 64, without the all-reduces": 0,
        "exchange: 2 layers, 8 x 64, norms with weights": 2,
        "decode: tiny Llama, 2 layers, batch 1": 5,  # two all-reduces of a layer, the logits
        "decode: tiny Llama, 2 layers, batch 3": 5,
        "gemm_rs: 64 x 64 x 128": 1,
        "ag_gemm: 64 x 64 x 128": 1,
        "layer: tiny Llama, 64 tokens, forward + backward, sequence parallel": 8,
    }
    for row in found["rows"]:
        assert row["failed"] == {} and row["plan"]["aten_steps"] == 0 and set(row["errors"]) == {"ark", "eager"}
        assert row["ark"]["n"] == row["rivals"]["eager"]["n"] == 2 and row["ark"]["median"] > 0
        assert set(row["wall_ms"]) == set(row["first_call_s"]) == {"ark", "eager"}
        assert row["unit"] == ("us per layer" if row["case"].startswith("exchange") else "ms")


def test_a_rival_that_cannot_compile_is_noted(tmp_path):
    variables = {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    (row,) = run(tmp_path, "--cases", "decode", "--modes", "ark,inductor", **variables)["rows"]
    assert set(row["failed"]) == {"inductor"} and row["failed"]["inductor"].startswith("rank 0: ")
    assert row["ark"]["median"] > 0 and row["rivals"] == {}


def test_ranks_agree_on_the_error_of_one():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    found = {}

    def rank(number: int) -> None:
        together = Together(store.port, number, 2, 30.0)
        found[number] = [together.attempt(lambda: 5 // number), together.attempt(lambda: number)]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (nothing, error), (five, same) = found[0][0], found[1][0]
    assert nothing is None and five == 5 and error == same and error.startswith("rank 0: ZeroDivisionError: ")
    assert [found[r][1] for r in range(2)] == [(0, ""), (1, "")]


FAKE = """
import json, os, sys, time
sys.path.insert(0, {folder!r})
from tensor_parallel import AT, END, parser
from workers import emit
args = parser().parse_args()
skip = json.loads(args.skip).get("gemm_rs", {{}})
for number in range(args.start, 2):
    for way in ("ark", "eager"):
        if way in skip:
            continue
        if args.rank == 0:
            print(AT + way, flush=True)
        if number == 1 and way == "ark" and args.rank == 1:
            time.sleep(1)
            print("lost", file=sys.stderr, flush=True)
            os._exit(3)
        if number == 1:
            time.sleep(200)
    if args.rank == 0:
        emit({{"case": number, "failed": skip}})
    else:
        time.sleep(0.5)
print(END, flush=True)
"""


def test_a_crash_and_a_hang_are_left_out_one_by_one(tmp_path, monkeypatch):
    """Row 0 is there at once; row 1 without `ark`, which crashes a rank, then without `eager`, which hangs."""
    script = tmp_path / "rank.py"
    script.write_text(FAKE.format(folder=str(ROOT / "benchmarks")))
    monkeypatch.setattr(tensor_parallel, "SCRIPT", script)
    monkeypatch.setattr(sys, "executable", prepared_python())
    args = tensor_parallel.parsed(["--device", "cpu", "--ranks", "2", "--modes", "ark,eager", "--limit", "15"])
    rows = list(tensor_parallel.rows_of(args, [("gemm_rs", "a"), ("gemm_rs", "b")]))
    assert rows[0] == {"case": 0, "failed": {}} and rows[1]["case"] == 1 and len(rows) == 2
    assert rows[1]["failed"] == {"ark": "rank 1 ended with 3: lost", "eager": "the row took more than 15 s"}


ONE_ROW = """
import os, sys
sys.path.insert(0, {folder!r})
from tensor_parallel import END, parser
from workers import emit
args = parser().parse_args()
if args.rank == 0:
    nothing = dict.fromkeys(("ark", "floor", "must"))
    emit({{"case": args.cases[0], "unit": "ms", "rivals": {{}}, "errors": {{}}, **nothing}})
    print(END, flush=True)
"""


@pytest.mark.parametrize(("gpus", "each"), [(1, 2), (2, 1)])
def test_ranks_that_share_a_gpu_are_told_of(tmp_path, monkeypatch, capsys, gpus, each):
    """As on a machine with so many."""
    script, file = tmp_path / "rank.py", tmp_path / "rows.json"
    script.write_text(ONE_ROW.format(folder=str(ROOT / "benchmarks")))
    monkeypatch.setattr(tensor_parallel, "SCRIPT", script)
    monkeypatch.setattr(sys, "executable", prepared_python())
    monkeypatch.setattr(tensor_parallel, "kill_children_at_exit", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    words = ["--device", "cuda", "--ranks", "2", "--cases", "gemm_rs", "--small", "--limit", "60"]
    monkeypatch.setattr(sys, "argv", ["tensor_parallel.py", *words, "--json", str(file)])
    tensor_parallel.main()
    assert json.loads(file.read_text())["ranks_of_a_gpu"] == each
    assert ("2 ranks share a GPU" in capsys.readouterr().out) == (each == 2)


def test_what_ranks_that_share_a_gpu_run():
    """NCCL takes no two ranks of a GPU, and no graph holds Gloo's calls."""
    share = tensor_parallel.ranks_of_a_gpu
    assert [share(2, 1), share(2, 2), share(4, 2), share(3, 2), share(2, 8)] == [2, 1, 2, 2, 1]
    ways = without_rivals_of_gpus([*tensor_parallel.MODES.split(","), "eager", "inductor"])
    assert ways == ["ark", "ark-graph", "eager", "inductor"]


def test_a_wrong_result_is_never_timed(monkeypatch):
    """Errors up to twice eager's pass, on every rank; NaN does not."""
    errors = {"eager": [0.01, 0.02], "ark": [0.019, 0.039], "inductor": [0.019, 0.041], "one-shot": [float("nan"), 0.0]}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    row = Row(None, Together(store.port, 0, 1, 30.0), {}, torch.float32, {})
    monkeypatch.setattr(row, "built", lambda way, expected: (lambda: way, errors[way]))
    for way in errors:
        row.add(way, [])
    assert str(largest((0.1, float("nan"), 0.2))) == "nan" and largest((0.1, 0.3, 0.2)) == 0.3
    assert set(row.calls) == {"eager", "ark"} and set(row.failed) == {"inductor", "one-shot"}
    assert row.failed["inductor"].startswith("wrong: relative errors [0.019, 0.041]")


@pytest.mark.parametrize("kind", ["decode", "layer"])
def test_the_reference_is_of_all_ranks(kind):
    """Every rank computes the same: of decode all logits, of a layer its own rows and gradients."""
    ((_, make, sizes),) = entries([kind], True, None, [2], [])
    of = lambda rank: make(Draw("test", torch.device("cpu"), torch.float32), rank, 2, *sizes).reference()
    first, second = of(0), of(1)
    if kind == "decode":
        assert torch.equal(first[0], second[0]) and first[0].shape == (4, 128)
    else:
        assert [a.shape for a in first] == [b.shape for b in second] and len(first) == 6
        assert not any(torch.equal(a, b) for a, b in zip(first, second))
