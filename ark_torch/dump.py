"""ARK_DUMP=directory: every graph and every stage of its compilation as text. Of several ranks each has a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import fx

from ark_torch.records import log


def dump_folder() -> str:
    """$ARK_DUMP, or "" where nothing is to be written; below it rank<n> where this process is one of several."""
    root = os.environ.get("ARK_DUMP", "")
    rank = _rank()
    return str(Path(root) / f"rank{rank}") if root and rank is not None else root


def _rank() -> int | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() if torch.distributed.get_world_size() > 1 else None
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and world.isdigit() and int(world) > 1 else None


def dump_fx(gm: fx.GraphModule, name: str) -> None:
    """Before anything is compiled."""
    _write(f"{name}.fx.py", lambda: gm.print_readable(print_output=False))


def dump_call(name: str, source: str) -> None:
    """The callable's source."""
    _write(f"{name}.call.py", lambda: source)


def _write(file: str, text: Callable[[], str]) -> None:
    folder = dump_folder()
    if not folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / file).write_text(text())
    except OSError as error:
        log.warning("ARK_DUMP: cannot write %s/%s: %s", folder, file, error)
