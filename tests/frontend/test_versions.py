"""Which versions of torch are supported: the same everywhere, and said on import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from ark_torch import versions
from tests.versions import run, whole_path

ROOT = Path(__file__).resolve().parents[2]
IMPORT = "import torch; torch.__version__ = torch.torch_version.TorchVersion({version!r}); import ark_torch"


def test_the_package_asks_for_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    first, (major, last) = versions.FIRST, versions.LAST
    wanted = f"torch>={first[0]}.{first[1]},<{major}.{last + 1}"
    assert wanted in project["project"]["dependencies"] and wanted in project["build-system"]["requires"]
    assert project["project"]["requires-python"] == f">={versions.PYTHON[0]}.{versions.PYTHON[1]}"


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cpu", "2.13.0a0+git1234", "2.14.1+cu130", "2.15.0"])
def test_supported(version):
    assert versions.problem(version, (3, 11, 7)) == ""


@pytest.mark.parametrize("version", ["2.9.1", "2.10.0", "2.16.0.dev20261101", "3.0.0", "1.13.1"])
def test_unsupported(version):
    assert versions.problem(version) == f"ark supports torch 2.11 to 2.15, this is torch {version}"


def test_python_that_is_too_old():
    assert versions.problem("2.11.0", (3, 10, 4)) == "ark needs Python 3.11 or later, this is 3.10"


@pytest.mark.parametrize("version, words", [("2.10.0", "supports torch"), ("2.{}.0", "was built for torch")])
def test_import_names_both_versions(version, words):
    """The second: a supported one, but not the one that the extension was built for."""
    other = 12 if versions.minor(torch.__version__) != (2, 12) else 13
    version = version.format(other)
    done = subprocess.run([sys.executable, "-c", IMPORT.format(version=version)], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and re.match(f"ImportError: ark.*{words}.*torch {version}", last), done.stderr


def test_an_extension_that_is_not_there_or_does_not_load(monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr(versions.importlib, "import_module", fail)
    error = ModuleNotFoundError("No module named 'ark_torch._C'", name="ark_torch._C")
    with pytest.raises(ImportError, match=r"not built for this Python \(3\.\d+\.\d+.*build ark again"):
        versions.load_extension()
    error = ImportError("_C.so: undefined symbol: _ZN3c10")
    with pytest.raises(ImportError, match=r"does not load with torch .*undefined symbol: _ZN3c10.*build ark again"):
        versions.load_extension()


@pytest.mark.parametrize("folder", ["", "bin"])
def test_interpreters_of_the_version_check_may_be_named_from_here(folder, tmp_path, monkeypatch):
    """As a path, or as what PATH finds; a link stays one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python-of-test").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    python = whole_path(os.path.join(folder, "python-of-test"))
    assert python == str(tmp_path / "bin/python-of-test")
    (tmp_path / "other").mkdir()
    assert run(["-c", "print('runs')"], tmp_path / "other", python) == (True, "runs")
