"""Process groups whose collectives plans can hold, and the nodes of a graph that are of such groups."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass

import sympy
import torch
from torch import fx

from ark_torch._compat import resolve_group, size_expr
from ark_torch.errors import Unsupported

MOST_RANKS = 8  # an op that sends has an operand for each
MOST_GROUPS = 8  # that a launch has room for (kMostPlanGroups, csrc/device/abi/abi.h)
# Of a plan on GPUs. More are built, and were run by two ranks that share a GPU alone: their tests ask for MOST_GROUPS.
groups_on_gpus = 1
COLLECTIVES: set = set()  # overloads that lower_collective has rules for


@dataclass(frozen=True)
class Group:
    name: str
    size: int


def group_name(node: fx.Node) -> str:
    """The name of the group that a collective node is of: its last argument."""
    group = node.kwargs.get("group_name", node.args[-1] if node.args else None)
    return group if isinstance(group, str) else str(getattr(group, "group_name", group))


def group_of(node: fx.Node, device: torch.device | None) -> Group:
    """Raises Unsupported unless it is one whose ranks run plans."""
    from ark_torch import _C

    kind = "cpu" if device is None else device.type
    if kind not in ("cpu", "cuda"):
        raise Unsupported(f"collective of tensors on {kind}")
    name = group_name(node)
    backend = resolve_group(name, kind)
    if not isinstance(backend, _C.ProcessGroupArk):
        raise Unsupported("collective of a process group that is not ark's")
    size = backend.size()
    if size > MOST_RANKS:
        raise Unsupported(f"collective of {size} ranks, a plan has room for {MOST_RANKS}")
    return Group(name, size)


def is_wait(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name == "_c10d_functional::wait_tensor"


def split_waits(graph: fx.Graph) -> None:
    """A wait for several values becomes one for each (torch has it from 2.15 on). Its results are read by place."""
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        if name != "_c10d_functional::wait_tensors" or any(u.target is not operator.getitem for u in node.users):
            continue
        for user in list(node.users):
            with graph.inserting_before(user):
                wait = graph.call_function(
                    torch.ops._c10d_functional.wait_tensor.default, (node.args[0][user.args[1]],)
                )
            wait.meta = dict(user.meta)
            user.replace_all_uses_with(wait)
            graph.erase_node(user)
        graph.erase_node(node)


def waited_for(node: fx.Node) -> fx.Node:
    """What makes the value that a wait is for."""
    source = node.args[0]
    while source.op == "call_function" and source.target is operator.getitem:
        source = source.args[0]
    return source


def other_groups(nodes: list[fx.Node], causes: dict[fx.Node, str], device: torch.device) -> dict[fx.Node, str]:
    """Of the collectives without a cause those of groups that the graph's plans have no room for, and why: beside
    all-to-alls, before whose launches ranks meet on the host, of all groups but the one with the most; on GPUs of
    those behind the `groups_on_gpus` with the most. What is counted is alike on all ranks: causes are, but of
    all-to-alls, whose splits may be symbols here and numbers elsewhere."""

    def counts(n: fx.Node) -> bool:
        return n.target in COLLECTIVES and (n not in causes or is_all_to_all(n) and is_of_ark(n, device))

    ours = [n for n in nodes if counts(n)]
    times = Counter(group_name(n) for n in ours)
    if any(is_all_to_all(n) for n in ours):
        room, why = 1, "collective of a second process group in a graph with an all-to-all"
    elif device.type == "cuda":
        room = groups_on_gpus
        why = f"collective of one of {len(times)} process groups, a plan on GPUs has room for {room}"
    else:
        return {}
    # of equal numbers the first ones: alike on all ranks
    kept = {name for name, _ in times.most_common(room)}
    return {n: why for n in ours if n not in causes and group_name(n) not in kept}


def is_of_ark(node: fx.Node, device: torch.device) -> bool:
    """Whether it is a collective of a group whose ranks run plans."""
    if node.target not in COLLECTIVES:
        return False
    try:
        group_of(node, device)
    except Unsupported:
        return False
    return True


def has_exchange(nodes: list[fx.Node]) -> bool:
    """Whether other ranks take part in the step of these (native) nodes."""
    return any(n.target in COLLECTIVES for n in nodes)


def is_all_to_all(node: fx.Node) -> bool:
    return "all_to_all_single" in getattr(getattr(node.target, "_schema", None), "name", "")


def is_uneven(node: fx.Node) -> bool:
    """Whether an all-to-all has splits that differ, as far as this rank knows, or sends nothing here."""
    if not is_all_to_all(node):
        return False
    names = ("output_split_sizes", "input_split_sizes")
    given = [node.kwargs.get(name, node.args[i + 1] if i + 1 < len(node.args) else ()) for i, name in enumerate(names)]
    splits = [size_expr(s.meta["val"] if isinstance(s, fx.Node) else s) for part in given for s in part or ()]
    return any(s == 0 or sympy.simplify(s - splits[0]) != 0 for s in splits)


def ranks_meet(nodes: list[fx.Node], device: torch.device) -> bool:
    """Whether ranks meet on the host before each launch of any plan of the graph: where it has an all-to-all. Splits
    may be another rank's reason to make a new plan, or none, when this rank comes with the one that it had. They are
    not looked at: what they are here says nothing of other ranks, and all have to choose alike."""
    return any(is_all_to_all(n) and is_of_ark(n, device) for n in nodes)


def may_be_empty(nodes: list[fx.Node]) -> bool:
    """Whether a tensor without elements may stand where other ranks have some: all of them make the same plans."""
    return any(is_all_to_all(n) for n in nodes)
