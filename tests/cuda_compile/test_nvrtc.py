"""Generated kernels are what NVRTC takes, which compiles them where there is a GPU: it has no headers of the system and
no host compiler, unlike nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.test_cpp import build_tests

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# as in csrc/cuda/compiler.cpp, but to PTX: what ptxas says of it is asked of nvcc
OPTIONS = ("-arch=compute_90a", "-std=c++20", "-default-device", "-D__builtin_memcpy=memcpy")


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    package = importlib.util.find_spec("nvidia")
    places = [] if package is None else [Path(p) / "cu13/lib" for p in package.submodule_search_locations]
    folder = next((p for p in places if (p / "libnvrtc.so.13").exists()), None)
    if folder is None:
        pytest.skip("needs the package nvidia-cuda-nvrtc")
    for builtins in folder.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libnvrtc.so.13"))


def strings(values: list[bytes]) -> ctypes.Array:
    return (ctypes.c_char_p * len(values))(*values)


def compiled(nvrtc: ctypes.CDLL, source: bytes) -> tuple[int, str]:
    """NVRTC's result, 0 without errors, and its log."""
    headers = sorted(p for p in CSRC.rglob("*") if p.suffix in (".cuh", ".h"))
    names = [str(p.relative_to(CSRC)).encode() for p in headers]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    texts = strings([p.read_bytes() for p in headers])
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", len(names), texts, strings(names))
    assert made == 0
    result = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), strings([o.encode() for o in OPTIONS]))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result, log.value.decode()


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    subprocess.run([build_tests(["write_sources"]) / "write_sources", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.parametrize("name", ["column", "row_select", "rows_columns_eight", "mixed_groups"])
def test_compiles(nvrtc, sources, name):
    result, log = compiled(nvrtc, (sources / f"{name}.cu").read_bytes())
    assert result == 0, log[:4000]


def test_an_error_is_seen(nvrtc):
    result, log = compiled(nvrtc, b"#include <type_traits>\n")
    assert result != 0 and "type_traits" in log
