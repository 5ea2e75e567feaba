"""Generated kernels compile for sm_90a without spills and without the warnings that mean lost performance."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kernel_names import COMPILED
from tests.test_cpp import build_tests

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
NVCC = shutil.which("nvcc")
# Programs of the host that take the compiler longer than they run.
HARDLY_RUN = {"kept_rows", "column_walks", "decode_warps"}
# ignored setmaxnreg, serialised wgmma (calls, divergence, missing waits, undefined accumulators)
FORBIDDEN = re.compile(r"C75(04|06|08|09|10|11|12|15|20)")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    built = build_tests(["write_sources"])
    output = subprocess.run([built / "write_sources", folder], check=True, capture_output=True, text=True).stdout
    return {Path(line).stem: Path(line) for line in output.splitlines()}


def compile_source(path: Path) -> str:
    """The compiler's report. Fails on errors."""
    command = [NVCC, "-std=c++20", "-O3", f"-I{CSRC}", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v"]
    result = subprocess.run(
        [*command, "-cubin", path, "-o", path.with_suffix(".cubin")], capture_output=True, text=True
    )
    report = result.stdout + result.stderr
    assert result.returncode == 0, report
    return report


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_without_spills(sources, name):
    report = compile_source(sources[name])
    assert not FORBIDDEN.search(report), report
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    assert spills, report
    assert max(spills) == 0, report


def run_on_host(name: str, folder: Path) -> None:
    """Compiles host/<name>.cpp and runs it; `folder` is one of its folders of headers, and has the result."""
    host, tool = Path(__file__).parent / "host", folder / name
    command = [
        "g++",
        "-std=c++20",
        "-O0" if name in HARDLY_RUN else "-O1",
        f"-I{host}",
        f"-I{CSRC}",
        f"-I{folder}",
        "-Wno-unknown-pragmas",
        "-pthread",
        "-o",
        tool,
    ]
    subprocess.run([*command, host / f"{tool.name}.cpp"], check=True)
    done = subprocess.run([tool], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("plan", "tool"),
    [
        ("pointwise_flat", "flat_values"),
        ("pointwise_flat", "slot_values"),
        ("pointwise_flat", "whole_values"),
        ("batch_stores", "batch_stores"),
        ("column", "columns"),
        ("scatter_sum", "scatter_sums"),
        ("row_select", "selects"),
        ("row_draw", "draws"),
        ("row", "in_turn"),
        ("kept_rows", "kept_rows"),
    ],
)
def test_values(sources, tmp_path, plan, tool):
    """Generated programs on the host: by vectors that end in the next row, by slots of rows, by whole vectors, and by
    elements; stores of every batch; odd columns and rows; sums by index; row selects, row draws; long functions in
    turn."""
    structs = re.findall(r"^struct Program\d+ {.*?^};", sources[plan].read_text(), re.M | re.S)
    names = " ".join(f"F({re.search(r'Program[0-9]+', s)[0]})" for s in structs)
    (tmp_path / "programs.inc").write_text("\n".join([*structs, f"#define ARK_PROGRAMS(F) {names}", ""]))
    run_on_host(tool, tmp_path)


def test_walks_of_columns(tmp_path):
    """Few rows and weights [k][n]: the loader of pages and who multiplies them, on the host."""
    run_on_host("column_walks", tmp_path)


def test_warps_of_decode_attention(tmp_path):
    """Scores and sums of every head size, warps on the host against fp64."""
    run_on_host("decode_warps", tmp_path)


def test_places_of_extremes(tmp_path):
    """Ties, NaN, infinities and integers at their ends."""
    run_on_host("places", tmp_path)
