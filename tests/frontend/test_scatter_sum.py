"""Sums by index: gradients of tables, index_add, scatter_add, index_put that accumulates, against eager."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import ark_torch
from ark_torch.explain import summarize
from ark_torch.records import recording
from tests.conftest import has_extension
from tests.frontend.test_train_loop import eagerly

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
aten = torch.ops.aten


def compiled(body, **options):
    torch._dynamo.reset()
    return torch.compile(body, backend="ark", options={"strict": True}, **options)


def close(mine: torch.Tensor, inputs: list, body, terms: int = 1) -> None:
    """Sums are of one rounding; eager may round each of `terms` terms."""
    assert mine.dtype == body(*inputs).dtype
    exact = body(*[x.double() if x.is_floating_point() else x for x in inputs])
    error = 2 * torch.finfo(mine.dtype).eps * (4 if mine.dtype == torch.float32 else 1)
    torch.testing.assert_close(mine.double(), exact, rtol=error, atol=error * terms)


def check(body, *inputs, terms: int = 1) -> None:
    close(compiled(body)(*inputs), list(inputs), body, terms)


def gradient(rows: int, padding: int = -1):
    return lambda g, index: aten.embedding_dense_backward(g, index, rows, padding, False)


def some(shape, dtype=torch.float32, device="cpu") -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, device=device).to(dtype)


def indices(shape, rows: int, dtype=torch.int64, device="cpu") -> torch.Tensor:
    torch.manual_seed(rows)
    return torch.randint(0, rows, shape, device=device).to(dtype)


# rows of the table, sizes of the indices, columns
TABLES = [(2, (3, 40), 64), (50, (4, 33), 24), (1000, (70,), 48), (7, (5, 6), 5), (3001, (2, 3, 4), 17), (1, (9,), 1)]


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows, sizes, columns", TABLES)
def test_gradient_of_a_table(rows, sizes, columns, dtype, index_dtype):
    index = indices(sizes, rows, index_dtype)
    check(gradient(rows), some((*sizes, columns), dtype), index, terms=index.numel())


@pytest.mark.parametrize("padding", [0, 3, 49])
def test_padding_gets_nothing(padding):
    index = indices((4, 33), 50)
    assert (index == padding).any()
    check(gradient(50, padding), some((4, 33, 24)), index)
    assert not compiled(gradient(50, padding))(some((4, 33, 24)), index)[padding].any()


def test_all_indices_alike_or_none():
    check(gradient(5), some((3000, 16)), torch.full((3000,), 4), terms=3000)
    torch._dynamo.reset()
    none = torch.compile(gradient(5), backend="ark")(some((0, 16)), indices((0,), 5))  # torch's own sizes are not 0
    assert none.shape == (5, 16) and not none.any()


def test_a_source_that_is_no_plain_matrix():
    index = indices((6, 8), 20)
    check(lambda g, index: gradient(20)(g.transpose(0, 1), index), some((8, 6, 12)), index, terms=48)
    check(lambda g, index: gradient(20)(g[:, :, 3:10], index[:, ::2]), some((6, 4, 12)), index, terms=24)
    check(lambda g, index: gradient(20)(g * 2, index + 0), some((6, 8, 12)), index, terms=48)


def test_through_autograd():
    """A table that is used twice, beside other work; its gradient is in the plan."""

    def loss(table, weight, index):
        return (F.embedding(index, table, padding_idx=1) @ weight).tanh().sum() + F.embedding(index[0], table).sum()

    index = indices((4, 9), 30)
    inputs = [some((30, 16), torch.float64).requires_grad_(), some((16, 8), torch.float64).requires_grad_()]
    wanted = torch.autograd.grad(loss(*inputs, index), inputs)
    with recording() as records:
        actual = torch.autograd.grad(compiled(loss)(*inputs, index), inputs)
    for one, other in zip(actual, wanted):
        torch.testing.assert_close(one, other)
    assert not any(graph.num_aten for graph in summarize(records).graphs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_index_add(dtype):
    index = indices((40,), 11)
    check(
        lambda x, index, y: x.index_add(0, index, y), some((11, 6, 4), dtype), index, some((40, 6, 4), dtype), terms=40
    )
    check(lambda x, index, y: x.index_add(0, index, y), some((11,), dtype), index, some((40,), dtype), terms=40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scatter_add_of_rows(dtype):
    def body(x, index, y):
        return x.scatter_add(0, index[:, None].expand(-1, y.shape[1]), y)

    check(body, some((11, 6), dtype), indices((40,), 11), some((40, 6), dtype), terms=40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_index_put_that_accumulates(dtype):
    def body(x, index, y):
        return x.index_put((index,), y, accumulate=True)

    index = indices((5, 8), 22) - 11  # negative ones count from the end
    check(body, some((11, 6), dtype), index, some((5, 8, 6), dtype), terms=40)
    check(body, some((11, 6), dtype), index, some((6,), dtype), terms=40)  # a value for all


def test_gradient_of_gathered_rows():
    x, index = some((12, 7), torch.float64).requires_grad_(), indices((30,), 12)
    body = lambda x, index: (x[index] * x[index.flip(0)]).sum()
    wanted = torch.autograd.grad(body(x, index), x)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled(body)(x, index), x)[0], wanted)


@pytest.mark.parametrize("place", [11, -12])
def test_an_index_out_of_range(place):
    index = torch.tensor([0, place, 3])
    body = lambda x, index, y: x.index_put((index,), y, accumulate=True)
    with pytest.raises((IndexError, RuntimeError)):
        body(torch.zeros(11, 4), index, torch.ones(3, 4))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        compiled(body)(torch.zeros(11, 4), index, torch.ones(3, 4))


def test_sizes_that_change():
    run = compiled(lambda g, index: aten.embedding_dense_backward(g * 2, index, 50, -1, False), dynamic=True)
    for terms in (5, 64, 129, 7):
        inputs = some((terms, 24)), indices((terms,), 50)
        close(run(*inputs), list(inputs), lambda g, index: gradient(50)(g * 2, index), terms)


def test_the_sum_is_rounded_once():
    """A total that half precision does not hold, and the result that it does."""
    x, index, y = (
        torch.full((3, 4), -60000.0).half(),
        torch.zeros(2, dtype=torch.int64),
        torch.full((2, 4), 35000.0).half(),
    )
    for body in (
        lambda x, index, y: x.index_add(0, index, y),
        lambda x, index, y: x.index_put((index,), y, accumulate=True),
        lambda x, index, y: x.scatter_add(0, index[:, None].expand(2, 4), y),
    ):
        exact = body(x.double(), index, y.double())
        assert torch.equal(compiled(body)(x, index, y), exact.half()) and body(x, index, y).isfinite().all()


BAD = {
    "another type": (lambda x, i, y: x.index_add(0, i, y.double()), (5, 6), (4, 6)),
    "an integer": (lambda x, i, y: x.index_add(0, i, y.long()), (5, 6), (4, 6)),
    "permuted sizes": (lambda x, i, y: x.index_add(0, i, y), (5, 6, 2), (4, 2, 6)),
    "joined sizes": (lambda x, i, y: x.index_add(0, i, y), (5, 6, 2), (4, 12)),
    "narrow rows": (lambda x, i, y: x.index_add(0, i, y), (5, 6), (4, 5)),
    "one column": (lambda x, i, y: x.index_add(0, i, y), (5, 6), (4, 1)),
    "values of another type": (lambda x, i, y: x.index_put((i,), y.double(), accumulate=True), (5, 6), (4, 6)),
    "values of more dimensions": (lambda x, i, y: x.index_put((i,), y[None], accumulate=True), (5, 6), (4, 6)),
    "values of other sizes": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (5, 6), (3, 6)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_eager_refuses(name):
    body, sizes, source = BAD[name]
    inputs = (torch.zeros(sizes), indices((4,), 5), torch.ones(source))
    try:
        wanted = body(*inputs)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError)):
            torch.compile(body, backend="ark")(*inputs)
    else:
        torch.testing.assert_close(torch.compile(body, backend="ark")(*inputs), wanted)


def test_many_into_many_is_left_to_torch():
    """Tiles times indices would be too much to look at."""
    index, y = indices((1_500_000,), 300_000), some((1_500_000, 4))
    body = lambda index, y: torch.zeros(300_000, 4).index_add(0, index, y)
    torch._dynamo.reset()
    with recording() as records:
        mine = torch.compile(body, backend="ark")(index, y)
    assert any("native where workers look at few" in cause for record in records for cause in record.fallbacks)
    torch.testing.assert_close(mine, body(index, y))


def train_tables(device: str) -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Embedding(40, 16, padding_idx=0), torch.nn.Linear(16, 40)).to(device)
    theirs = copy.deepcopy(ours)
    loss = lambda model, tokens: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    tokens = indices((6, 3, 9), 40, device=device)
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.5)
    losses = ark_torch.train_loop(ours, sgd(ours), loss, (tokens,), strict=True)
    torch.testing.assert_close(losses, eagerly(theirs, sgd(theirs), loss, (tokens,)))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_training_steps_of_a_model_with_tables_are_one_launch():
    train_tables("cpu")
