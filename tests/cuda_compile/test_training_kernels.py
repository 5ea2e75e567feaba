"""The kernels of a training step of BERT-Large, of two layers: as wide as in earnest, with all programs of columns and
rows beside products and attention in one kernel, where the registers of one cost the others theirs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cuda_compile.test_cuda_compile import FORBIDDEN, compile_source
from tests.support import dump_graphs
from tests.test_cpp import build_tests

# Of stores and loads, of all functions. The backward has 24; it had 1896 (docs/notes/training.md, "Registers").
MOST_BYTES = 64


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    dump_graphs.write(folder, "bert_wide", dump_graphs.bert("wide"))
    graphs = sorted(folder.glob("*.json"))
    assert [path.stem for path in graphs] == ["bert_bw_wide", "bert_fw_wide"]
    subprocess.run([build_tests(["write_sources"]) / "write_sources", folder, *graphs], check=True)
    return folder


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["bert_fw_wide", "bert_bw_wide"])
def test_hardly_any_spills(sources, name):
    report = compile_source(sources / f"{name}.cu")
    assert not FORBIDDEN.search(report), report
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    assert spills and sum(spills) <= MOST_BYTES, report
