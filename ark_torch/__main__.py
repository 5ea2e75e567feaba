"""Command line: `python -m ark_torch info` shows what ark found, `... cache [--clear]` the kernels on disk."""

from __future__ import annotations

import argparse
import platform
import sys


def _info() -> int:
    import torch

    from ark_torch import _C

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
    return 0


def _cache(clear: bool) -> int:
    from ark_torch import _C

    if clear:
        print(f"removed {_C.clear_cache()} kernels")
        return 0
    found = _C.info()
    print(f"{found['cache_folder'] or 'off'}: {found['cache_files']} kernels, {found['cache_bytes']} bytes")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ark_torch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, GPU, NVRTC, cache")
    cache = commands.add_parser("cache", help="the kernels on disk")
    cache.add_argument("--clear", action="store_true", help="remove them")
    args = parser.parse_args(argv)
    return _info() if args.command == "info" else _cache(args.clear)


if __name__ == "__main__":
    sys.exit(main())
