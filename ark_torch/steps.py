"""The steps of a partition before they are compiled: views that a native step makes itself, steps too small for a plan,
the values that leave a step."""

from __future__ import annotations

import torch
from torch import fx

from ark_torch.errors import TooLong, Unsupported
from ark_torch.groups import has_exchange
from ark_torch.ordering import is_getitem, is_view
from ark_torch.partition import Step, is_symbolic
from ark_torch.symbols import is_unbacked_source

MOST_TENSORS = 3800  # of the 3840 addresses of device/abi/launch.h; the arena, seeds and sizes take some


def own_views(steps: list[Step], owner: dict[fx.Node, fx.Node], causes: dict[fx.Node, str]) -> bool:
    """A plan sees only the aliases that it makes itself. A native step that writes an input therefore makes its own
    views of it; where it cannot, the write is declined. Whether that was so anywhere."""
    declined = False
    for step in (s for s in steps if s.native):
        inside, views = set(step.nodes), []
        writes = [n for n in step.nodes if n.target == torch.ops.aten.copy_.default]
        for source in (x for n in step.nodes for x in n.all_input_nodes):
            mine = [n for n in writes if owner[n] is owner[source]]
            if not mine or source in inside or source is owner[source]:
                continue
            chain = _view_chain(source, owner, causes)
            if chain is None:
                causes.update((n, "copy_ into an input that ATen views") for n in mine)
                declined = True
            else:
                views += [n for n in chain if n not in inside]
                inside.update(chain)
        step.nodes[:0] = views
    return declined


def _view_chain(node: fx.Node, owner: dict[fx.Node, fx.Node], causes: dict[fx.Node, str]) -> list[fx.Node] | None:
    """The native views that lead from the argument that owns the node's memory to the node; None where there is
    more than that to it."""
    chain = []
    while node is not owner[node]:
        if not is_view(node) or node in causes:
            return None
        chain.append(node)
        node = node.args[0]
    return chain[::-1] if node.op == "placeholder" else None


LONG_STEP = 64  # nodes: shorter steps are not cut


def cuts_of(step: Step, error: Unsupported) -> list[fx.Node]:
    """Where a step that the planner declines is cut, so that its parts are planned: a loop, unrolled, is one op or has
    too much to read for one. Nowhere for another reason or a short step."""
    if len(step.nodes) < LONG_STEP or not isinstance(error, TooLong):
        return []
    return [step.nodes[place] for place in _places(step.nodes, 8)]


def _places(nodes: list[fx.Node], num_parts: int) -> list[int]:
    """Where the nodes are cut into parts of about one size, perhaps fewer. A tuple and its getitems stay together:
    no part can read a tuple of another one."""
    last = {n.args[0]: i for i, n in enumerate(nodes) if is_getitem(n)}
    allowed, end = [], 0  # the place of the last getitem of the tuples so far
    for i, node in enumerate(nodes):
        if i > end:
            allowed.append(i)
        end = max(end, last.get(node, i))
    wanted = [len(nodes) * part // num_parts for part in range(1, num_parts)]
    return sorted({min(allowed, key=lambda place: abs(place - want)) for want in wanted}) if allowed else []


def split_at(steps: list[Step], cuts: set[fx.Node]) -> list[Step]:
    """Native steps begin anew at these nodes."""
    parts: list[Step] = []
    for step in steps:
        parts.append(Step(step.native))
        for node in step.nodes:
            if step.native and node in cuts and parts[-1].nodes:
                parts.append(Step(True))
            parts[-1].nodes.append(node)
    return parts


def split_wide(steps: list[Step], returned: set[fx.Node]) -> list[Step]:
    """A launch carries a limited number of addresses: a native step of more tensors becomes several."""
    return [part for step in steps for part in (_parts(step, returned) if step.native else [step])]


def _parts(step: Step, returned: set[fx.Node]) -> list[Step]:
    if _num_tensors(step.nodes, returned) <= MOST_TENSORS:
        return [step]
    halves = split_at([step], {step.nodes[place] for place in _places(step.nodes, 2)})
    if len(halves) < 2:
        return [step]
    return [part for half in halves for part in _parts(half, returned)]


def _num_tensors(nodes: list[fx.Node], returned: set[fx.Node]) -> int:
    """That such a step reads from outside or hands out."""
    inside = set(nodes)
    read = {x for node in nodes for x in node.all_input_nodes if x not in inside and not is_symbolic(x)}
    given = [n for n in nodes if n in returned or any(user not in inside and user.op != "output" for user in n.users)]
    return len(read) + len(given)


def release_small(steps: list[Step]) -> None:
    """Segments that compute a handful of scalars between ATen steps cost more as a launch than as ATen calls."""
    if sum(s.native for s in steps) < 2:
        return
    for step in steps:
        small = len(step.nodes) <= 8 and all(_is_tiny(n) for n in step.nodes)
        if step.native and small and not has_exchange(step.nodes):
            step.native = False


def _is_tiny(node: fx.Node) -> bool:
    val = node.meta.get("val")
    vals = val if isinstance(val, (tuple, list)) else (val,)
    inputs = [n.meta.get("val") for n in node.all_input_nodes]
    return all(not isinstance(v, torch.Tensor) or v.dim() == 0 for v in [*vals, *inputs])


def outputs_of(step: Step, made: set[fx.Node], returned: set[fx.Node]) -> list[fx.Node]:
    """Values of the step that later steps or the caller read, and that no earlier step has made."""
    inside = set(step.nodes)
    found = []
    for node in step.nodes:
        if isinstance(node.meta.get("val"), (tuple, list)) or is_symbolic(node) or node in made:
            continue
        if node in returned or any(u not in inside and u.op != "output" and _reads_values(u) for u in node.users):
            found.append(node)
    return found


def _reads_values(node: fx.Node) -> bool:
    """Not only sizes: what a number is taken out of (`item`) has to be there."""
    return not is_symbolic(node) or is_unbacked_source(node)
