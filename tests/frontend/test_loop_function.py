"""ark_torch.loop: equal to the step called n times, one launch where the step is one plan, errors that say what
came."""

from __future__ import annotations

import logging

import pytest
import torch

from ark_torch.errors import IndexOutOfRange, Unsupported
from ark_torch.records import recording
from ark_torch.versions import minor
from tests.conftest import has_extension
from tests.support.random_loops import RandomStep

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
if has_extension():
    import ark_torch
    from ark_torch.looped import run_loop

CARRY = (torch.zeros((), dtype=torch.int64), torch.linspace(-1, 1, 32).reshape(4, 8))
WEIGHT = torch.eye(8) * 0.75


def counting(i, a):
    return i + 1, torch.tanh(a @ WEIGHT) + 0.1


def sorting(i, a):
    return i + 1, torch.sort(a * 2)[0] - 1


def reading(i, a):
    """Dynamo makes no loop of it."""
    torch._dynamo.graph_break()
    return i + 1, a * 2


def plainly(step, n, carry):
    for _ in range(n):
        carry = step(*carry)
    return carry


def copies(carry) -> tuple:
    return tuple(x.clone() for x in carry)


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("step", [counting, sorting, reading])
def test_it_is_the_step_n_times(step, n):
    before = copies(CARRY)
    results = ark_torch.loop(step, n, CARRY)
    torch.testing.assert_close(results, plainly(step, n, CARRY))
    assert all(x.data_ptr() != y.data_ptr() for x, y in zip(results, CARRY))
    torch.testing.assert_close(CARRY, before, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(12))
def test_bits_are_those_of_the_compiled_step(seed):
    case = RandomStep(seed)
    with torch.no_grad():
        step = torch.compile(case.step, backend="ark")
        expected = plainly(step, 5, case.carry)
        for x, y in zip(ark_torch.loop(case.step, 5, case.carry, strict=True), expected, strict=True):
            assert torch.equal(x, y)


def test_another_n_compiles_nothing():
    with recording() as records:
        for n in (3, 1000, 0, 2):
            assert ark_torch.loop(counting, n, CARRY)[0].item() == n
    assert len(records) <= 1 and all(not row.cause for record in records for row in record.loops)


def test_every_step_is_one_launch():
    """More of them than Dynamo compiles of one function."""
    with recording() as records:
        for k in range(12):
            ark_torch.loop(lambda a, k=k: (a * k,), 3, (torch.ones(3),), strict=True)
    assert len(records) == 12 and all(len(record.loops) == 1 for record in records)


def test_dicts_are_carried():
    def step(state, table):
        return {"new": state["new"] + state["old"], "old": state["new"]}, [table[0] + 1, table[1].t()]

    carry = {"new": torch.ones(3), "old": torch.zeros(3)}, [torch.zeros(2), torch.arange(4.0).reshape(2, 2)]
    torch.testing.assert_close(ark_torch.loop(step, 7, carry, strict=True), plainly(step, 7, carry))


ALIASES = {
    "as they came": lambda a, b: (a, b + 1),
    "swapped": lambda a, b: (b, a),
    "views": lambda a, b: (b.t(), a.reshape(2, 8).view(4, 4)),
    "one tensor twice": lambda a, b: ((c := a + b), c),
    "flipped onto itself": lambda a, b: (a.flip(0), b.roll(1, 0)),
}


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("n", [1, 4, 5])
def test_results_that_alias_the_carry(name, n):
    carry = torch.arange(16.0).reshape(4, 4), torch.randn(4, 4)
    first, second = ark_torch.loop(ALIASES[name], n, carry, strict=True)
    torch.testing.assert_close((first, second), plainly(ALIASES[name], n, carry))
    assert first.data_ptr() != second.data_ptr()


def test_a_carry_of_views_of_one_tensor():
    table = torch.randn(2, 4, 8)
    step = lambda a, b: (a + b, b * 2)
    torch.testing.assert_close(ark_torch.loop(step, 3, tuple(table), strict=True), plainly(step, 3, tuple(table)))


