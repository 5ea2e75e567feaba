"""What has an effect on a tensor comes after its earlier readers and before its later ones, though nobody uses its
result: custom ops that write their arguments, whole or through views, as AOTAutograd hands them over and untouched."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ark_torch.backend import ark
from ark_torch.compile import CompileOptions, compile_graph
from ark_torch.records import GraphRecord


@torch.library.custom_op("ark_order::bump", mutates_args=("x",))
def bump(x: torch.Tensor, by: float) -> None:
    x.add_(by)


@torch.library.custom_op("ark_order::take", mutates_args=("x",))
def take(x: torch.Tensor) -> torch.Tensor:
    """Doubles x, and returns what it was."""
    before = x.clone()
    x.mul_(2)
    return before


take.register_fake(torch.empty_like)


@torch.library.custom_op("ark_order::swap", mutates_args=("x", "y"))
def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


LIBRARY = torch.library.Library("ark_order", "FRAGMENT")
LIBRARY.define("add_(Tensor(a!) x, *, Tensor y) -> Tensor(a!)")
LIBRARY.impl("add_", lambda x, *, y: x.add_(y), "CPU")
LIBRARY.impl("add_", lambda x, *, y: x, "Meta")
LIBRARY.define("all_(Tensor(a!)[] xs) -> Tensor(a!)[]")
LIBRARY.impl("all_", lambda xs: [x.add_(i + 1) for i, x in enumerate(xs)], "CPU")
LIBRARY.impl("all_", lambda xs: list(xs), "Meta")
LIBRARY.define("pair_(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!), Tensor(b!))")
LIBRARY.impl("pair_", lambda x, y: (x.add_(1), y.mul_(3)), "CPU")
LIBRARY.impl("pair_", lambda x, y: (x, y), "Meta")


def as_it_is(body, *inputs):
    """The callable of a graph that still has the ops that write, as no pass before ark has taken them away."""
    gm = make_fx(body, tracing_mode="fake")(*inputs)
    assert any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in gm.graph.nodes)
    call = compile_graph(gm, CompileOptions(), GraphRecord("graph", "inference"))
    assert call.record.segments, "nothing runs natively"
    return lambda *arguments: call(list(arguments))


def compiled(body, *inputs):
    return torch.compile(body, backend=ark, fullgraph=True)


MAKERS = {"aot": compiled, "as_it_is": as_it_is}


def check(make, body, *inputs):
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        call = MAKERS[make](body, *[x.clone() for x in inputs])
        for _ in range(2):
            torch.testing.assert_close(list(call(*mine)), list(body(*theirs)))
            torch.testing.assert_close(mine, theirs)


READS = {
    "whole": lambda x: x * x,
    "row": lambda x: x[1].exp() + 1,
    "flat": lambda x: (x.view(-1) * 3).sum(),
}
WRITES = {
    "bump": lambda x: bump(x, 1.0),
    "row": lambda x: bump(x[1], 2.0),
    "take": lambda x: take(x),
    "column": lambda x: bump(x.t()[0], 3.0),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("order", list(itertools.permutations(WRITES, 2)), ids="-".join)
def test_reads_around_two_writes(executor, make, order):
    """Each read before, between and after, of an argument and of what the graph made."""
    first, second = (WRITES[name] for name in order)

    def body(x):
        made, results = x + 1, []
        for write in (lambda t: None, first, second):
            for t in (x, made):
                write(t)
                results += [read(t) for read in READS.values()]
        return results

    check(make, body, torch.randn(3, 4))


@pytest.mark.parametrize("make", MAKERS)
def test_views_made_before_the_write(executor, make):
    def body(x):
        row, flat, upper = x[1], x.view(-1), x.split(1)[0]
        old = flat * 2
        bump(x, 1.0)
        return old, row * row, flat.exp(), upper + 1

    check(make, body, torch.randn(3, 4))


@pytest.mark.parametrize("make", MAKERS)
def test_two_arguments_written(executor, make):
    def body(x, y):
        a, b = x * 2, y * 3
        swap(x, y)
        c, d = x * 2, y * 3
        swap(y, x)
        return a, b, c, d, x + y, x - 2 * y

    check(make, body, torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("make", MAKERS)
def test_a_write_after_the_last_read(executor, make):
    def body(x):
        y = torch.sort(x, 1)[0] * 2
        bump(x, 1.0)
        return (y,)

    check(make, body, torch.randn(3, 4))


def test_an_argument_by_name(executor):
    def body(x, y):
        a = y * 2
        torch.ops.ark_order.add_(x=x, y=y)
        return a, x * x, y * 3

    check("as_it_is", body, torch.randn(3, 4), torch.randn(3, 4))


def test_a_list_written(executor):
    """What is picked of the result is the argument: written later, it is another for who reads the argument."""

    def body(x, y):
        a = x * y
        _, second = torch.ops.ark_order.all_([x, y])
        b = y * 2
        bump(second, 1.0)
        return a, x * 2, b, y * 3

    check("as_it_is", body, torch.randn(3, 4), torch.randn(3, 4))


def test_two_results_that_are_arguments(executor):
    def body(x, y):
        first, second = torch.ops.ark_order.pair_(x, y)
        a = x * y
        bump(second, 1.0)
        b = x * y
        bump(first, 1.0)
        return a, b, x * 2 - y

    check("as_it_is", body, torch.randn(3, 4), torch.randn(3, 4))


SEEN: list[float] = []
LIBRARY.define("tell(Tensor x) -> ()")
LIBRARY.impl("tell", lambda x: SEEN.append(float(x.sum())), "CPU")
LIBRARY.impl("tell", lambda x: None, "Meta")
torch.library._register_effectful_op(torch.ops.ark_order.tell.default, torch.library.EffectType.ORDERED)


def test_effects_of_no_result(executor):
    """Told in order, each between the writes that it stands between."""

    def body(x):
        y = x * 2
        torch.ops.ark_order.tell(y)
        x.add_(1)
        torch.ops.ark_order.tell(x)
        bump(x, 1.0)
        torch.ops.ark_order.tell(x[0])
        return x + y

    call = torch.compile(body, backend=ark, fullgraph=True)
    with torch.no_grad():
        call(torch.ones(3, 4))
        SEEN.clear()
        actual = call(torch.ones(3, 4))
        mine = list(SEEN)
        SEEN.clear()
        torch.testing.assert_close(actual, body(torch.ones(3, 4)))
    assert mine == SEEN == [24.0, 24.0, 12.0]
