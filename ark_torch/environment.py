"""The ARK_* variables of the environment: names that nobody reads, values that cannot be used."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

READ = ("ARK_CACHE_DIR", "ARK_DUMP", "ARK_LOG", "ARK_NVRTC", "ARK_VERIFY")  # help(ark_torch.backend.ark) says what for
# What the Makefile, the tests and the benchmarks read.
BESIDE = (
    "ARK_PYTHON",
    "ARK_CHECK_BOUNDS",
    "ARK_COMMIT",
    "ARK_PROGRAMS",
    "ARK_STRESS_ROUNDS",
    "ARK_UPDATE_GOLDEN",
    "ARK_TEST_",
)


def unknown_names(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A line per variable that nobody reads, with the name that may have been meant."""
    lines = []
    for name in sorted(environment):
        if not name.startswith("ARK_") or name in READ or name.startswith(BESIDE):
            continue
        near = difflib.get_close_matches(name[4:], [known[4:] for known in READ], 1)  # all begin alike
        meant = f"did you mean ARK_{near[0]}?" if near else f"known: {', '.join(READ)}"
        lines.append(f"{name} is read by nobody; {meant}")
    return lines


def bad_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A line per value that cannot be used. Of ARK_LOG and ARK_VERIFY the extension takes one at a time, and raises at
    torch.compile; folders that cannot be written cost what would be in them."""
    from ark_torch import _C

    lines = []
    try:
        _C.check_environment()
    except ValueError as error:
        lines.append(str(error))
    for name in ("ARK_CACHE_DIR", "ARK_DUMP"):
        folder = environment.get(name, "")
        if folder and not (name == "ARK_CACHE_DIR" and folder == "off") and not _can_write(Path(folder)):
            lines.append(f'{name}: expected a folder that can be made and written, got "{folder}"')
    nvrtc = environment.get("ARK_NVRTC", "")
    if nvrtc and not Path(nvrtc).is_dir():
        lines.append(f'ARK_NVRTC: expected a folder, got "{nvrtc}"')
    return lines


def _can_write(folder: Path) -> bool:
    """The folder, or the nearest of its parents that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