@pytest.mark.parametrize("step", [counting, sorting])
def test_a_carry_that_may_be_written(step):
    """One launch leaves its values there; calls do not, and a view with gaps is never written."""
    carry = copies(CARRY)
    results = run_loop(step, 3, carry, None, strict=False, in_place=True)
    torch.testing.assert_close(results, plainly(step, 3, CARRY))
    in_place = [a.data_ptr() == b.data_ptr() for a, b in zip(carry, results)]
    assert in_place == [step is counting] * 2
    torch.testing.assert_close(carry, results if step is counting else CARRY)
    gaps = CARRY[0].clone(), torch.randn(8, 4).t()
    before = copies(gaps)
    results = run_loop(step, 3, gaps, None, strict=False, in_place=True)
    torch.testing.assert_close(results, plainly(step, 3, before))
    assert torch.equal(gaps[1], before[1])


@pytest.mark.parametrize("step", [counting, sorting, reading])
def test_until_is_asked_after_each_iteration(step):
    assert ark_torch.loop(step, 100, CARRY, until=lambda i, a: i >= 5)[0].item() == 5
    assert ark_torch.loop(step, 3, CARRY, until=lambda i, a: i >= 5)[0].item() == 3
    assert ark_torch.loop(step, 9, CARRY, until=lambda i, a: i >= 0)[0].item() == 1


@pytest.mark.skipif(minor(torch.__version__) < (2, 13), reason="older Dynamo refuses bodies that write outside")
def test_a_table_from_outside_is_written():
    table = torch.zeros(6, 8)

    def step(i, a):
        table.index_copy_(0, i.reshape(1), a[:1])
        return counting(i, a)

    ark_torch.loop(step, 5, CARRY, strict=True)
    rows = [plainly(counting, n, CARRY)[1][0] for n in range(5)]
    torch.testing.assert_close(table, torch.stack([*rows, torch.zeros(8)]))


def test_a_tensor_from_outside_is_written_once_per_iteration():
    """Also by ops that read nothing of the carry."""
    count, table = torch.zeros(3), torch.zeros(2, 3)

    def step(a):
        count.add_(1)
        table[1].add_(2)
        return (a + count,)

    (result,) = ark_torch.loop(step, 3, (torch.zeros(3),))
    assert result.tolist() == [6, 6, 6] and count.tolist() == [3, 3, 3] and table[1].tolist() == [6, 6, 6]


def test_a_step_that_runs_compiled_code(caplog):
    """A compiled function, and a loop of its own. The check of the step's results, without values, runs neither."""
    inner = torch.compile(lambda a: a * 2 + 1, backend="ark")
    x = torch.arange(4.0)
    for step in (lambda a: (inner(a),), lambda a: ark_torch.loop(lambda b: (b * 2 + 1,), 1, (a,))):
        torch.testing.assert_close(ark_torch.loop(step, 3, (x,)), (x * 8 + 7,))
    assert "arguments refused" not in caplog.text


@pytest.mark.parametrize("last", [lambda a: a, lambda a: torch.sort(a)[0]], ids=["launch", "calls"])
def test_an_error_names_the_iteration(last):
    step = lambda i, a: (i + 1, last(a).index_copy(0, i.reshape(1), a[:1]))
    with pytest.raises(IndexError, match="in iteration 4") as raised:
        ark_torch.loop(step, 9, CARRY)
    assert isinstance(raised.value, IndexOutOfRange) or last(torch.tensor([2.0, 1.0]))[0] == 1


