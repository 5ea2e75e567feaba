"""Set-up, embedded sources, NVRTC, the kernel cache on disk, the command line."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.graph_builder import add_relu, mlp
from tests.support.prepared_python import prepared_python

ROOT = Path(__file__).resolve().parent.parent
_C = pytest.importorskip("ark_torch._C")
needs_nvrtc = pytest.mark.skipif(not _C.info()["nvrtc"], reason=f"no NVRTC: {_C.info()['nvrtc_problem']}")


def python(code: str, start: str = "", **env: str) -> subprocess.CompletedProcess:
    """start: sys.executable, where importing is what is asked for."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | env
    command = [start or prepared_python(), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


def test_embedded_files_are_those_of_the_checkout():
    embed = runpy.run_path(str(ROOT / "csrc/embed.py"))
    assert (ROOT / "build/embedded.cpp").read_text() == embed["embedded_source"]()


def test_embedding_refuses_its_own_delimiter(tmp_path):
    embed = runpy.run_path(str(ROOT / "csrc/embed.py"))
    (tmp_path / "device").mkdir()
    (tmp_path / "device/bad.h").write_text(f"){embed['DELIMITER']}")
    with pytest.raises(ValueError, match="bad.h"):
        embed["embedded_source"](tmp_path)


def test_backend_is_listed_without_importing_ark():
    code = (
        "import sys, torch._dynamo as d; assert 'ark' in d.list_backends(), d.list_backends();"
        "assert not any(m.startswith('ark_torch') for m in sys.modules)"
    )
    result = python(code, sys.executable)
    assert result.returncode == 0, result.stderr


def test_importing_ark_brings_no_dynamo():
    """It takes about as long to import as torch itself."""
    code = "import sys, torch; old = {*sys.modules}; import ark_torch; print('torch._dynamo' in {*sys.modules} - old)"
    result = python(code, sys.executable)
    assert result.stdout == "False\n", result.stdout + result.stderr


def test_entry_point_names_the_backend():
    points = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert [p.value for p in points if p.name == "ark"][:1] == ["ark_torch.registration:nothing"]


def test_entry_point_names_the_process_group():
    points = importlib.metadata.entry_points(group="torch.backends")
    assert [p.value for p in points if p.name == "ark"][:1] == ["ark_autoload:register"]


def test_extension_links_no_cuda():
    libraries = subprocess.run(["ldd", _C.__file__], capture_output=True, text=True, check=True).stdout
    own = subprocess.run(["readelf", "-d", _C.__file__], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", own)
    assert libraries and not [n for n in needed if "cuda" in n or "nvrtc" in n]


def test_second_build_compiles_nothing():
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    for _ in range(2):
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
        assert result.returncode == 0, result.stdout + result.stderr
        if "ninja: no work to do" in result.stdout:  # the first is the second, after `make`
            return
    raise AssertionError(result.stdout)


def test_info_on_the_command_line(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT), "ARK_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ark_torch"]
    info = subprocess.run([*command, "info"], env=env, capture_output=True, text=True)
    assert info.returncode == 0, info.stderr
    assert "torch" in info.stdout and str(tmp_path / "cache") in info.stdout
    cache = subprocess.run([*command, "cache"], env=env, capture_output=True, text=True)
    assert cache.stdout == f"{tmp_path / 'cache'}: 0 kernels, 0 bytes\n"


def told(start: str = "", **variables: str) -> tuple[int, list[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ARK_")} | variables
    command = [start or prepared_python(), "-m", "ark_torch", "info"]
    done = subprocess.run(command, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_info_ends_with_a_verdict(tmp_path):
    code, lines = told(
        sys.executable, ARK_CACHE_DIR=str(tmp_path), ARK_CACHEDIR="x", ARK_WORKERS="4", ARK_PYTHON="python3"
    )
    assert code == 0 and lines[-1].startswith("ready for C") and "CPU tensors" in lines[-1]
    if not _C.info().get("gpu"):
        assert "not ready for CUDA tensors because" in lines[-1]
    named = [line.split(None, 1)[1] for line in lines if line.startswith("environment")]
    assert named[0] == "ARK_CACHEDIR is read by nobody; did you mean ARK_CACHE_DIR?"
    assert named[1].startswith("ARK_WORKERS is read by nobody; known: ARK_CACHE_DIR, ") and len(named) == 2


@pytest.mark.parametrize(
    "name, meant",
    [("STRICT", None), ("TRACE", None), ("LO", "LOG"), ("LOG_LEVEL", None), ("VERFIY", "VERIFY"), ("DUMPS", "DUMP")],
)
def test_only_a_near_name_is_suggested(name, meant):
    from ark_torch.environment import READ, unknown_names

    end = f"did you mean ARK_{meant}?" if meant else f"known: {', '.join(READ)}"
    assert unknown_names({f"ARK_{name}": "maybe"}) == [f"ARK_{name} is read by nobody; {end}"]


def test_info_is_not_ready_with_a_value_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    code, lines = told(ARK_LOG="loud", ARK_DUMP=str(tmp_path / "file/dump"), ARK_NVRTC=str(tmp_path / "none"))
    assert code == 1 and lines[-1].startswith("not ready because ARK_LOG: expected one of error, ")
    assert all(f"{name}: expected a folder" in lines[-1] for name in ("ARK_DUMP", "ARK_NVRTC"))
    assert told(sys.executable, ARK_DUMP=str(tmp_path / "new/dump"), ARK_CACHE_DIR="off")[0] == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "found, torch_cuda, said",
    [
        (
            {"driver_problem": "", "gpu": "H200", "nvrtc_problem": ""},
            "13.0",
            "ready for CUDA tensors (H200) and CPU tensors",
        ),
        ({"driver_problem": "no driver", "nvrtc_problem": ""}, "13.0", "ready for CPU tensors; .* because no driver"),
        ({"driver_problem": "", "gpu_problem": "no device", "nvrtc_problem": ""}, "13.0", ".* because no device"),
        ({"driver_problem": "", "gpu": "H200", "nvrtc_problem": "no nvrtc"}, "13.0", ".* because no nvrtc"),
        (
            {"driver_problem": "", "gpu": "H200", "nvrtc_problem": ""},
            None,
            ".* because this torch is built without CUDA",
        ),
    ],
)
def test_verdicts(found, torch_cuda, said):
    from ark_torch.__main__ import _gpu_problem, _verdict

    verdict = _verdict([], _gpu_problem(found, torch_cuda), found.get("gpu", ""))
    assert verdict == said or re.fullmatch(said, verdict)


CACHE = """
import runpy, sys
for arguments in {calls}:
    sys.argv = ["ark_torch", "cache", *arguments]
    try:
        runpy.run_module("ark_torch", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code
"""


def test_cache_is_counted_and_cleared_on_the_command_line(tmp_path):
    """Kernels go, other files stay."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("a.cubin", "b.cubin"):
        (folder / name).write_bytes(bytes(100))
    (folder / "notes.txt").write_text("mine")
    env = os.environ | {"PYTHONPATH": str(ROOT), "ARK_CACHE_DIR": str(folder)}

    calls = [[], ["--clear"], [], ["--clear"]]
    done = subprocess.run([sys.executable, "-c", CACHE.format(calls=calls)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, cleared, second, nothing = done.stdout.splitlines()
    assert first == f"{folder}: 2 kernels, 200 bytes" and cleared == "removed 2 kernels"
    assert second == f"{folder}: 0 kernels, 0 bytes" and nothing == "removed 0 kernels"
    assert [f.name for f in folder.iterdir()] == ["notes.txt"]


COMPILE = """
import os, sys
sys.path.insert(0, {root!r})
from ark_torch import _C
from tests.support.graph_builder import add_relu
running = []
for number in range({processes}):
    running.append(os.fork())
    if running[-1] == 0:
        plan = _C.plan_graph(add_relu([16, 64]), [], {{"workers": 4}})
        print(_C.compile_only(plan)["origin"] + " ", end="", flush=True)  # in one piece, as others write too
        os._exit(0)
    if not {at_once}:
        assert os.waitpid(running.pop(), 0)[1] == 0
for process in running:
    assert os.waitpid(process, 0)[1] == 0
"""


def origins(folder: Path, processes: int, at_once: bool = False) -> tuple[list[str], str]:
    """Of a kernel in processes that have compiled nothing before, and what they say in errors."""
    code = COMPILE.format(root=str(ROOT), processes=processes, at_once=at_once)
    done = python(code, sys.executable, ARK_CACHE_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@needs_nvrtc
def test_kernels_are_found_again_by_another_process(tmp_path):
    assert origins(tmp_path, 2)[0] == ["compiled", "disk"]
    kernel = next(tmp_path.glob("*.cubin"))
    data = bytearray(kernel.read_bytes())
    data[len(data) // 2] ^= 1
    kernel.write_bytes(data)
    found, errors = origins(tmp_path, 1)
    assert found == ["compiled"] and "damaged kernel" in errors


@needs_nvrtc
def test_processes_may_compile_at_once(tmp_path):
    found, _ = origins(tmp_path, 3, at_once=True)
    assert len(found) == 3 and {*found} <= {"compiled", "disk"}
    assert [f.suffix for f in tmp_path.iterdir()] == [".cubin"]


@needs_nvrtc
@pytest.mark.parametrize("graph", [add_relu([300, 70]), mlp(64, 128)], ids=["pointwise", "mlp"])
@pytest.mark.parametrize("trace", [False, True])
def test_kernels_compile_without_spills_or_warnings(graph, trace):
    result = _C.compile_only(_C.plan_graph(graph), trace)
    assert result["cubin"].startswith(b"\x7fELF") and result["registers"] > 0
    assert result["warnings"] == "" and result["spill_bytes"] == 0, result["log"]


@needs_nvrtc
def test_sizes_are_no_part_of_the_kernel():
    first = _C.compile_only(_C.plan_graph(add_relu([300, 70], name="one")))
    second = _C.compile_only(_C.plan_graph(add_relu([500, 20], name="another")))
    assert second["origin"] == "memory" and first["cubin"] == second["cubin"]


def test_without_nvrtc_the_reason_is_given(tmp_path):
    code = "from ark_torch import _C; print(_C.info()['nvrtc'], _C.info()['nvrtc_problem'])"
    result = python(code, ARK_NVRTC=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"no usable NVRTC in ARK_NVRTC={tmp_path}"


@needs_nvrtc
def test_nvrtc_of_a_folder_of_the_users_choice():
    folder = str(Path(_C.info()["nvrtc_path"]).parent)
    result = python("from ark_torch import _C; print(_C.info()['nvrtc_path'])", ARK_NVRTC=folder)
    assert result.stdout.startswith(folder), result.stderr
