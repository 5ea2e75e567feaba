"""torch.while_loop: one launch for all iterations where the body is native, else a call of the compiled body for each;
right, explained, refused under strict."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from ark_torch.errors import IndexOutOfRange
from ark_torch.explain import explain
from ark_torch.records import recording
from tests.conftest import has_extension
from tests.support.random_loops import RandomStep, called

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
STRICT = {"strict": True}


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


def below(limit: int):
    return lambda i, *carried: i < limit


def looped(step, goes_on, **options):
    """The loop as one compiled function of its carry."""
    return torch.compile(
        lambda *carry: torch.while_loop(goes_on, step, carry), backend=ark, fullgraph=True, options=options
    )


def rows_of(found) -> list:
    return [row for graph in found.graphs for row in graph.loops]


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
@pytest.mark.parametrize("seed", range(60, 500))
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


@pytest.mark.parametrize("inside", [False, True], ids=["argument", "result"])
def test_a_tensor_from_outside_is_written(inside):
    def run(table, row):
        table = table * 2 if inside else table

        def step(i, a):
            table.index_copy_(0, i.reshape(1), a)
            return i + 1, torch.tanh(a + table.sum(0, keepdim=True))

        i, last = torch.while_loop(lambda i, a: (i < 5) & (table[0, 0] < 9), step, (zero(), row))
        return i, last, table + 1

    def plainly(table, row):
        table = table * 2 if inside else table
        for i in range(5):
            table.index_copy_(0, torch.tensor([i]), row)
            row = torch.tanh(row + table.sum(0, keepdim=True))
        return torch.tensor(5), row, table + 1

    inputs = torch.randn(8, 4), torch.randn(1, 4)
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        actual = torch.compile(run, backend=ark, fullgraph=True, options=STRICT)(*mine)
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


def keeping(i, table, row):
    """Row i of a table: out of range from iteration 4 on."""
    return i + 1, table.index_copy(0, i.reshape(1), row), row * 2


def keeping_sorted(i, table, row):
    i, table, row = keeping(i, table, row)
    return i, table, torch.sort(row)[0]


@pytest.mark.parametrize("step", [keeping, keeping_sorted])
def test_an_index_error_names_its_iteration(step):
    carry = (zero(), torch.zeros(4, 8), torch.ones(1, 8))
    function = looped(step, below(9))
    with torch.no_grad():
        with pytest.raises(IndexError, match="in iteration 4") as raised:
            function(*carry)
        assert isinstance(raised.value, IndexOutOfRange) or step is keeping_sorted
        assert carry[0].item() == 0 and not carry[1].any()
        assert function(torch.tensor(9), *carry[1:])[0].item() == 9  # and the loop goes on


def sorting(i, a):
    return i + 1, torch.sort(a * 2)[0] - 1


def test_a_body_with_an_aten_op_is_called_per_iteration(caplog):
    carry = (zero(), torch.randn(4, 8))
    torch._dynamo.reset()
    with torch.no_grad(), caplog.at_level(logging.WARNING, "ark"):
        found = explain(looped(sorting, below(5)), *carry)
        torch.testing.assert_close(looped(sorting, below(5))(*carry), called(sorting, below(5), carry))
    (row,) = rows_of(found)
    assert row.cause == "aten.sort.default"
    assert f"{row.name}: a call per iteration: aten.sort.default" in str(found)
    assert any(graph.name.endswith("_body") and graph.segments for graph in found.graphs)  # the rest of it is native
    lines = [r.message for r in caplog.records if "once per iteration: aten.sort.default" in r.message]
    assert len(lines) == 1 and "torch.sort(a * 2)" in lines[0]


def test_one_launch_is_explained():
    with torch.no_grad():
        found = explain(looped(lambda i, a: (i + 1, a * 2), below(5)), zero(), torch.randn(4, 8))
    (row,) = rows_of(found)
    assert not row.cause and f"{row.name}: one launch" in str(found) and not found.fallbacks


def noise(i, a):
    return i + 1, torch.rand_like(a)


def nested(i, a):
    return i + 1, torch.while_loop(below(2), lambda j, b: (j + 1, b * 2), (zero(), a))[1]


CAUSES = {
    "an ATen op": (sorting, "aten.sort"),
    "noise": (noise, "random numbers"),
    "nested": (nested, "a loop in a loop"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_strict_refuses_calls(case):
    step, cause = CAUSES[case]
    with torch.no_grad(), pytest.raises(Exception, match=f"strict: .*a while_loop once per iteration: {cause}"):
        looped(step, below(3), **STRICT)(zero(), torch.randn(4, 8))


def test_random_numbers_differ_in_every_iteration():
    def step(i, rows):
        return i + 1, rows.index_copy(0, i.reshape(1), torch.rand(1, 8))

    with torch.no_grad():
        rows = looped(step, below(4))(zero(), torch.zeros(4, 8))[1]
    assert len({tuple(row.tolist()) for row in rows}) == 4


def test_nested_loops():
    with torch.no_grad(), recording() as records:
        i, a = looped(nested, below(3))(zero(), torch.ones(4, 8))
    assert i.item() == 3 and torch.equal(a, torch.full((4, 8), 64.0))
    assert [row.cause for record in records for row in record.loops] == ["", "a loop in a loop"]


def test_a_number_is_carried():
    def run(x):
        return torch.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, a + i), (0, x))

    with torch.no_grad():
        i, a = torch.compile(run, backend=ark, fullgraph=True)(torch.zeros(3))
    assert i == 4 and torch.equal(a, torch.full((3,), 6.0))


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
