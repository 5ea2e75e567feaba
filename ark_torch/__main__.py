"""Command line: `python -m ark_torch info` shows what ark found, `... cache [--clear]` the kernels on disk,
`... ops` what runs natively."""

from __future__ import annotations

import argparse
import platform
import sys


def _info() -> int:
    import torch

    from ark_torch import _C
    from ark_torch.environment import bad_values, unknown_names

    found = _C.info()
    nvrtc = f"{found['nvrtc']} ({found['nvrtc_path']})" if found["nvrtc"] else f"missing: {found['nvrtc_problem']}"
    gpu = found.get("gpu") or found.get("gpu_problem") or found["driver_problem"]
    rows = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "extension": _C.__file__,
        "driver (CUDA)": found["driver"] or found["driver_problem"],
        "GPU": gpu,
        "NVRTC": nvrtc,
        "kernel cache": found["cache_folder"] or "off",
        "cached kernels": f"{found['cache_files']} ({found['cache_bytes'] / 1e6:.1f} MB)",
    }
    for key, value in rows.items():
        print(f"{key:<15} {value}")
    for line in unknown_names():
        print(f"{'environment':<15} {line}")
    bad = bad_values()
    print(_verdict(bad, _gpu_problem(found, torch.version.cuda), found.get("gpu", "")))
    return 1 if bad else 0


def _gpu_problem(found: dict, torch_cuda: str | None) -> str:
    """Why no plan can run on a GPU; empty where one can."""
    if torch_cuda is None:
        return "this torch is built without CUDA"
    return found["driver_problem"] or found.get("gpu_problem") or found["nvrtc_problem"]


def _verdict(bad: list[str], gpu_problem: str, gpu: str) -> str:
    if bad:
        return "not ready because " + "; ".join(bad)
    if gpu_problem:
        return f"ready for CPU tensors; not ready for CUDA tensors because {gpu_problem}"
    return f"ready for CUDA tensors ({gpu}) and CPU tensors"


def _cache(clear: bool) -> int:
    from ark_torch import _C

    if clear:
        print(f"removed {_C.clear_cache()} kernels")
        return 0
    found = _C.info()
    print(f"{found['cache_folder'] or 'off'}: {found['cache_files']} kernels, {found['cache_bytes']} bytes")
    return 0


def _ops() -> int:
    from ark_torch.ops import table

    print(table())
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ark_torch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, GPU, NVRTC, cache")
    cache = commands.add_parser("cache", help="the kernels on disk")
    cache.add_argument("--clear", action="store_true", help="remove them")
    commands.add_parser("ops", help="the ops that run natively, as Markdown")
    args = parser.parse_args(argv)
    return {"info": _info, "cache": lambda: _cache(args.clear), "ops": _ops}[args.command]()


if __name__ == "__main__":
    sys.exit(main())
