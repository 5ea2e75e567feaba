"""What can go wrong on a GPU: no NVRTC, a cache folder that cannot be used, no memory, a producer that never signals. A
right result or a clear error, and the next call works. (Odd arguments: tests/frontend/test_bad_input.py.)"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.graph_json import to_text
from ark_torch.records import recording
from tests.support.damaged_plans import some_inputs, without_one_arrival, without_one_item
from tests.support.graph_builder import add_relu, mlp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).resolve().parent.parent.parent

CHILD = """
import logging, sys, torch, ark_torch
logging.basicConfig()
strict = len(sys.argv) > 1
x = torch.randn(300, 64, device="cuda")
call = torch.compile(lambda x: torch.relu(x @ x.t()).sum(0) * 2, backend="ark", options={"strict": strict})
for _ in range(2):
    torch.testing.assert_close(call(x), torch.relu(x @ x.t()).sum(0) * 2, rtol=1e-4, atol=1e-3)
torch.cuda.synchronize()
report = ark_torch.report()
stats = [s.executable.stats() for r in ark_torch.records.REGISTRY.graphs for s in r.segments]
print("OK", sum(s["compiles"] for s in stats), sum(s["disk_hits"] for s in stats), dict(report.fallbacks))
"""


def start(*args: str, **env: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | env
    command = [sys.executable, "-c", CHILD, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(child: subprocess.Popen) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=100)
    return child.returncode, out.strip().splitlines()[-1] if out.strip() else "", err


@pytest.fixture(scope="module")
def children(tmp_path_factory) -> dict:
    """Started together, as each of them spends its time importing torch."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "file").write_text("not a folder")
    (folder / "damaged").mkdir()
    cache, nowhere = str(folder / "cache"), str(folder / "nothing")
    return {
        "folder": folder,
        "no nvrtc": start(ARK_NVRTC=nowhere, ARK_CACHE_DIR=cache),
        "no nvrtc, strict": start("strict", ARK_NVRTC=nowhere, ARK_CACHE_DIR=cache),
        "file as folder": start(ARK_CACHE_DIR=str(folder / "file")),
        "folder below a file": start(ARK_CACHE_DIR=str(folder / "file" / "below")),
        "first of the damaged": start(ARK_CACHE_DIR=str(folder / "damaged")),
    }


def test_without_nvrtc_aten_takes_over(children):
    code, line, errors = finish(children["no nvrtc"])
    assert code == 0 and line.startswith("OK 0 0") and "no usable NVRTC" in line, (line, errors)
    assert errors.count("no usable NVRTC") == 1, "said once"


def test_without_nvrtc_strict_is_an_error(children):
    code, _, errors = finish(children["no nvrtc, strict"])
    assert code == 1 and "no usable NVRTC in ARK_NVRTC=" in errors


@pytest.mark.parametrize("case", ["file as folder", "folder below a file"])
def test_a_cache_folder_that_cannot_be_written(children, case):
    code, line, errors = finish(children[case])
    assert code == 0 and line.startswith("OK 1 0"), (line, errors)
    assert errors.count("cannot write to") == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "other bytes"])
def test_a_damaged_kernel_is_compiled_again(children, damage):
    folder = children["folder"] / "damaged"
    if not list(folder.glob("*.cubin")):
        code, line, errors = finish(children["first of the damaged"])
        assert code == 0 and line.startswith("OK 1 0"), (line, errors)
    (kernel,) = folder.glob("*.cubin")
    data = kernel.read_bytes()
    middle = len(data) // 2
    kernel.write_bytes({"empty": b"", "cut": data[:middle], "other bytes": data[:-9] + b"123456789"}[damage])
    code, line, errors = finish(start(ARK_CACHE_DIR=str(folder)))
    assert code == 0 and line.startswith("OK 1 0"), (line, errors)
    assert "damaged kernel" in errors, errors
    code, line, errors = finish(start(ARK_CACHE_DIR=str(folder)))
    assert code == 0 and line.startswith("OK 0 1") and not errors.count("damaged"), (line, errors)