MISFITS = {
    "shape": (lambda i, a: (i + 1, a[:2]), r"carry\[1\] as float32 \[2, 8\] on cpu, expected float32 \[4, 8\] on cpu"),
    "dtype": (lambda i, a: (i * 0.5, a), r"carry\[0\] as float32 \[\] on cpu, expected int64 \[\] on cpu"),
    "device": (lambda i, a: (i, a.to("meta")), r"carry\[1\] as float32 \[4, 8\] on meta, expected .* on cpu"),
    "count": (lambda i, a: (i,), r"the step returned \('int64 \[\] on cpu',\), expected \('int64"),
    "structure": (lambda i, a: {"i": i, "a": a}, "the step returned {'i': 'int64"),
    "number": (lambda i, a: (1, a), r"carry\[0\] as 1, expected int64 \[\] on cpu"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_step_that_does_not_fit(name):
    step, message = MISFITS[name]
    with pytest.raises(ValueError, match=message):
        ark_torch.loop(step, 3, CARRY)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="n is -1, expected 0"):
        ark_torch.loop(counting, -1, CARRY)
    with pytest.raises(TypeError, match="n is 2.5, expected an int"):
        ark_torch.loop(counting, 2.5, CARRY)
    with pytest.raises(TypeError, match="carry is a Tensor, expected a tuple"):
        ark_torch.loop(counting, 1, CARRY[1])
    with pytest.raises(TypeError, match=r"carry\[1\]\['x'\] is 3 \(int\), expected a tensor"):
        ark_torch.loop(counting, 1, (CARRY[0], {"x": 3}))
    with pytest.raises(ValueError, match="no tensors"):
        ark_torch.loop(counting, 1, ())
    with pytest.raises(ValueError, match=r"carry\[1\] requires gradients"):
        ark_torch.loop(counting, 1, (CARRY[0], CARRY[1].clone().requires_grad_()))
    for until in (lambda i, a: a > 0, lambda i, a: i, lambda i, a: True):
        with pytest.raises(ValueError, match="until returned .*, expected a bool tensor of one element"):
            ark_torch.loop(counting, 2, CARRY, until=until)


@pytest.mark.parametrize("step, cause", [(sorting, "aten.sort.default"), (reading, "graph_break")])
def test_calls_are_logged_once_and_refused_under_strict(step, cause, caplog):
    torch.compiler.reset()
    with caplog.at_level(logging.WARNING, "ark"):
        for _ in range(2):
            ark_torch.loop(step, 2, CARRY)
    lines = [r.message for r in caplog.records if "once per iteration" in r.message]
    assert len(lines) == 1 and cause in lines[0]
    assert "higher order operator" not in lines[0], "expected what Dynamo met, not what it says of every loop"
    with pytest.raises(Unsupported, match=f"strict: loop of {step.__name__}: .*{cause}") as refused:
        ark_torch.loop(step, 2, CARRY, strict=True)
    assert str(refused.value) == f"strict: {refused.value.cause}"


def test_the_error_of_a_step_is_the_cause():
    def step(i, a):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine"):
        ark_torch.loop(step, 2, CARRY)
    with pytest.raises(Unsupported, match="strict: loop of step: .*ValueError.*mine"):
        ark_torch.loop(step, 2, CARRY, strict=True)


def test_a_step_that_writes_its_carry():
    carry = (torch.zeros(3),)
    assert ark_torch.loop(lambda a: (a.add_(1),), 3, carry)[0].tolist() == [3, 3, 3]
    assert carry[0].tolist() == [0, 0, 0]


def test_a_module_is_a_step():
    class Layer(torch.nn.Linear):
        def forward(self, x):
            return (torch.relu(super().forward(x)),)

    layer, x = Layer(8, 8), torch.randn(4, 8)
    (result,) = ark_torch.loop(layer, 3, (x,), strict=True)
    assert not result.requires_grad
    torch.testing.assert_close(result, plainly(layer, 3, (x,))[0].detach())


def test_a_step_without_a_hash():
    class Scaled(dict):
        def __call__(self, a):
            return (a * self["factor"],)

    assert ark_torch.loop(Scaled(factor=torch.tensor(2.0)), 3, (torch.ones(3),))[0].tolist() == [8, 8, 8]


def test_a_loop_in_a_compiled_function():
    function = torch.compile(lambda a: ark_torch.loop(counting, 4, (CARRY[0], a * 2))[1] + 1, backend="ark")
    expected = plainly(counting, 4, (CARRY[0], CARRY[1] * 2))[1] + 1
    torch.testing.assert_close(function(CARRY[1]), expected)
