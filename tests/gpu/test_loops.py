"""torch.while_loop on a GPU: one launch has the values of the compiled step called one by one."""

from __future__ import annotations

import pytest
import torch

import ark_torch
from ark_torch.backend import ark
from ark_torch.errors import DeviceError
from ark_torch.versions import minor
from tests.support.random_loops import RandomStep, below, called, looped

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OPTIONS = {"strict": True}  # one launch


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


@pytest.mark.skipif(minor(torch.__version__) < (2, 13), reason="older Dynamo refuses bodies that write outside tensors")
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


def test_an_index_out_of_range_ends_in_an_error():
    carry = zero(), torch.zeros(3, 8, device=DEVICE), torch.ones(1, 8, device=DEVICE)
    function = looped(keeping, below(9), **OPTIONS)
    with pytest.raises(DeviceError, match="index 3 is out of range for size 3: graph .*, iteration 3, op"):
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


def test_the_stop_flag_ends_a_long_loop():
    """Of 2^62 iterations; and the launches after it are not disturbed."""
    goes_on = lambda i, a: a.amax() < 50_000
    results = check(lambda i, a: (i + 1, a + 1), goes_on, (zero(), values(2, 2)), **OPTIONS)
    assert results[0].item() == 50_000 - 1


def test_caches_grow():
    """Rows below the position are read ahead of all waits, those of earlier iterations among them."""
    heads, width, length = 4, 64, 200
    weight = (torch.randn(heads * width, 3 * heads * width, device=DEVICE) / 16).to(torch.bfloat16)

    def step(i, x, keys, values):
        q, k, v = (x @ weight).view(1, 1, 3 * heads, width).transpose(1, 2).chunk(3, 1)
        keys, values = keys.index_copy(2, i.reshape(1), k), values.index_copy(2, i.reshape(1), v)
        mask = (torch.arange(length, device=DEVICE) <= i)[None, None, None]
        y = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return i + 1, torch.tanh(y.transpose(1, 2).reshape(1, heads * width) + x), keys, values

    cache = torch.zeros(1, heads, length, width, device=DEVICE, dtype=torch.bfloat16)
    check(step, below(length), (zero(), values(1, heads * width).to(torch.bfloat16), cache, cache.clone()), **OPTIONS)


def test_products_of_many_rows():
    """By tensor maps, whose addresses are those of the launch."""
    weight = (torch.randn(256, 256, device=DEVICE) / 16).to(torch.bfloat16)
    step = lambda i, a, b: (i + 1, torch.relu(a @ weight) - b, torch.tanh(a))
    carry = zero(), values(512, 256).to(torch.bfloat16), values(512, 256).to(torch.bfloat16)
    for _ in range(3):
        check(step, below(9), carry, **OPTIONS)


def test_loops_in_a_cuda_graph():
    step = lambda i, a: (i + 1, torch.tanh(a) + 0.1)
    function, carry = looped(step, below(7), **OPTIONS), (zero(), values(4, 8))
    expected = function(*carry)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*carry)
    for _ in range(3):
        carry[1].mul_(0.5)
        expected = function(*carry)
        graph.replay()
        assert_same(results, expected)


def test_loop_function():
    step = lambda i, a: (i + 1, torch.tanh(a) + 0.1)
    carry = zero(), values(4, 8)
    plain = called(torch.compile(step, backend=ark), below(7), carry)
    assert_same(ark_torch.loop(step, 7, carry), plain)
