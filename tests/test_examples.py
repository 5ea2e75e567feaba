"""The examples as their first lines say, on the host; those that stand on torch.distributed between two processes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import has_extension
from tests.support.prepared_python import prepared_python

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> str:
    """What python prints for it, without GPUs. A fresh python runs tests/distributed/test_page.py."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [prepared_python(), *command], cwd=ROOT, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def torchrun(*command: str) -> str:
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command)


def test_allreduce_quickstart():
    assert "2 ranks on cpu: ok" in torchrun("examples/allreduce_quickstart.py")


def test_train_ddp():
    text = torchrun("examples/train_ddp.py", "--steps", "11", "--width", "64", "--depth", "2")
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]
    assert len(losses) == 2 and losses[1] < losses[0], text


def test_tensor_parallel():
    """It starts its ranks itself; both all-reduces are in the plan."""
    text = run("examples/tensor_parallel.py")
    assert "2 ranks on cpu: equal to a single process" in text and "through ATen: nothing" in text, text
    assert "exchanges between ranks: 2," in text and text.count("the same to each of 2 ranks") == 2, text


def test_explain_model():
    """Every op that runs through ATen is there with its cause."""
    text = run("examples/explain_model.py")
    assert re.search(r"\d+ +aten\.sort\.default", text) and re.search(r"matmul_float \d+", text), text


def test_loop():
    """All steps in one launch, with the bits of single ones; the loss falls."""
    text = run("examples/loop.py", "--steps", "200", "--width", "32")
    first, last = map(float, re.search(r"loss ([\d.]+) after the first step, ([\d.]+) after step 200", text).groups())
    assert last < first / 2, text
    assert "parameters and losses equal to steps" in text and re.search(r"_loop0: one launch", text), text


def test_generate():
    """All tokens but the first in one launch, and equal to transformers'."""
    pytest.importorskip("transformers")
    text = run("examples/generate.py", "--rows", "2", "--new", "8", "--layers", "2", "--width", "128")
    assert "2 rows of 8 new tokens equal" in text and re.search(r"_loop0: one launch", text), text


def test_train_bert():
    text = run("examples/train_bert.py", "--steps", "2", "--layers", "2")
    steps = re.findall(r"step \d+: loss ([\d.]+) with ark, ([\d.]+) eager", text)
    assert len(steps) == 2, text
    for ark, eager in steps:
        assert abs(float(ark) - float(eager)) < 0.01, text


def test_demo():
    """The report of `make demo`: equal tokens, no fallback, compile time by parts."""
    text = run("examples/demo.py", "--layers", "2")
    assert re.search(r"tokens generated, equal to eager.s", text) and "through ATen: nothing" in text, text
    assert re.search(r"of which Dynamo [\d.]+, AOTAutograd [\d.]+, ark [\d.]+", text), text


NAMED = """
import ast, sys, types
from pathlib import Path
from tests.support.torch_alone import MODULES
for file in sorted(Path("examples").glob("*.py")):
    tree, bound, imported = ast.parse(file.read_text()), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                imported.add(name.name)
                bound[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    known = {".".join(m.split(".")[:i + 1]) for m in imported for i in range(m.count(".") + 1)} | MODULES
    for node in ast.walk(tree):
        words, at = [], node
        while isinstance(at, ast.Attribute):
            words, at = [at.attr, *words], at.value
        module = sys.modules.get(bound.get(at.id)) if words and isinstance(at, ast.Name) else None
        for word in words:
            module = getattr(module, word, None)
            if not isinstance(module, types.ModuleType):
                break
            if module.__name__ not in known:
                print(f"{file}, line {node.lineno}: {ast.unparse(node)}, but {module.__name__} is not imported")
"""


def test_modules_that_are_named_are_imported():
    """Whatever else the process that runs an example here has imported."""
    assert run("-c", NAMED) == ""
