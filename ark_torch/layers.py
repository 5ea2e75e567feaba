"""The layers of a run: the modules of one depth, and when each of them is at work."""

from __future__ import annotations

from collections.abc import Sequence

from ark_torch.runs import wait_end

MOST_LAYERS = 40


def layer_of(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


def spans_of_layers(records: Sequence[dict], most: int = MOST_LAYERS) -> list[tuple[str, int, int]]:
    """(layer, begin, end) by their begin: from its first item's work to the end of its last. A layer is what modules of
    the deepest level with at most so many layers share; items without a module belong to none."""
    modules = {r["module"] for r in records if r["module"]}
    deepest = max((m.count(".") + 1 for m in modules), default=0)
    depths = [d for d in range(1, deepest + 1) if len({layer_of(m, d) for m in modules}) <= most]
    if not depths:
        return []
    spans: dict[str, tuple[int, int]] = {}
    for r in records:
        if r["module"]:
            layer = layer_of(r["module"], depths[-1])
            begin, end = spans.get(layer, (wait_end(r), r["end"]))
            spans[layer] = min(begin, wait_end(r)), max(end, r["end"])
    return sorted(((name, *span) for name, span in spans.items()), key=lambda item: item[1:])


def lanes(spans: Sequence[tuple[str, int, int]]) -> list[tuple[int, str, int, int]]:
    """(lane, layer, begin, end): layers of one lane do not overlap."""
    ends: list[int] = []
    found = []
    for name, begin, end in spans:
        lane = next((i for i, until in enumerate(ends) if until <= begin), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]]
        found.append((lane, name, begin, end))
    return found
