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

FOLDER = Path(__file__).parent / "gpus"


def file_of(model: str, folder: Path = FOLDER) -> Path:
    """Where the numbers of a GPU model lie: "NVIDIA H200" -> nvidia_h200.json."""
    return folder / f"{re.sub('[^a-z0-9]+', '_', model.lower()).strip('_')}.json"


@functools.cache
def read_costs(path: str) -> dict[str, float]:
    """name -> number of a file. Raises ValueError where it cannot be read, naming it."""
    try:
        numbers = json.loads(Path(path).read_text())["costs"]
        return {str(name): float(number) for name, number in numbers.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"option 'costs': expected JSON with {{\"costs\": {{name: number}}}} in {path}: {error!r}"
        ) from None


@functools.cache
def _of_model(model: str) -> dict[str, float]:
    path = file_of(model)
    return read_costs(str(path)) if path.is_file() else {}


def costs_for(wanted: str, target: str, device: torch.device) -> dict[str, float]:
    """The native option `costs`; wanted: the option of torch.compile, "auto" or a file."""
    if wanted != "auto":
        return read_costs(wanted)
    return _of_model(torch.cuda.get_device_name(device)) if target == "cuda" else {}
