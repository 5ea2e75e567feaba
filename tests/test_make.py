"""`make demo` and `make test` themselves, on a small checkout: no network, no compiler, a package that is missing,
another user. They work, or say in a line what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.small_checkout import ROOT, make

NOBODY = 65534
NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
DEMO = "import ark_torch._C\nprint('demonstrated')\n"
TEST = "import ark_torch._C\n\n\ndef test_it():\n    pass\n"

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def checkout(folder: Path) -> Path:
    """With a demonstration and a test of a line each; a space in its path."""
    folder = make(folder / "a b")
    shutil.copy(ROOT / "Makefile", folder)
    for name, text in (("examples/demo.py", DEMO), ("tests/test_it.py", TEST)):
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    return folder


def run(folder: Path, target: str, user: int | None = None, **env: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CCACHE", "PYTEST", "MAKE"))}
    environment |= {"ARK_PYTHON": sys.executable, "CCACHE_DISABLE": "1", **NO_NETWORK} | env
    command = ["make", "-s", target]
    return subprocess.run(command, cwd=folder, env=environment, user=user, capture_output=True, text=True, timeout=300)


def interpreter_without(package: str, folder: Path) -> Path:
    """One that sees every package of this one but that."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    own = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        name = entry.name.lower()
        if not name.startswith(("_virtualenv", "ark", package, f"_{package}")) and not (own / entry.name).exists():
            (own / entry.name).symlink_to(entry)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """In a folder that every user may enter."""
    above = tmp_path_factory.mktemp("built")
    for folder in (above, above.parent):
        folder.chmod(0o755)
    folder = checkout(above)
    done = run(folder, "setup")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("target, said", [("demo", "demonstrated"), ("test-fast", "1 passed")])
def test_without_a_network_what_is_there_does(built, target, said):
    done = run(built, target)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    assert "installing" not in done.stderr, done.stderr


@pytest.mark.parametrize("target, package", [("demo", "pytest"), ("test", "transformers")])  # both fail in `setup`
def test_a_package_that_is_missing_is_named(tmp_path, target, package):
    python = interpreter_without(package, tmp_path / "lacking")
    done = run(checkout(tmp_path), target, ARK_PYTHON=str(python))
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("make", "ERROR", "WARNING"))]
    assert lines and lines[-1].startswith("could not") and package in lines[-1], done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("package", ["ninja", "pybind11"])
def test_what_a_build_can_do_without_may_be_missing(tmp_path, package):
    """torch builds without ninja as well, one unit after the other, and brings pybind11's headers."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/local/bin"):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if not tool.name.startswith(package) and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    python = interpreter_without(package, tmp_path / "lacking")
    done = run(checkout(tmp_path), "demo", ARK_PYTHON=str(python), PATH=str(tools))
    assert done.returncode == 0 and "demonstrated" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("target", ["demo", "test"])
def test_without_a_compiler_it_is_named(tmp_path, target):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("make", "bash", "sh", "cat", "dirname", "find", "mkdir", "id", "realpath", "stat"):
        (tools / tool).symlink_to(shutil.which(tool))
    done = run(checkout(tmp_path), target, PATH=str(tools))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("no C++ compiler (g++): install g++"), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("target", ["demo", "test"])
def test_another_user_than_the_builder_is_told(built, target):
    done = run(built, target, user=NOBODY)
    assert done.returncode != 0
    assert f"cannot write {built}, which belongs to root: build as that user" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
