"""Builds and wraps driver.cu: single ops of the loop kernel on torch tensors."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent


def _load() -> ctypes.CDLL:
    if "ARK_TEST_DRIVER" in os.environ:  # built before
        return _declare(ctypes.CDLL(os.environ["ARK_TEST_DRIVER"]))
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if shutil.which(nvcc) is None:
        pytest.skip(f"needs nvcc, of the CUDA toolkit: there is no {nvcc}", allow_module_level=True)
    library = pathlib.Path(tempfile.mkdtemp()) / "libdriver.so"
    command = [nvcc, "-std=c++20", "-O2", "-shared", "-Xcompiler", "-fPIC"]
    command += [
        "-gencode",
        "arch=compute_90a,code=sm_90a",
        f"-I{ROOT}/csrc",
        f"-I{HERE}",
        f"{HERE}/driver.cu",
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return _declare(ctypes.CDLL(str(library)))


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    for job in (lib.matmul_job, lib.float_job, lib.simple_job, lib.attention_job, lib.decode_job, lib.mask_range_job):
        job.restype = ctypes.c_void_p
    lib.job_time.restype = ctypes.c_float
    lib.job_launch.argtypes = [ctypes.c_void_p]
    lib.job_time.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.job_status.argtypes = [ctypes.c_void_p]
    return lib


LIB = _load()


def _pointer(t: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(0 if t is None else t.data_ptr())


class Job:
    """An op ready to launch; keeps its tensors alive."""

    def __init__(self, handle: int, tensors: list):
        self.handle, self.tensors = handle, tensors

    def run(self) -> None:
        LIB.job_launch(self.handle)
        assert LIB.job_status(self.handle) == 0

    def launch(self) -> None:
        LIB.job_launch(self.handle)

    def milliseconds(self, count: int) -> float:
        return LIB.job_time(self.handle, count)


def matmul(
    a, b, out, extra=None, residual=None, tile_n=256, program=0, pair_distance=0, b_immutable=False, chunk=1
) -> Job:
    """out[i] = a[i] @ b[i] with the epilogue `program` of kernels.cuh; a (batch, m, k), b (batch, k, n)."""
    strides_a = (ctypes.c_longlong * 3)(*a.stride())
    strides_b = (ctypes.c_longlong * 3)(b.stride(0), b.stride(2), b.stride(1))
    batch, m, k = a.shape
    handle = LIB.matmul_job(
        *(_pointer(t) for t in (a, b, out, extra, residual)),
        *(ctypes.c_int(x) for x in (batch, m, b.shape[2], k)),
        strides_a,
        strides_b,
        *(ctypes.c_int(x) for x in (a.dtype == torch.float16, tile_n, program, pair_distance, b_immutable, chunk)),
    )
    return Job(handle, [a, b, out, extra, residual])


TYPES = {torch.bool: 0, torch.int64: 5, torch.float16: 6, torch.bfloat16: 7, torch.float32: 8, torch.float64: 9}


def matmul_simple(a, b, out, chunk=1) -> Job:
    """out[i] = a[i] @ b[i] on the CUDA cores, any strides."""
    strides = [*a.stride(), *b.stride(), *out.stride()]
    handle = LIB.simple_job(
        *(_pointer(t) for t in (a, b, out)),
        (ctypes.c_int * 4)(a.shape[0], a.shape[1], b.shape[2], a.shape[2]),
        (ctypes.c_longlong * 9)(*strides),
        ctypes.c_int(TYPES[a.dtype]),
        ctypes.c_int(chunk),
    )
    return Job(handle, [a, b, out])


def matmul_float(
    a,
    b,
    out,
    extra=None,
    residual=None,
    tile=(128, 128),
    program=0,
    pair_distance=0,
    immutable=(False, False),
    chunk=1,
) -> Job:
    """out[i] = a[i] @ b[i] in fp32 with the epilogue `program` of kernels.cuh; a (batch, m, k), b (batch, k, n)."""
    handle = LIB.float_job(
        *(_pointer(t) for t in (a, b, out, extra, residual)),
        (ctypes.c_int * 4)(a.shape[0], a.shape[1], b.shape[2], a.shape[2]),
        (ctypes.c_longlong * 3)(*a.stride()),
        (ctypes.c_longlong * 3)(b.stride(0), b.stride(2), b.stride(1)),
        (ctypes.c_longlong * 3)(*out.stride()),
        *(ctypes.c_int(x) for x in (*tile, program, pair_distance, *immutable, chunk)),
    )
    return Job(handle, [a, b, out, extra, residual])


def attention(kind, tensors, sizes, scale, causal=False, causal_offset=0, mask=None, chunk=1) -> Job:
    """kind: 0 forward, 1 backward rows, 2 backward, 3 backward query, 4 simple; tensors as in abi::AttentionParams.
    sizes: batch, heads, kv heads, queries, keys, head size and, where it differs, value size."""
    sizes = (*sizes, sizes[5]) if len(sizes) == 6 else sizes
    pointers = (ctypes.c_void_p * len(tensors))(*(_pointer(t).value for t in tensors))
    strides = []
    for t in tensors:
        own = [] if t is None else list(t.stride())
        strides += own + [0] * (4 - len(own))
    dtype = tensors[0].dtype
    mask_kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    handle = LIB.attention_job(
        kind,
        pointers,
        (ctypes.c_longlong * len(strides))(*strides),
        (ctypes.c_int * 7)(*sizes),
        ctypes.c_float(scale),
        *(ctypes.c_int(x) for x in (causal, causal_offset, mask_kind, 0 if mask is None else TYPES[mask.dtype])),
        *(ctypes.c_int(x) for x in (TYPES[dtype] if kind == 4 else dtype == torch.float16, chunk)),
    )
    return Job(handle, list(tensors))


def decode(tensors, sizes, scale, parts, positions_per_part, causal, causal_offset, chunk, at_once) -> Job:
    """kAttentionDecode; tensors: q, k, v, out, None, mask, range, parts' sums, parts' maxima, position."""
    pointers = (ctypes.c_void_p * len(tensors))(*(_pointer(t).value for t in tensors))
    strides = []
    for t in tensors:
        own = [] if t is None else list(t.stride())
        strides += own + [0] * (4 - len(own))
    mask = tensors[5]
    mask_kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    handle = LIB.decode_job(
        pointers,
        (ctypes.c_longlong * len(strides))(*strides),
        (ctypes.c_int * 6)(*sizes),
        ctypes.c_float(scale),
        *(ctypes.c_int(x) for x in (causal, causal_offset, mask_kind, 0 if mask is None else TYPES[mask.dtype])),
        *(ctypes.c_int(x) for x in (tensors[0].dtype == torch.float16, parts, positions_per_part, chunk, at_once)),
    )
    return Job(handle, list(tensors))


def mask_range(mask, out) -> Job:
    """kMaskRange of a (batch, heads, queries, keys) mask into i32 (batch, heads, blocks of 128 queries, 4)."""
    handle = LIB.mask_range_job(
        _pointer(mask),
        (ctypes.c_longlong * 4)(*mask.stride()),
        _pointer(out),
        (ctypes.c_longlong * 4)(*out.stride()),
        (ctypes.c_int * 4)(*mask.shape),
        ctypes.c_int(TYPES[mask.dtype]),
    )
    return Job(handle, [mask, out])
