"""Which process groups a graph's plans have room for."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from tests.conftest import has_extension

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def summed_over(*names: str) -> list[fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for name in names:
        x = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", name))
    return list(graph.nodes)[1:]


def left_out(nodes: list[fx.Node], device: str) -> tuple[set[str], set[str]]:
    """Groups, and why."""
    from ark_torch import groups, lower_collective  # noqa: F401  (which collectives there are)

    causes = groups.other_groups(nodes, {}, torch.device(device))
    return {groups.group_name(n) for n in causes}, set(causes.values())


@pytest.fixture
def all_on_gpus(monkeypatch):
    from ark_torch import groups

    monkeypatch.setattr(groups, "groups_on_gpus", groups.MOST_GROUPS)


def test_several_groups(all_on_gpus):
    nodes = summed_over("a", "b", "a", "c")
    assert left_out(nodes, "cpu") == left_out(nodes, "cuda") == (set(), set())


def test_on_gpus_the_group_with_the_most():
    nodes = summed_over("a", "b", "b")
    assert left_out(nodes, "cpu") == (set(), set())
    assert left_out(nodes, "cuda") == (
        {"a"},
        {"collective of one of 2 process groups, a plan on GPUs has room for 1"},
    )


def test_more_than_a_launch_has_room_for(all_on_gpus):
    names = "abcdefghij"
    nodes = summed_over(*names, *names[2:])
    assert left_out(nodes, "cpu") == (set(), set())
    assert left_out(nodes, "cuda") == (
        {"a", "b"},
        {"collective of one of 10 process groups, a plan on GPUs has room for 8"},
    )
    assert left_out(summed_over(*names), "cuda")[0] == {"i", "j"}  # of equal numbers the first ones


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_beside_an_all_to_all(device):
    nodes = summed_over("a", "b", "b")
    op = torch.ops._c10d_functional.all_to_all_single.default
    nodes.append(nodes[0].graph.call_function(op, (nodes[-1], [1, 1], [1, 1], "c")))
    why = "collective of a second process group in a graph with an all-to-all"
    assert left_out(nodes, device) == ({"a", "c"}, {why})


def test_what_is_native_on_no_rank_takes_no_room():
    """Three collectives of a type that plans do not have, beside an all-to-all of another group."""
    from ark_torch import groups, lower_collective  # noqa: F401

    nodes = summed_over("a", "a", "a", "b")
    op = torch.ops._c10d_functional.all_to_all_single.default
    nodes.append(nodes[0].graph.call_function(op, (nodes[-1], [1, 1], [1, 1], "b")))
    causes = dict.fromkeys(nodes[:3], "a type")
    assert groups.other_groups(nodes, causes, torch.device("cpu")) == {}
