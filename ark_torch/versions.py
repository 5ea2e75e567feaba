"""The versions of torch and Python that ark takes (tried: torch 2.11 to 2.15). Others, and an extension that
was built for another torch, are refused on import by a line that says what to do. `configure` runs this file by
itself."""

from __future__ import annotations

import importlib
import re
import sys

FIRST, LAST = (2, 11), (2, 15)  # of torch, both included; pyproject.toml asks for the same
PYTHON = (3, 11)  # and later; the tests have run on 3.11 and 3.12, tests/versions.py on 3.13
BUILD = "build ark again (make setup, or pip install --no-build-isolation .)"


def minor(version: str) -> tuple[int, int]:
    """(2, 14) of "2.14.1+cpu"."""
    first, second = re.match(r"(\d+)\.(\d+)", version).groups()
    return int(first), int(second)


def problem(torch_version: str, python: tuple = sys.version_info) -> str:
    """Why ark cannot run on these; empty where it can."""
    if tuple(python[:2]) < PYTHON:
        return f"ark needs Python {PYTHON[0]}.{PYTHON[1]} or later, this is {python[0]}.{python[1]}"
    if not FIRST <= minor(torch_version) <= LAST:
        first, last = (".".join(map(str, v)) for v in (FIRST, LAST))
        return f"ark supports torch {first} to {last}, this is torch {torch_version}"
    return ""


def load_extension() -> None:
    """Raises ImportError where ark cannot run, before anything else of ark is imported."""
    import torch

    if found := problem(torch.__version__):
        raise ImportError(found)
    try:
        importlib.import_module("ark_torch._C")
    except ImportError as error:
        raise ImportError(_why(error, torch.__version__)) from error


def check_built(built_for: str) -> None:
    """Called by the extension before all else: objects of one torch do not lie in memory as those of another."""
    import torch

    if minor(built_for) != minor(torch.__version__):
        raise ImportError(
            f"ark's extension was built for torch {built_for}, this is torch {torch.__version__}: {BUILD}"
        )


def _why(error: ImportError, torch_version: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "ark_torch._C":
        return f"ark's extension is not built for this Python ({sys.version.split()[0]}): {BUILD}"
    if isinstance(error.__cause__, ImportError):  # check_built's
        return str(error.__cause__)
    return f"ark's extension does not load with torch {torch_version} ({error}): {BUILD}"
