"""Generated kernels are what NVRTC takes, which compiles them where there is a GPU: it has no headers of the system and
no host compiler, unlike nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.support.kernel_names import KERNELS
from tests.test_cpp import build_tests

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# as in csrc/cuda/compiler.cpp; what ptxas says is asked of nvcc
OPTIONS = ("-arch=compute_90a", "-std=c++20", "-default-device", "-D__builtin_memcpy=memcpy")
# Headers, names and templates are the front end's: 0.2 s of 8. The optimizer behind it is nvcc's.
FRONT_END = ("--fdevice-syntax-only",)


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


def compiled(nvrtc: ctypes.CDLL, source: bytes, *more: str) -> tuple[int, str]:
    """NVRTC's result, 0 without errors, and its log. To PTX, unless an option says otherwise."""
    options = [o.encode() for o in (*OPTIONS, *more)]
    headers = sorted(p for p in CSRC.rglob("*") if p.suffix in (".cuh", ".h"))
    names = [str(p.relative_to(CSRC)).encode() for p in headers]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    texts = strings([p.read_bytes() for p in headers])
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", len(names), texts, strings(names))
    assert made == 0
    result = nvrtc.nvrtcCompileProgram(program, len(options), strings(options))
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


@pytest.mark.parametrize("name", KERNELS)
def test_is_understood(nvrtc, sources, name):
    result, log = compiled(nvrtc, (sources / f"{name}.cu").read_bytes(), *FRONT_END)
    assert result == 0, log[:4000]


def test_compiles(nvrtc, sources):
    result, log = compiled(nvrtc, (sources / "row_select.cu").read_bytes())
    assert result == 0, log[:4000]


INSTANTIATED = b"""
template <class T> __device__ int member(T x) { return x.missing; }
extern "C" __global__ void kernel(int* p) { *p = member(3); }
"""


@pytest.mark.parametrize(
    "source, named",
    [(b"#include <type_traits>\n", "type_traits"), (INSTANTIATED, "class type")],
    ids=["header", "template"],
)
@pytest.mark.parametrize("options", [(), FRONT_END], ids=["to PTX", "front end"])
def test_an_error_is_seen(nvrtc, source, named, options):
    result, log = compiled(nvrtc, source, *options)
    assert result != 0 and named in log, log
