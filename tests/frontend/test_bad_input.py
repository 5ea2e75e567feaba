"""Odd and bad arguments, on the host and on the GPU where there is one: the right result or a clear error, and the next
call works."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ark_torch.backend import ark
from ark_torch.records import recording
from tests.conftest import has_extension

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


def compiled(function, **options):
    return torch.compile(function, backend=ark, **options)


def same(body, *inputs, rtol=1e-4, atol=1e-5):
    """Against eager: values (NaN equals NaN), dtypes, shapes; and no internal error on the way."""
    with torch.no_grad(), recording() as records:
        actual, expected = compiled(body)(*inputs), body(*inputs)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    assert not any(r.internal_errors for r in records)
    return actual


class Block(nn.Module):
    """A norm, two products with GELU between, a softmax and reductions."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width + 1), nn.Linear(2 * width + 1, width)

    def forward(self, x):
        y = x + self.down(F.gelu(self.up(self.norm(x))))
        return y, y.softmax(-1), y.sum(-2), y.amax(-1)


def distance(values, exact) -> float:
    return math.sqrt(sum(float((v.double() - e).square().sum()) for v, e in zip(values, exact)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, width", [(1, 1), (1, 17), (17, 1), (17, 129), (129, 17), (129, 129), (2, 128)])
def test_sizes_that_are_no_multiple(device, dtype, rows, width):
    torch.manual_seed(0)
    block = Block(width).to(device, dtype)
    x = torch.randn(3, rows, width, device=device).to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(block).double()(x.double())
        mine, eager = compiled(block)(x), block(x)
    assert [(m.shape, m.dtype) for m in mine] == [(e.shape, e.dtype) for e in eager]
    assert distance(mine, exact) <= 1.5 * distance(eager, exact) + 1e-5


def test_one_graph_through_odd_sizes(device):
    torch.manual_seed(0)
    block = Block(17).to(device)
    call = compiled(block, dynamic=True)
    with torch.no_grad():
        for rows in (5, 129, 1, 17, 2, 1000):
            x = torch.randn(2, rows, 17, device=device)
            torch.testing.assert_close(call(x), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_zero_rows_after_many(device, rows):
    linear = nn.Linear(8, 5).to(device)
    call = compiled(lambda x: (F.relu(linear(x)), linear(x).sum(0), torch.cat([x, x])), dynamic=True)
    with torch.no_grad():
        for count in (7, rows, 9):
            x = torch.randn(count, 8, device=device)
            wanted = (F.relu(linear(x)), linear(x).sum(0), torch.cat([x, x]))
            torch.testing.assert_close(call(x), wanted, rtol=1e-4, atol=1e-5)


EMPTY = {
    "pointwise": lambda x: torch.exp(x) * 2 + x,
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),  # NaN
    "product over nothing": lambda x: x.t() @ x,
    "joined": lambda x: torch.cat([x, torch.ones(2, 6, device=x.device)]) + 1,
    "softmax": lambda x: x.softmax(-1).sum(-1),
}


@pytest.mark.parametrize("what", EMPTY)
def test_empty_tensors(device, what):
    same(EMPTY[what], torch.randn(0, 6, device=device))


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
    "every second": lambda t: t.repeat_interleave(2, 2)[..., ::2],
    "offset": lambda t: F.pad(t, (3, 2))[..., 3:-2],
    "expanded": lambda t: t[:, :1].expand(t.shape),
    "overlapping": lambda t: t.flatten().as_strided(t.shape, (8, 4, 1)),
    "channels last": lambda t: t[None].contiguous(memory_format=torch.channels_last)[0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts(device, layout, dtype):
    weight = torch.randn(24, 33, device=device, dtype=dtype)
    x = LAYOUTS[layout](torch.randn(5, 9, 24, device=device, dtype=dtype))

    def body(x):
        return x * 2 + 1, x.sum(1), (x @ weight).float(), x.softmax(-1), x.reshape(-1, 12) - 1

    rtol = 1e-4 if dtype == torch.float32 else 3e-2
    same(body, x, rtol=rtol, atol=rtol)


def test_layouts_that_change_from_call_to_call(device):
    call = compiled(lambda x: x @ x.t() + x.sum())
    for make in (lambda: torch.randn(9, 9), lambda: torch.randn(9, 9).t(), lambda: torch.randn(9, 18)[:, ::2]):
        x = make().to(device)
        torch.testing.assert_close(call(x), x @ x.t() + x.sum(), rtol=1e-4, atol=1e-4)


SPECIAL = {
    "arithmetic": lambda x: (x + 1, x * 0, x - x, 1 / x, -x),
    "functions": lambda x: (x.exp(), x.log(), x.tanh(), x.sigmoid(), x.erf(), F.relu(x), x.sqrt(), x.abs()),
    "choices": lambda x: (x.clamp(-1, 1), torch.maximum(x, -x), torch.where(x > 0, x, 0.0), x == x, x > 1, x.isnan()),
    "reductions": lambda x: (x.sum(1), x.amax(1), x.amin(1), x.mean(1), x.argmax(1), x.isinf().any(1)),
    "rows": lambda x: (x.softmax(1), x.log_softmax(1), F.layer_norm(x, (x.shape[1],)), x.cumsum(1)),
    "product": lambda x: x @ x.t(),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
    "casts": lambda x: (x.bfloat16(), x.half(), x.double()),
}


@pytest.mark.parametrize("what", SPECIAL)
def test_nan_and_infinity(device, what):
    torch.manual_seed(0)
    x = torch.randn(7, 33, device=device)
    x[0, 3], x[1, 5], x[2, 7], x[3, :] = math.nan, math.inf, -math.inf, -math.inf
    x[4, 0], x[4, 1], x[5, 2], x[5, 3] = math.inf, -math.inf, 0.0, -0.0
    same(SPECIAL[what], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("what", ["query", "key", "value"])
def test_nan_in_attention_reaches_what_it_reaches_in_eager(device, what, dtype):
    """The loss leaves out the query with the NaN, so that gradients can have it from the statistics alone. Eager's own
    formula, on the CPU: in its fused kernels for bf16 the NaN goes as far as the CPU's instructions for matrices let
    it."""
    torch.manual_seed(0)
    inputs = {name: torch.randn(1, 2, 129, 64).to(dtype) for name in ("query", "key", "value")}
    inputs[what][0, 0, 40] = math.nan

    def nan_rows(attention, device):
        leaves = [t.to(device).requires_grad_() for t in inputs.values()]
        out = attention(*leaves)
        grads = torch.autograd.grad(out[:, :, :40].float().sum(), leaves)
        return [t.isnan().any(-1).tolist() for t in (out, *grads)]

    def attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value)

    with sdpa_kernel(SDPBackend.MATH):
        expected = nan_rows(attention, "cpu")
    assert nan_rows(compiled(attention), device) == expected


def test_integers_divided_by_zero(device):
    """Zeros on a GPU, where eager gives values too; elsewhere an error (tests/frontend/test_value_checks.py)."""
    x, zero = torch.tensor([7, -7, 0], device=device), torch.zeros(3, dtype=torch.int64, device=device)
    divide = compiled(lambda x, z: (x // z, x % z, torch.fmod(x, z), torch.div(x, z, rounding_mode="trunc")))
    if device == "cuda":
        assert not any(r.any() for r in divide(x, zero))
    else:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(x, zero)


def test_nan_in_a_key_that_a_mask_hides_is_not_seen(device):
    query, key, value = (torch.randn(1, 2, 40, 64, device=device) for _ in range(3))
    key[:, :, 3] = math.nan
    visible = torch.ones(40, 40, dtype=torch.bool, device=device)
    visible[:, 3] = False
    out = compiled(lambda *x: F.scaled_dot_product_attention(*x))(query, key, value, visible)
    expected = F.scaled_dot_product_attention(query, key.nan_to_num(), value, visible)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_overflow_of_narrow_types(device):
    x = torch.tensor([60000.0, -60000.0, 1e-8, 6e-8], device=device).half()
    same(lambda x: (x + x, x * x, (x.float() * 2).half(), x / 4), x, rtol=1e-3)


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_mixed_dtypes(device, first):
    """Every pair is promoted as eager does."""
    a = (torch.arange(1, 13, device=device) % 5).to(first).reshape(3, 4)
    for second in DTYPES:
        b = (torch.arange(1, 5, device=device) % 3 + 1).to(second)
        same(lambda a, b: (a + b, a * b, a / b, a < b, torch.where(a > b, a, b)), a, b, rtol=1e-2)


def test_a_number_on_the_cpu_beside_tensors(device):
    same(lambda x, n: x * n + n, torch.randn(5, device=device), torch.tensor(2.5))


BAD = {
    "shapes": (lambda x, y: x + y, (4, 5), (4, 6), torch.float32),
    "inner sizes": (lambda x, y: x @ y, (4, 5), (4, 5), torch.float32),
    "dtypes of a product": (lambda x, y: x @ y, (4, 5), (5, 4), torch.float64),
    "attention heads": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y),
        (1, 3, 4, 8),
        (1, 2, 4, 8),
        torch.float32,
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_errors_of_eager_are_errors(device, what):
    body, first, second, dtype = BAD[what]
    x, y = torch.randn(first, device=device), torch.randn(second, device=device, dtype=dtype)
    for call in (body, compiled(body)):
        with pytest.raises(RuntimeError, match=r"\w+ \w+ \w+"):
            call(x, y)
    same(lambda x: x * 2, x)


def test_another_device_is_an_error(device):
    other = "cuda" if device == "cpu" and torch.cuda.is_available() else "cpu"
    if other == device:
        other = "meta"
    call = compiled(lambda x, y: x * 2 + y)
    x = torch.randn(4, device=device)
    with pytest.raises(Exception, match=f"(?s){device}.*{other}|{other}.*{device}"):
        call(x, torch.randn(4, device=other))
    torch.testing.assert_close(call(x, x), x * 2 + x)


def test_a_call_that_fails_leaves_the_others_working(device):
    linear = nn.Linear(8, 4).to(device)
    call = compiled(linear)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        expected = linear(x)
        for _ in range(2):
            torch.testing.assert_close(call(x), expected, rtol=1e-4, atol=1e-5)
            for bad in (torch.randn(3, 9, device=device), torch.randn(3, 8, device=device).long()):
                with pytest.raises(RuntimeError, match=r"\w+ \w+ \w+"):
                    call(bad)


def test_unaligned_and_expanded(device):
    base = torch.randn(41, device=device)
    for x in (base[1:9].expand(4, 8), base[1:2].expand(5), base[3:35].as_strided((7, 8), (4, 1), 3)):
        same(lambda x: (x * 2, x.sum(0)), x)


def test_signs_of_zero(device):
    """0.0 and -0.0 are two constants, in one program and in programs that are otherwise equal."""

    def body(x, y):
        first, second = torch.where(x > 0, x, 0.0), torch.where(y > 0, y, -0.0)
        return 1 / first, 1 / second, first.softmax(-1), torch.where(x > 0, 0.0, -0.0), 1 / (x * 0.0 + 0.0)

    for value in same(body, torch.randn(8, 64, device=device), torch.randn(8, 64, device=device))[3:4]:
        assert value.signbit().any() and not value.signbit().all()


def test_checkpoint_with_random_numbers(device):
    """The backward meets random numbers whose type its graph does not say."""

    def body(x):
        return torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.5).sin(), x, use_reentrant=False)

    x = torch.ones(1000, device=device, requires_grad=True)
    with recording() as records:
        y = compiled(body)(x)
        y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0)
    assert not any(r.internal_errors for r in records)


@pytest.mark.parametrize("rows, columns", [([1, -15], [1, 1]), ([1, 2], [1, -5]), ([20, 1], [1, 1])])
def test_index_outside_of_two_dimensions(rows, columns):
    """A negative index counts from the end once, not twice."""
    x, rows, columns = torch.randn(10, 3), torch.tensor(rows), torch.tensor(columns)
    for body in (lambda x, i, j: x[i, j], lambda x, i, j: (x * 2)[i, j]):
        with pytest.raises(IndexError):
            compiled(body)(x, rows, columns)
        same(body, x, rows.clamp(-10, 9), columns.clamp(-3, 2))


DECISIONS = {
    "largest of all": lambda x, y: (x * 0.3 == (x * 0.3).amax()).sum(),
    "largest of a column": lambda x, y: (x * 0.3 == (x * 0.3).amax(0)).sum(0),
    "equal": lambda x, y: (x * 0.3 == y, x * 0.3 < y),
    "constant": lambda x, y: torch.full_like(x, 0.1) == torch.full_like(y, 0.1) * 1,
    "infinite": lambda x, y: (x * 30000 * 30000 * 1e20 * 1e20).isinf(),
    "integer": lambda x, y: ((x * 300).long(), (x * 1e-8).bool()),
    "first of equals": lambda x, y: (x + 100).argmax(1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("what", DECISIONS)
def test_decisions_see_rounded_values(device, what, dtype):
    """However the ops before are fused."""
    x = torch.randn(300, 64, device=device).to(dtype)
    actual = compiled(DECISIONS[what])(x, x * 0.3)
    torch.testing.assert_close(actual, DECISIONS[what](x, x * 0.3), rtol=0, atol=0)


@pytest.mark.skipif(not has_extension(), reason="the extension is not built")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_larger_than_any_memory(dynamic):
    """2^48 bytes. Eager refuses at once, with the same type; planning 2^30 tiles would take 11 s and 8 GiB before."""
    x, n = torch.ones(1, dtype=torch.float64), 1 << 23

    def body(x, n):
        return x.expand(n, n // 2) * 2.0

    call, strict = compiled(body, dynamic=dynamic), compiled(body, dynamic=dynamic, options={"strict": True})
    if dynamic:  # the sizes come at a later call
        for one in (call, strict):
            torch.testing.assert_close(one(x, 6), body(x, 6))
    for one in (body, call):
        with pytest.raises(
            RuntimeError, match="allocate memory: you tried to allocate 281474976710656 bytes"
        ) as caught:
            one(x, n)
        assert caught.type is RuntimeError
    with pytest.raises(Exception, match="strict: graph.*elements, at most 274877906944"):
        strict(x, n)
    torch.testing.assert_close(call(x, 8), body(x, 8))


@pytest.mark.skipif(not has_extension(), reason="the extension is not built")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", ["sum", "variance", "columns", "iota", "expanded"])
def test_a_value_larger_than_any_memory(device, what, dynamic):
    """Fused, it needs none: the plan would count to 2^45. Eager has it in memory, and refuses at once."""
    bodies = {
        "sum": lambda x, n: (x.sum() + torch.zeros(n, device=x.device)).sum(),
        "variance": lambda x, n: (x[:1] + torch.zeros(n // 4, 4, device=x.device)).exp().var(),
        "columns": lambda x, n: (x + torch.zeros(n // 4, 4, device=x.device)).amax(0),
        "iota": lambda x, n: torch.arange(n, device=x.device) * 2 > x.sum(),
        "expanded": lambda x, n: x[:, None].expand(4, n // 4).sin().sum(1),
    }
    x, body = torch.ones(4, device=device), bodies[what]
    error = RuntimeError if device == "cpu" else torch.OutOfMemoryError
    call = compiled(body, dynamic=dynamic)
    for _ in range(2):
        if dynamic:
            torch.testing.assert_close(call(x, 40), body(x, 40))
        for one in (body, call):
            with pytest.raises(error, match="(?i)tried to allocate") as caught:
                one(x, 1 << 45)
            assert caught.type is error
    torch.testing.assert_close(call(x, 80), body(x, 80))


def test_index_out_of_range_in_the_call_with_copies():
    """The call on copies in the graph's own strides reports an index out of range as the first call would have."""
    from types import SimpleNamespace

    from ark_torch.errors import IndexOutOfRange
    from ark_torch.segment import NativeSegment

    calls = []

    def executable(inputs):
        calls.append(inputs[0].stride())
        if len(calls) == 2:
            raise IndexOutOfRange("index 3 is out of range for size 3 in op 'gather'", 3, 3, "gather")
        raise ValueError("input 0: expected strides (3, 1)")

    class Segment(NativeSegment):
        def _restride(self, inputs):
            return [inputs[0].contiguous()]

    lowered = SimpleNamespace(graph={"immutable": [False], "nodes": []}, symbols=[], extras=[], inputs=[])
    segment = Segment("segment", lowered, executable, make_fallback=None, where="here")
    with pytest.raises(IndexError, match="out of range"):
        segment([torch.zeros(3, 2).t()])
    assert calls == [(1, 2), (3, 1)]
