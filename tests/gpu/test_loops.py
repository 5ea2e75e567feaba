"""torch.while_loop on a GPU: the values of the compiled step called one by one, whichever way the iterations run."""

from __future__ import annotations

import pytest
import torch

import ark_torch
from ark_torch.backend import ark
from ark_torch.errors import IndexOutOfRange
from tests.support.random_loops import RandomStep, below, called, looped

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OPTIONS: dict = {}  # strict refuses loops on a GPU as long as each of their iterations is a call


@pytest.fixture(autouse=True)
def without_gradients():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64, device=DEVICE)


def values(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), device=DEVICE).reshape(shape)


def assert_same(a, b) -> None:
    """In every bit, and of one type."""
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8)), (x - y).abs().max()


def check(step, goes_on, carry, **options) -> tuple:
    """The loop, and the compiled step called one by one: equal in every bit."""
    results = looped(step, goes_on, **options)(*carry)
    assert_same(results, called(torch.compile(step, backend=ark, options=options), goes_on, carry))
    return results


@pytest.mark.parametrize("seed", range(20))
def test_random_loops_are_their_iterations(seed):
    case = RandomStep(seed)
    case.weights = [weight.to(DEVICE) for weight in case.weights]
    carry = tuple(value.to(DEVICE) for value in case.carry)
    results = check(case.step, case.goes_on, carry, **OPTIONS)
    for x, y in zip(results, called(case.step, case.goes_on, carry), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_values_change_places():
    step = lambda i, a, b, c: (i + 1, b.clone(), c.clone(), a + 1)
    check(step, below(5), (zero(), values(4, 8), values(4, 8) * 2, values(4, 8) * 3), **OPTIONS)


def test_one_op_is_all_of_an_iteration():
    """The last op of an iteration is the first one of the next: what is kept of its activation is of the one before."""
    weight = (values(64, 64) / 8).to(torch.bfloat16)
    step = lambda i, a: (i + 1, torch.tanh(a @ weight.t()))
    check(step, below(40), (zero(), values(1, 64).to(torch.bfloat16)), **OPTIONS)


def test_500_steps():
    weight = torch.eye(8, device=DEVICE) * 0.75
    results = check(lambda i, a: (i + 1, torch.tanh(a @ weight) + 0.1), below(500), (zero(), values(4, 8)), **OPTIONS)
    assert results[0].item() == 500


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_few_iterations(limit):
    carry = zero(), values(4, 8)
    results = check(lambda i, a: (i + 1, a * 2), below(limit), carry, **OPTIONS)
    assert results[0].item() == limit and results[1].data_ptr() != carry[1].data_ptr()


def test_values_end_the_loop():
    goes_on = lambda i, a: (i < 9) & (a.amax() < 6)
    assert check(lambda i, a: (i + 1, a * 2), goes_on, (zero(), values(4, 8)), **OPTIONS)[0].item() == 3
    assert check(lambda i, a: (i + 1, a * 2), goes_on, (zero(), values(4, 8) * 7), **OPTIONS)[0].item() == 0


@pytest.mark.xfail(torch.cuda.is_available(), reason="fails where torch is 2.11; the cause is not known", strict=False)
def test_a_table_is_written_in_place():
    table = torch.zeros(8, 16, device=DEVICE)

    def step(i, a):
        table.index_copy_(0, i.reshape(1), a)
        return i + 1, torch.tanh(a + table.sum(0, keepdim=True))

    results = looped(step, below(5))(zero(), values(1, 16))
    written = table.clone()
    table.zero_()
    plain = called(step, below(5), (zero(), values(1, 16)))
    torch.testing.assert_close((*results, written), (*plain, table), rtol=1e-5, atol=1e-5)
    assert written[:5].any(1).all() and not written[5:].any()


def keeping(i, table, row):
    """Row i of a table: out of range from iteration 3 on."""
    return i + 1, table.index_copy(0, i.reshape(1), row), row * 2


def run_and_wait(function, carry) -> tuple:
    """A GPU's errors arrive with the call that follows the launch."""
    results = function(*carry)
    torch.cuda.synchronize()
    function(torch.full_like(carry[0], 9), *carry[1:])
    return results


@pytest.mark.xfail(torch.cuda.is_available(), reason="not run on a GPU since its message was mended", strict=False)
def test_an_index_out_of_range_ends_in_an_error():
    carry = zero(), torch.zeros(3, 8, device=DEVICE), torch.ones(1, 8, device=DEVICE)
    function = looped(keeping, below(9))
    with pytest.raises((IndexError, IndexOutOfRange), match="out of (range for|bounds for dimension 0 with) size 3"):
        run_and_wait(function, carry)
    assert not carry[1].any() and carry[0].item() == 0
    torch._dynamo.reset()  # another limit would become a symbol
    results = looped(keeping, below(3), **OPTIONS)(*carry)
    assert results[1][:, 0].tolist() == [1, 2, 4]


def test_seeds_of_iterations_differ():
    step = lambda i, a: (i + 1, torch.cat([a[1:], torch.rand(1, 16, device=DEVICE)]))
    rows = looped(step, below(6))(zero(), torch.zeros(6, 16, device=DEVICE))[1]
    assert len({tuple(row) for row in rows.tolist()}) == 6


def test_loops_and_single_steps_share_a_kernel():
    """Turn by turn, so that each begins where the other has left the counters."""
    weight = torch.eye(8, device=DEVICE) * 0.75
    step = lambda i, a: (i + 1, torch.tanh(a @ weight) + 0.1)
    loop, single, carry = looped(step, below(7)), torch.compile(step, backend=ark), (zero(), values(4, 8))
    expected = called(single, below(7), carry)
    for _ in range(5):
        assert_same(loop(*carry), expected)
        assert_same(called(single, below(7), carry), expected)


def test_loop_function():
    step = lambda i, a: (i + 1, torch.tanh(a) + 0.1)
    carry = zero(), values(4, 8)
    plain = called(torch.compile(step, backend=ark), below(7), carry)
    assert_same(ark_torch.loop(step, 7, carry), plain)
