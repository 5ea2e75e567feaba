"""What becomes of a torch.while_loop: one launch, or a call of the compiled body per iteration, logged, explained,
refused under strict; errors inside."""

from __future__ import annotations

import logging

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.errors import IndexOutOfRange
from ark_torch.explain import explain
from ark_torch.records import recording
from tests.conftest import has_extension
from tests.support.random_loops import below, called, looped, zero

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
STRICT = {"strict": True}


def rows_of(found) -> list:
    return [row for graph in found.graphs for row in graph.loops]


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


def nested(i, a):
    return i + 1, torch.while_loop(below(2), lambda j, b: (j + 1, b * 2), (zero(), a))[1]


CAUSES = {
    "an ATen op": (sorting, "aten.sort"),
    "nested": (nested, "a loop in a loop"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_strict_refuses_calls(case):
    step, cause = CAUSES[case]
    with torch.no_grad(), pytest.raises(Exception, match=f"strict: .*a while_loop once per iteration: {cause}"):
        looped(step, below(3), **STRICT)(zero(), torch.randn(4, 8))


def test_random_numbers_of_eager():
    def noise(i, a):
        return i + 1, a + torch.rand_like(a)

    torch.manual_seed(2)
    wanted = sum(torch.rand(4, 8) for _ in range(3))
    torch.manual_seed(2)
    with torch.no_grad(), recording() as records:
        actual = looped(noise, below(3), fallback_random=True)(zero(), torch.zeros(4, 8))[1]
    torch.testing.assert_close(actual, wanted)
    causes = [row.cause for record in records for row in record.loops]
    assert causes == ["eager's random numbers in a loop (fallback_random)"]


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