@pytest.fixture
def little_memory():
    """3 GiB for this process."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((3 << 30) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("what", ["output", "arena"])
def test_out_of_memory(little_memory, what):
    torch._dynamo.reset()

    def body(x):
        if what == "output":
            return x.repeat(8, 1) * 2
        return ((x @ x.t()) @ x).sum()  # the product between is never returned

    call = torch.compile(body, backend=ark, dynamic=True)
    small, large = (
        torch.randn(300, 64, device="cuda"),
        torch.randn(60000, 64 if what == "arena" else 4096, device="cuda"),
    )
    expected = body(small)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(small), expected, rtol=1e-3, atol=1e-1)
            with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
                call(large)
    del large
    torch.testing.assert_close(call(small), expected, rtol=1e-3, atol=1e-1)


def small_graphs() -> dict[str, str]:
    """Graphs as JSON: a product of products, and those of a small Llama's decode step and of BERT's training step."""
    import transformers

    from tests.gpu.test_models import bert, bert_batch, small_llama

    found = {"mlp": mlp(300, 512, torch.bfloat16)}
    torch._dynamo.reset()
    model = small_llama(torch.bfloat16)
    cache = transformers.StaticCache(config=model.config, max_cache_len=256)
    with torch.no_grad(), recording() as records:
        call = torch.compile(model, backend=ark)
        for length in (5, 1):
            call(torch.ones(1, length, dtype=torch.long, device="cuda"), past_key_values=cache)
    found["decode"] = to_text(records[-1].segments[0].lowered.graph)
    with recording() as records, torch.autocast("cuda", dtype=torch.bfloat16):
        torch.compile(bert(0.0, layers=1), backend=ark)(**bert_batch(2, 128)).loss.backward()
    for record in records:
        for i, segment in enumerate(record.segments):
            found[f"{record.kind} {i}"] = to_text(segment.lowered.graph)
    return found


@pytest.mark.timeout(300)  # compiles four kernels, then some 200 deadlines
def test_every_producer_that_never_signals_is_an_error():
    """Each arrival that is waited for, and items that make them (what reads words that carry their own flag waits for
    those), removed in turn: a deadline fires and says where, outputs are NaN, and a sound plan runs as before."""
    from ark_torch import _C

    tried = {}
    for name, text in small_graphs().items():
        if json.loads(text)["symbols"]:
            continue
        healthy = _C.CompiledGraph(text, "cuda", 0, {})
        expected = healthy(some_inputs(text, "cuda"))
        torch.cuda.synchronize()
        healthy.poll()
        plan = healthy.plan_json([])
        arrivals, items = list(without_one_arrival(plan)), list(without_one_item(plan, 20))
        tried[name] = arrivals[:: max(1, len(arrivals) // 40)] + items
        for op, damaged in tried[name]:
            graph = _C.CompiledGraph(text, "cuda", 0, {"plan": damaged, "deadline_ms": 5})
            inputs = some_inputs(text, "cuda")
            outputs = graph(inputs)
            torch.cuda.synchronize()
            with pytest.raises(_C.DeviceError, match=r"deadline of 5 ms: .*worker \d+, op .*expected \d+"):
                graph.poll()
            own = {x.data_ptr() for x in inputs}
            fresh = [t for t in outputs if t.is_floating_point() and t.data_ptr() not in own]
            assert not fresh or any(t.isnan().all() for t in fresh), (name, op)
        again = healthy(some_inputs(text, "cuda"))
        torch.cuda.synchronize()
        healthy.poll()
        for before, after in zip(expected, again):
            assert torch.equal(before.nan_to_num(), after.nan_to_num()), name
    missing = [name for name in ("mlp", "decode", "forward 0", "backward 0") if not tried.get(name)]
    assert not missing, {name: len(plans) for name, plans in tried.items()}  # others may be one op
    print({name: len(plans) for name, plans in tried.items()})


def test_wrong_tensors_are_refused_and_the_next_call_works():
    from ark_torch import _C

    graph = _C.CompiledGraph(add_relu([64, 8]), "cuda", 0, {})
    a = torch.randn(64, 8, device="cuda")
    for bad in (a.cpu(), a.bfloat16(), a[:63], a.t(), 3, None):
        with pytest.raises(ValueError, match="input 1.*expected.*got"):
            graph([a, bad])
        torch.testing.assert_close(graph([a, a])[0], torch.relu(a + a))
    with pytest.raises(ValueError, match="expected a list of at least 2 inputs, got 1"):
        graph([a])


BAD_INDICES = {
    "rows": (lambda x, i: x[i], [0, 4], 4),
    "rows, before the first": (lambda x, i: (x * 2)[i], [0, -5], 4),
    "two of one register": (lambda x, i: x[i, i], [3, 1], 3),
    "counting": (lambda x, i: torch.arange(4, device="cuda")[i], [0, -5], 4),
    "summed": (lambda x, i: x[i].sum(1), [1, 5], 4),
    "multiplied": (lambda x, i: x[i] @ x.t(), [1, 5], 4),
    "gather": (lambda x, i: x.gather(0, i[:, None]), [0, -1], 4),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), [0, 4], 4),
    "written": (lambda x, i: x.index_put_((i,), torch.ones(2, 3, device="cuda")), [1, -5], 4),
    "written at two": (lambda x, i: x.index_put_((i, i), torch.ones(2, device="cuda")), [3, 1], 3),
    "index_copy": (lambda x, i: x.index_copy(0, i, torch.ones(2, 3, device="cuda")), [1, 4], 4),
    "scatter": (lambda x, i: x.scatter(0, i[:1, None].expand(1, 3), 5.0), [4, 0], 4),
}


@pytest.mark.parametrize("what", BAD_INDICES)
def test_an_index_out_of_range_is_an_error_of_the_next_call(what):
    """With index and size; what is out of range is neither read nor written, and the call after that is right."""
    from ark_torch import _C

    body, bad, size = BAD_INDICES[what]
    call = torch.compile(body, backend=ark, options={"strict": True})
    x, good = torch.randn(4, 3, device="cuda"), torch.tensor([0, 2], device="cuda")
    call(x.clone(), torch.tensor(bad, device="cuda"))
    torch.cuda.synchronize()
    wrong = next(i for i in bad if not 0 <= i < size)
    with pytest.raises(_C.DeviceError, match=f"index {wrong} is out of range for size {size}"):
        call(x.clone(), good)
    torch.testing.assert_close(call(x.clone(), good), body(x.clone(), good))
