"""Several iterations of a graph in one launch of the host target: equal to as many calls, errors, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from tests.support.graph_builder import add_relu
from tests.support.loop_builder import RandomLoop, row_keeper

_C = pytest.importorskip("ark_torch._C")
FOREVER = 2**62


def host(graph: str, **options):
    return _C.CompiledGraph(graph, "host", 0, {"workers": 6, "threads": 2} | options)


def copies(inputs: list) -> list:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def assert_same(a: list, b: list) -> None:
    """In every bit."""
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8)) if isinstance(x, torch.Tensor) else x == y


def first(wanted) -> RandomLoop:
    return next(loop for loop in map(RandomLoop, range(100)) if wanted(loop))


@pytest.mark.parametrize("workers, threads", [(1, 1), (8, 2), (132, 4)])
@pytest.mark.parametrize("seed", range(20))
def test_random_loops_are_their_iterations(seed, workers, threads):
    loop = RandomLoop(seed)
    graph = host(loop.text, workers=workers, threads=threads, seed=seed)
    for most in (1, 2, 9):
        looped, called = copies(loop.inputs), copies(loop.inputs)
        outputs, done = graph.loop(looped, most)
        assert done == (min(most, 6) if loop.has_flag else most)
        for _ in range(done):
            expected = graph(called)
        assert_same(outputs, expected)
        assert_same(looped, called)
        assert all(torch.isfinite(output).all() for output in outputs)


def test_no_iteration():
    loop = RandomLoop(0)
    seen = copies(loop.inputs)
    outputs, done = host(loop.text).loop(seen, 0)
    assert done == 0 and not any(output.any() for output in outputs)
    assert_same(seen, loop.inputs)


def test_a_flag_that_stops_before_the_first_iteration():
    loop = first(lambda loop: loop.has_flag)
    loop.inputs[loop.graph["loop"]["go"]][0] = False
    seen = copies(loop.inputs)
    outputs, done = host(loop.text).loop(seen, FOREVER)
    assert done == 0 and not any(output.any() for output in outputs)
    assert_same(seen, loop.inputs)


def keeper_inputs(columns: int) -> list[torch.Tensor]:
    return [torch.zeros(1, dtype=torch.int64), torch.zeros(20, columns), torch.randn(1, columns)]


def test_an_index_error_names_its_iteration():
    graph, inputs = host(row_keeper(20, 32)), keeper_inputs(32)
    called = copies(inputs)
    for begin, iteration in ((0, 20), (17, 3), (20, 0)):
        inputs[0].fill_(begin)
        with pytest.raises(
            ValueError, match=f"index 20 is out of range for size 20 in op .*, in iteration {iteration}$"
        ):
            graph.loop(inputs, 100)
        assert inputs[0].item() == 21  # that iteration was the last one
    for _ in range(20):
        graph(called)
    inputs = [torch.zeros_like(inputs[0]), torch.zeros_like(inputs[1]), called[2]]
    assert graph.loop(inputs, 20)[1] == 20  # and the graph goes on


def test_carried_inputs_at_odd_addresses():
    graph, inputs = host(row_keeper(20, 32)), keeper_inputs(32)
    odd = torch.empty(33)[1:].view(1, 32).copy_(inputs[2])
    assert odd.data_ptr() % 16
    expected, _ = graph.loop(inputs, 20)
    outputs, _ = graph.loop([torch.zeros(1, dtype=torch.int64), torch.zeros(20, 32), odd], 20)
    assert_same(outputs, expected)
    assert torch.equal(odd, inputs[2])


@pytest.fixture
def interruptible():
    """A process that a shell has started in the background ignores Ctrl-C, and Python leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_whole_iterations(interruptible):
    loop = first(lambda loop: not loop.has_flag and "cache" not in loop.text)
    for threads in (1, 2):
        graph, seen = host(loop.text, threads=threads), copies(loop.inputs)
        timer = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            graph.loop(seen, FOREVER)
        timer.join()
        done, again = seen[0].item(), copies(loop.inputs)
        assert done > 0
        assert graph.loop(again, done)[1] == done
        assert_same(seen, again)


def test_what_is_no_loop_is_refused():
    with pytest.raises(ValueError, match="is no loop: it carries nothing"):
        host(add_relu([4])).loop([torch.zeros(4), torch.zeros(4)], 2)
    with pytest.raises(ValueError, match="-1 iterations"):
        host(row_keeper(20, 32)).loop(keeper_inputs(32), -1)
