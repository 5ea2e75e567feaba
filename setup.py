"""Builds the extension ark_torch._C from every C++ file under csrc and the embedded device headers; needs no CUDA."""

import fcntl
import os
import runpy
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
EMBEDDED = "build/embedded.cpp"


def share_ccache() -> None:
    """Where ccache is installed, torch puts it before the compiler. It finds the objects of another checkout when
    paths below the folder of the checkouts count as relative ones. Left out where this user cannot write its folder."""
    if not shutil.which("ccache"):
        return
    os.environ.setdefault("CCACHE_BASEDIR", str(ROOT.parent))
    os.environ.setdefault("CCACHE_NOHASHDIR", "1")
    folder = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True, text=True).stdout.strip()
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        pass
    if not os.access(folder, os.W_OK):
        os.environ["CCACHE_DISABLE"] = "1"


class Build(BuildExtension):
    """BuildExtension (ninja, incremental) that refreshes the embedded files first, one build at a time."""

    def build_extensions(self) -> None:
        (ROOT / "build").mkdir(exist_ok=True)
        with open(ROOT / "build/lock", "w") as lock:  # two builds at once would break each other's ninja log
            fcntl.flock(lock, fcntl.LOCK_EX)
            runpy.run_path(str(ROOT / "csrc/embed.py"))["write_if_changed"](ROOT / EMBEDDED)
            share_ccache()
            super().build_extensions()


def sources() -> list[str]:
    found = sorted(f.relative_to(ROOT).as_posix() for f in (ROOT / "csrc").rglob("*.cpp"))
    return [f for f in found if not f.endswith("_test.cpp")] + [EMBEDDED]


def checks() -> list[str]:
    """ARK_CHECK_BOUNDS=1: the indices of the standard library's containers are checked. The C++ tests always check
    them; with it they link the core's objects of this build instead of compiling the core once more."""
    return ["-D_GLIBCXX_ASSERTIONS"] if os.environ.get("ARK_CHECK_BOUNDS", "0") == "1" else []


def link_options() -> list[str]:
    """The shared libstdc++, named outright: some compilers are set up to link a static one, and a second copy beside
    torch's breaks streams and locales (seen as a crash in operator<<)."""
    compiler = os.environ.get("CXX", "g++").split()
    found = subprocess.run(
        [*compiler, "-print-file-name=libstdc++.so.6"], capture_output=True, text=True
    ).stdout.strip()
    shared = [found] if os.path.isabs(found) else []
    return ["-ldl", "-lpthread", *shared, "-Wl,--exclude-libs,ALL"]


setup(
    license="MIT",
    ext_modules=[
        CppExtension(
            "ark_torch._C",
            sources(),
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=[
                "-std=c++20",
                "-O2",
                "-g0",
                "-fvisibility=hidden",
                "-Wall",
                "-Werror=switch",
                "-Wno-sign-compare",
                *checks(),
            ],
            extra_link_args=link_options(),
        )
    ],
    cmdclass={"build_ext": Build},
)
