"""The lowering table, what reads and writes elsewhere: gathers, scatters, joins, views, constants, foreach ops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from tests.support.lowering_check import check, f32


def test_embedding(executor):
    check(F.embedding, torch.randint(0, 50, (3, 7)), f32(50, 16))


def test_index(executor):
    x, i, j = f32(6, 7, 8), torch.tensor([0, -1, 3]), torch.tensor([[1], [-2]])
    check(lambda x, i, j: (x[i], x[:, i], x[i, :, i], x[j, i], x[:, j, i], x[..., i]), x, i, j)
    check(lambda x, i: (x.index_select(1, i), x.index_select(-1, i)), x, i.clamp(min=0))
    check(lambda x, i: torch.gather(x, 1, i), x, torch.randint(0, 7, (6, 4, 8)))


def test_index_put(executor):
    x, i = f32(6, 7, 8), torch.tensor([4, 1, 3])

    def body(x, i, v):
        return x.index_put((None, i), v) if False else x.index_copy(1, i, v), torch.index_put(
            x, (i, i), torch.tensor(2.0)
        )

    check(body, x, i, f32(6, 3, 8))


def test_slices_written(executor):
    def body(x, v):
        x = x.clone()
        x[:, 1:5] = v
        x[2] = 0
        x[:, ::2] += 1
        return x

    check(body, f32(6, 7), f32(6, 4))


def test_scatter(executor):
    x, i = f32(6, 9), torch.randint(0, 9, (6, 1))
    check(lambda x, i: (x.scatter(1, i, 2.0), x.scatter(1, i, x[:, :1] * 3)), x, i)


DIAGONALS = [
    ((5, 7), 0, 0, 1),
    ((5, 7), 3, 0, 1),
    ((7, 5), -2, 1, 0),
    ((3, 4, 5), 1, -1, -3),
    ((3, 4, 5), -1, 0, -1),
    ((2, 3, 4, 5), 2, 2, 1),
    ((2, 3, 4, 5), -1, -2, -1),
    ((2, 3, 4, 5), 1, 3, 0),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape, offset, dim1, dim2", DIAGONALS)
def test_diagonal_scatter(executor, shape, offset, dim1, dim2, dynamic):
    def body(x, src):
        return x.diagonal_scatter(src, offset, dim1, dim2)

    x = f32(*shape)
    check(body, x, f32(*x.diagonal(offset, dim1, dim2).shape), dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool])
def test_diagonal_scatter_of_types(executor, dtype):
    x = f32(6, 8).to(dtype)
    check(lambda x, src: x.diagonal_scatter(src, 1), x.t(), f32(5) * 2)
    check(lambda x: torch.diagonal_scatter(x, torch.ones(6, dtype=x.dtype)), x)


def test_diagonal_scatter_at_a_dynamic_offset(executor):
    """The diagonal starts below or above as many rows as another tensor has."""

    def body(x, src, y):
        return x.diagonal_scatter(src, -y.shape[0]), x.diagonal_scatter(src, y.shape[0], 1, 0)

    check(body, f32(9, 4), f32(4), f32(3), dynamic=True)


def test_fill_of_a_diagonal(executor):
    def body(x):
        x = x.clone()
        x.diagonal(-1, 1, 2).fill_(1)
        return x.diagonal(1, 1, 2).mul_(2), x

    check(body, f32(2, 5, 6))


def _scan(a, b, values):
    """A recurrence over the middle dimension, as a state space model has it."""
    state, outputs = b[:, 0], []
    for i in range(40):
        state = a[:, i] * state + b[:, i]
        outputs.append(state)
    return values(outputs)


@pytest.mark.parametrize("of", ["inputs", "a product", "a row"])
@pytest.mark.parametrize("values", ["stacked", "added", "summed"])
def test_more_parts_than_an_op_has_operands(executor, of, values):
    """All of it in one segment: the planner cuts ops that would read more than fits."""
    before = {"inputs": lambda a: a, "a product": lambda a: a @ a[0, :8], "a row": lambda a: a.softmax(-1)}[of]
    after = {
        "stacked": lambda xs: torch.stack(xs, 1),
        "added": sum,
        "summed": lambda xs: torch.stack([(x * x).sum(-1) for x in xs], 1),
    }[values]
    records = check(lambda a, b: _scan(before(a), b, after), f32(3, 40, 8) * 0.3, f32(3, 40, 8))
    assert len(records[0].segments) == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_cat_of_many(executor, dim):
    """More than one level of pieces; parts of several lengths and types; sizes that are symbols."""
    xs = [f32(1 + i % 3, 4) if dim == 0 else f32(4, 1 + i % 3) for i in range(300)]
    check(lambda xs: torch.cat(xs, dim) * 2, xs)
    mixed = [x.bfloat16() if i % 5 == 0 else x for i, x in enumerate(xs[:20])]
    check(lambda xs: torch.cat(xs, dim), mixed)
    check(lambda x: torch.cat([x * i for i in range(20)], dim), f32(5, 6), dynamic=True)


def test_cat_pad_roll(executor):
    x = f32(4, 5)
    check(
        lambda x: (
            torch.cat([x, x * 2], 1),
            torch.stack([x, x]),
            F.pad(x, (1, 2)),
            F.pad(x, (0, 1, 2, 0), value=3.0),
            F.pad(x, (-1, 2, 1, -2)),
            x.flip(0, 1),
        ),
        x,
    )
    check(lambda x: (x.repeat(2, 3), x.roll(2, 1), x.tril(), x.triu(1), torch.cat([x, x.bfloat16()])), x)


def test_views(executor):
    x = f32(4, 6, 8)

    def body(x):
        y = x * 2
        a, b = y.chunk(2, 1)
        return (
            (y.t() if y.dim() == 2 else y.transpose(0, 1)),
            y[1],
            y[:, 2:4],
            y.unsqueeze(1),
            a + b,
            y.view(24, 8).t(),
            y.diagonal(dim1=0, dim2=1),
            y.expand(2, 4, 6, 8),
            y.unbind(0)[2] + 1,
        )

    check(body, x)


def test_input_with_offset(executor):
    x = f32(10, 8)[2:, 1:5]
    check(lambda x: (x + 1, x[1:, ::2] * 2, x.t() - 1), x)


def test_constants(executor):
    def body(x):
        return (
            x + torch.arange(8),
            torch.full((3,), 2.5),
            torch.zeros_like(x),
            torch.ones(2, dtype=torch.int32),
            torch.arange(1, 9, 2),
            x.new_full((2, 2), 7),
            torch.tensor(3.0) * x,
            torch.eye(4),
            torch.linspace(0, 1, 5),
            torch.arange(0.0, 4.0, 1.0),
        )

    check(body, f32(8), strict=False)


def test_dynamic_sizes(executor):
    check(
        lambda x, y: (x.reshape(-1) * x.shape[0] + y.shape[0] // 2, x.mean(0), torch.arange(x.shape[0])),
        f32(5, 6),
        f32(7),
        dynamic=True,
    )


def test_native_share():
    """Everything above ran under strict; a table that lost its rules would fail there. Here: the census's ops have
    rules."""
    from ark_torch import compile as _  # noqa: F401
    from ark_torch.lowering import RULES

    aten, prims = torch.ops.aten, torch.ops.prims
    census = [
        aten.mul.Tensor,
        aten.view.default,
        aten.permute.default,
        aten.add.Tensor,
        aten.sub.Tensor,
        prims.convert_element_type.default,
        aten.unsqueeze.default,
        aten.clone.default,
        aten.rsqrt.default,
        aten.expand.default,
        aten.mm.default,
        aten.scalar_tensor.default,
        aten.addmm.default,
        aten.where.self,
        aten.alias.default,
        aten.div.Tensor,
        aten.full.default,
        aten.slice.Tensor,
        prims.iota.default,
        aten.sum.dim_IntList,
        aten.exp.default,
        aten.var_mean.correction,
        aten.embedding.default,
        aten.neg.default,
        aten.cat.default,
        aten.mean.dim,
        aten.ne.Scalar,
        aten.index.Tensor,
        aten.bitwise_and.Tensor,
        aten.le.Tensor,
        aten.bmm.default,
        aten.amax.default,
        aten.eq.Scalar,
        aten.gather.default,
        aten.index_put.default,
        aten.squeeze.dim,
        aten.log.default,
        aten.erf.default,
        aten.pow.Tensor_Scalar,
        aten.sum.default,
        aten.scatter.value,
        aten.eq.Tensor,
        aten.mul.Scalar,
        aten.cos.default,
        aten.sin.default,
        aten.relu.default,
        aten.ge.Scalar,
        aten.reciprocal.default,
        aten.gt.Scalar,
        aten.rand.default,
        aten.div.Scalar,
        aten.slice_scatter.default,
        aten.split.Tensor,
        aten.constant_pad_nd.default,
        aten.copy_.default,
        aten.logical_not.default,
        aten.any.dim,
        prims.fma.default,
        aten.select_scatter.default,
        aten.select.int,
        aten.squeeze.dims,
        aten.sqrt.default,
        aten.le.Scalar,
        aten.sigmoid.default,
        aten.copy.default,
        aten.as_strided.default,
        aten.tanh.default,
        aten.lift_fresh_copy.default,
        aten.empty.memory_format,
        aten.div.Tensor_mode,
        aten.minimum.default,
        aten.clamp_min.default,
        aten.scatter.src,
        aten.lt.Scalar,
        aten.abs.default,
    ]
    assert [str(op) for op in census if op not in RULES] == []


def test_three_indices(executor):
    """More index tensors than a load has registers."""
    x, i = f32(5, 6, 5), torch.tensor([0, -1, 3])
    check(lambda x, i: (x.flip(0, 1, 2), x[i, i, i], x[i[:, None], i, i[:, None]]), x, i)


def test_many_operands(executor):
    """More tensors in one expression than an op record has operands."""
    xs = [f32(40) for _ in range(100)]
    check(lambda *xs: (sum(xs), xs[0] * xs[99] + sum(x.abs() for x in xs[50:])), *xs)


def test_foreach(executor):
    xs, ys = [f32(3, 5), f32(7)], [f32(3, 5), f32(7)]

    def body(xs, ys):
        a = torch._foreach_add(xs, ys, alpha=2)
        b = torch._foreach_mul(a, 0.5)
        c = torch._foreach_addcdiv(b, xs, torch._foreach_add(torch._foreach_abs(ys), 1.0), 0.1)
        d = torch._foreach_lerp(c, ys, 0.9)
        e = torch._foreach_sqrt(torch._foreach_mul(d, d))
        return (
            e,
            torch._foreach_pow(e, 3),
            torch._foreach_div(e, [2.0, 4.0]),
            torch._foreach_norm(xs),
            torch._foreach_neg(c),
        )

    check(body, xs, ys)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_written_along_a_product(executor, rows, steps):
    """A recurrence (RWKV's): every step writes its rows of a tensor that a product of few or of many rows reads."""

    def body(x, w, v):
        gate, keys = (x @ w).sigmoid(), x @ v
        states = torch.zeros_like(x)
        for t in range(steps):
            states[:, t] = keys[:, t].exp()
        return (gate * states) @ w

    inputs = torch.rand(rows, steps, 8), torch.randn(8, 8), torch.randn(8, 8)
    compiled = torch.compile(body, backend=ark, options={"strict": True})
    torch.testing.assert_close(compiled(*inputs), body(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_returned_values_beside_a_product(executor, rows, dtype):
    """An epilogue that reads a value of inputs alone stores it, and what else is computed from it."""

    def body(x, w):
        scale = x.exp()
        kept, left = torch.where(scale > 1, x @ w, 0.0), x @ (w + 1)
        return scale, kept, left * scale, -scale, scale > 0.5, (scale + 1).sum()

    check(body, torch.randn(rows, 64).to(dtype), torch.randn(64, 64).to(dtype), rtol=2e-2, atol=1e-2)
