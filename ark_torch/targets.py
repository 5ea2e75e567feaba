"""Where a graph runs: its device, the target that fits it, as many workers as it has room for."""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx


def graph_device(gm: fx.GraphModule) -> torch.device:
    """The accelerator that most tensors of the graph are on, else the CPU."""
    devices = Counter()
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        for item in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(item, torch.Tensor):
                devices[item.device] += 1
    accelerators = [d for d, _ in devices.most_common() if d.type == "cuda"]
    if accelerators:
        return accelerators[0]
    return torch.device("cpu")


def resolve_target(wanted: str, device: torch.device) -> str:
    fitting = {"cuda": "cuda", "cpu": "host"}.get(device.type)
    if wanted != "auto" and wanted != fitting:
        raise ValueError(f"option target={wanted!r} does not fit tensors on {device} (expected {fitting!r})")
    return fitting


def check_workers(workers: int | None, target: str, device: torch.device) -> None:
    """Every worker of the loop kernel has an SM of its own."""
    if workers and target == "cuda":
        most = torch.cuda.get_device_properties(device).multi_processor_count
        if workers > most:
            raise ValueError(f"option 'workers' is {workers}, expected at most {most}, the SMs of {device}")
