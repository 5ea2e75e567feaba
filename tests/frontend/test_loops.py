"""torch.while_loop: the results, those of one launch and those of a call per iteration."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from ark_torch.records import recording
from ark_torch.versions import minor
from tests.conftest import has_extension
from tests.support.random_loops import RandomStep, below, called, looped, zero

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
STRICT = {"strict": True}


def assert_same(a, b) -> None:
    """In every bit, and of one type."""
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8)), (x - y).abs().max()


def check_random(seed: int) -> None:
    case = RandomStep(seed)
    options = {"workers": case.workers, "threads": case.threads, "strict": True}
    with torch.no_grad(), recording() as records:
        actual = looped(case.step, case.goes_on, **options)(*case.carry)
    assert all(not row.cause for record in records for row in record.loops) and records[0].loops
    with torch.no_grad():
        step = torch.compile(case.step, backend=ark, options=options)
        assert_same(actual, called(step, case.goes_on, case.carry))
        for x, y in zip(actual, called(case.step, case.goes_on, case.carry), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_random_loops_are_their_iterations(seed):
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, int(os.environ.get("ARK_RANDOM_LOOPS", 120))))  # 500: three minutes
def test_many_random_loops(seed):
    check_random(seed)


def test_values_change_places():
    def step(i, a, b, c):
        return i + 1, b.clone(), c.clone(), a + 1

    carry = (zero(), *(torch.randn(4, 8) for _ in range(3)))
    with torch.no_grad():
        assert_same(looped(step, below(5), **STRICT)(*carry), called(step, below(5), carry))


def test_a_value_that_stays():
    def step(i, a, b):
        return i + 1, a.clone(), b + a

    carry = (zero(), torch.randn(4, 8), torch.randn(4, 8))
    with torch.no_grad():
        results = looped(step, below(5), **STRICT)(*carry)
    assert_same(results, called(step, below(5), carry))
    assert results[1].data_ptr() != carry[1].data_ptr()


def test_counters_and_the_stop_flag_share_an_op():
    """Their sizes differ in dimensions of size 1; each reads what another one of them overwrites."""

    def step(i, j, k):
        return i + 1, j + i.reshape(1), k * 2 + 1

    carry = (zero(), torch.zeros(1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64))
    with torch.no_grad(), recording() as records:
        assert_same(looped(step, below(7), **STRICT)(*carry), called(step, below(7), carry))
    assert [segment.executable.stats()["num_ops"] for record in records for segment in record.segments] == [1, 1]


@pytest.mark.parametrize("limit", [0, 5])
def test_nothing_is_carried_as_a_whole(limit):
    """A table of which an iteration stores a row: the number of the iteration is carried in its place."""
    place = torch.tensor([3])

    def step(table):
        return (table.index_copy(0, place, table[3:4] + 1),)

    carry = (torch.zeros(8, 4),)
    with torch.no_grad():
        fast = looped(step, lambda table: table[3, 0] < limit, **STRICT)
        assert_same(fast(*carry), called(step, lambda table: table[3, 0] < limit, carry))


@pytest.mark.parametrize("native", [True, False])
def test_no_iteration_gives_copies(native):
    def step(i, a):
        return i + 1, a + 1 if native else torch.sort(a)[0]

    carry = (zero(), torch.randn(4, 8))
    with torch.no_grad():
        results = looped(step, below(0))(*carry)
    assert_same(results, carry)
    assert all(x.data_ptr() != y.data_ptr() for x, y in zip(results, carry))
    results[1].zero_()
    assert carry[1].any()


@pytest.mark.skipif(minor(torch.__version__) < (2, 13), reason="older Dynamo refuses bodies that write outside")
@pytest.mark.parametrize("native", [True, False], ids=["launch", "calls"])
@pytest.mark.parametrize("inside", [False, True], ids=["argument", "result"])
def test_a_tensor_from_outside_is_written(inside, native):
    def ordered(row):
        return row if native else torch.sort(row)[0]

    def run(table, row):
        table = table * 2 if inside else table

        def step(i, a):
            table.index_copy_(0, i.reshape(1), a)
            return i + 1, ordered(torch.tanh(a + table.sum(0, keepdim=True)))

        i, last = torch.while_loop(lambda i, a: (i < 5) & (table[0, 0] < 9), step, (zero(), row))
        return i, last, table + 1

    def plainly(table, row):
        table = table * 2 if inside else table
        for i in range(5):
            table.index_copy_(0, torch.tensor([i]), row)
            row = ordered(torch.tanh(row + table.sum(0, keepdim=True)))
        return torch.tensor(5), row, table + 1

    inputs = torch.randn(8, 4), torch.randn(1, 4)
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        actual = torch.compile(run, backend=ark, fullgraph=True, options={"strict": native})(*mine)
        torch.testing.assert_close(actual, plainly(*theirs))
    torch.testing.assert_close(mine, theirs)


def test_attention_in_a_body_is_native():
    def step(i, a):
        heads = a.reshape(1, 2, 4, 8)
        return i + 1, F.scaled_dot_product_attention(heads, heads, heads).reshape(8, 8)

    carry = (zero(), torch.randn(8, 8))
    with torch.no_grad(), recording() as records:
        actual = looped(step, below(3), **STRICT)(*carry)
    torch.testing.assert_close(actual, called(step, below(3), carry))
    (launch,) = [s for s in records[0].segments if any("attention" in n.name for n in s.nodes)]
    assert launch.executable.stats()["num_ops"] < 8


@pytest.mark.parametrize("native", [True, False])
def test_dynamic_sizes(native):
    def step(i, a, b):
        b = b.sum(0, keepdim=True).expand_as(b) / 10 + a
        return i + 1, torch.tanh(a + 1) if native else torch.sort(a)[0], b

    function = torch.compile(lambda *c: torch.while_loop(below(4), step, c), backend=ark, dynamic=True)
    with torch.no_grad(), recording() as records:
        for rows in (5, 9, 3):
            carry = (zero(), torch.randn(rows, 8), torch.randn(rows, 8))
            torch.testing.assert_close(function(*carry), called(step, below(4), carry))
    assert len([r for r in records if r.loops]) == 1
    assert bool(next(r for r in records if r.loops).loops[0].cause) != native


@pytest.mark.parametrize("options", [{}, {"dynamic": True}])
def test_gradients(options):
    weight, x = torch.randn(8, 8), torch.randn(4, 8)

    def run(weight, x):
        return torch.while_loop(below(4), lambda i, a: (i + 1, torch.tanh(a @ weight)), (zero(), x))[1]

    def plainly(weight, x):
        for _ in range(4):
            x = torch.tanh(x @ weight)
        return x

    found = []
    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # torch's own graph reads a number off a tensor
        for function in (torch.compile(run, backend=ark, **options), plainly):
            leaves = [t.clone().requires_grad_() for t in (weight, x)]
            function(*leaves).square().sum().backward()
            found.append([t.grad for t in leaves])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_other_shapes_are_refused():
    with torch.no_grad(), pytest.raises(RuntimeError, match="same metadata"):
        looped(lambda i, a: (i + 1, a[:2] * 2), below(3))(zero(), torch.randn(4, 8))
