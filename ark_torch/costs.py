"""What work costs on a GPU model: numbers by which the planner chooses between forms (csrc/planner/costs.h).

Each model that was measured has a file in `ark_torch/gpus/`, named after it; `benchmarks/costs.py` writes it. Others,
and the host target, have the numbers of an H200.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import torch

from ark_torch import _C
from ark_torch.records import log

FOLDER = Path(__file__).parent / "gpus"


def file_of(model: str, folder: Path = FOLDER) -> Path:
    """Where the numbers of a GPU model lie: "NVIDIA H200" -> nvidia_h200.json."""
    return folder / f"{re.sub('[^a-z0-9]+', '_', model.lower()).strip('_')}.json"


def read_costs(path: str) -> dict[str, float]:
    """name -> number of a file. Raises ValueError, naming the file, where it cannot be read or holds what is no number
    between `_C.COST_BOUNDS` of `_C.default_costs()`."""
    try:
        numbers = json.loads(Path(path).read_text())["costs"]
        items = list(numbers.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = 'expected JSON with {"costs": {name: number}}'
        raise ValueError(f"option 'costs': {expected} in {path}: {error!r}") from None
    known, (least, most) = _C.default_costs(), _C.COST_BOUNDS
    for name, number in items:
        if name not in known:
            raise ValueError(f"option 'costs': nothing is called {name!r}, in {path}")
        if type(number) not in (int, float) or not least <= number <= most:
            raise ValueError(f"option 'costs': expected {name} from {least} to {most}, got {number!r}, in {path}")
    return {name: float(number) for name, number in items}


@functools.cache
def _of_model(model: str) -> dict[str, float]:
    path = file_of(model)
    try:
        return read_costs(str(path)) if path.is_file() else {}
    except ValueError as error:  # of another version: the user has not asked for it
        log.warning("not read, an H200's numbers stand for it: %s", error)
        return {}


def costs_for(wanted: str, target: str, device: torch.device) -> dict[str, float]:
    """The native option `costs`; wanted: the option of torch.compile, "auto" or a file."""
    if wanted != "auto":
        return read_costs(wanted)
    if target != "cuda" or not torch.cuda.is_available():  # plans for a GPU can be made without one
        return {}
    return _of_model(torch.cuda.get_device_name(device))
