"""Plans without one of their producers' signals, for tests of deadlines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import torch

from ark_torch import segment
from tests.support.reference_eval import DTYPES


def _counters(signal: dict) -> set[int]:
    """The counters that a wait or an arrival may name."""
    first = signal.get("counter", 0)
    return set(range(first, first + -(-signal.get("limit", 1) // signal.get("div", 1))))


def _waits(op: dict) -> list[dict]:
    """Those that the loop kernel keeps: readers of words that carry their own flag drop some."""
    flags = op.get("flags", {})
    dropped = flags.get("dropped_waits", 0)
    return [w for i, w in enumerate(op.get("waits", [])) if not dropped >> i & 1] + flags.get("added_waits", [])


def without_one_arrival(plan_text: str) -> Iterator[tuple[str, str]]:
    """(name of the op, plan) for every arrival of the plan that some op waits for: the plan without it."""
    plan = json.loads(plan_text)
    awaited = set().union(*(_counters(wait) for op in plan["ops"] for wait in _waits(op)))
    for op in plan["ops"]:
        arrivals, flags = op.get("arrivals", []), op.get("flags", {})
        dropped = flags.get("dropped_arrivals", 0)
        for place in range(len(arrivals)):
            if dropped >> place & 1 or not _counters(arrivals[place]) & awaited:
                continue
            op["arrivals"] = arrivals[:place] + arrivals[place + 1 :]
            if dropped:  # the bits of those behind move down
                below = dropped & ((1 << place) - 1)
                op["flags"] = {**flags, "dropped_arrivals": below | dropped >> (place + 1) << place}
            yield op["name"], json.dumps(plan)
        op["arrivals"] = arrivals
        if flags:
            op["flags"] = flags


def without_one_item(plan_text: str, most: int) -> Iterator[tuple[str, str]]:
    """(name of the op, plan) for work items whose signals are waited for, at most 2 * `most` of them spread over the
    plan: the plan without it. What it would have written stays unwritten, words that carry their own flag as well."""
    plan = json.loads(plan_text)
    ops, lists = plan["ops"], plan["lists"]
    awaited = set().union(*(_counters(wait) for op in ops for wait in op.get("waits", [])))
    producers = {i for i, op in enumerate(ops) if any(_counters(a) <= awaited for a in op.get("arrivals", []))}
    places = sorted((item[0], w, i) for w, items in enumerate(lists) for i, item in enumerate(items))
    places = [place for place in places if place[0] in producers]
    for op, worker, place in places[:: max(1, len(places) // most)]:
        item = lists[worker].pop(place)
        yield ops[op]["name"], json.dumps(plan)
        lists[worker].insert(place, item)


def without_sends(plan_text: str) -> str:
    """The plan without the work items that send to other ranks; what ranks compare of it is the same."""
    plan = json.loads(plan_text)
    sends = {i for i, op in enumerate(plan["ops"]) if any(op.get("arrive_rank_stride", []))}
    assert sends
    plan["lists"] = [[item for item in items if item[0] not in sends] for items in plan["lists"]]
    return json.dumps(plan)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Plans that this rank compiles meanwhile, of fixed sizes, send nothing."""
    make = segment.make_executable

    def damaged(graph_text: str, target: str, device_index: int, options: dict):
        whole = make(graph_text, target, device_index, options)
        return make(graph_text, target, device_index, {**options, "plan": without_sends(whole.plan_json([]))})

    segment.make_executable = damaged
    try:
        yield
    finally:
        segment.make_executable = make


def some_inputs(graph_text: str, device: str) -> list[torch.Tensor]:
    """Tensors that fit a graph without symbols: numbers around 0, and zeros where they are integers."""
    graph, generator = json.loads(graph_text), torch.Generator().manual_seed(0)
    result = []
    for number in graph["inputs"]:
        value = graph["values"][number]
        dtype = DTYPES[value["dtype"]]
        reach = sum((size - 1) * stride for size, stride in zip(value["sizes"], value["strides"]))
        extent = 1 + reach if all(value["sizes"]) else 0  # elements may overlap: they are drawn as memory has them
        numbers = torch.randn(extent, generator=generator) if dtype.is_floating_point else torch.zeros(extent)
        result.append(numbers.to(device, dtype).as_strided(value["sizes"], value["strides"]))
    return result
