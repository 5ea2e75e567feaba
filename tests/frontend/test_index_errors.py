"""Indices out of range: what raises in eager raises in ark, whatever op reads or writes by them; what does not, does
not. (On the GPU: tests/gpu/test_bad_input.py.)"""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark

X = torch.arange(12.0).reshape(4, 3)
CUBE = torch.arange(24.0).reshape(2, 3, 4)


def ix(*numbers, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def written(x, *index, value=7.0):
    x[index] = value
    return x


def written_row(x, i):
    x[:1][i] = 3.0
    return x


def appended(cache, i, row):
    cache.index_copy_(0, i, row)
    return cache @ cache.t()


def each_of_cube(x, i):
    return x[i[0], i[1], i[2]]


ONES = torch.ones(2, 3)
LEARNT = torch.ones(3, requires_grad=True)
BAD = {
    # reads: the index of x[i] counts from the end where it is negative, those of other ops do not
    "rows": (lambda x, i: x[i], X, ix(0, 4)),
    "rows, before the first": (lambda x, i: x[i], X, ix(0, -5)),
    "rows of a result": (lambda x, i: (x * 2)[i], X, ix(0, 7)),
    "two indices": (lambda x, i, j: x[i, j], X, ix(1, 2), ix(1, 3)),
    "two of one register": (lambda x, i: x[i, i], X, ix(3, 1)),
    "three indices": (each_of_cube, CUBE, torch.tensor([[0], [1], [4]])),
    "three indices, before the first": (each_of_cube, CUBE, torch.tensor([[0], [1], [-5]])),
    "counting": (lambda x, i: torch.arange(4)[i], X, ix(0, 4)),
    "counting, before the first": (lambda x, i: torch.arange(4)[i], X, ix(0, -5)),
    "constant": (lambda x, i: torch.zeros(4)[i] + 1, X, ix(0, 5)),
    "one row": (lambda x, i: x[:1][i], X, ix(0, 5)),
    "expanded": (lambda x, i: x[:1].expand(4, 3)[i] * 2, X, ix(0, 5)),
    "joined": (lambda x, i: torch.cat([x[i], x[i + 1]]), X, ix(0, 3)),
    "padded": (lambda x, i: F.pad(x[i], (1, 1, 2, 2)), X, ix(0, 4)),
    "summed": (lambda x, i: x[i].sum(1), X, ix(1, 5)),
    "multiplied": (lambda x, i: x[i] @ x.t(), X, ix(1, 5)),
    "gather": (lambda x, i: x.gather(1, i), X, torch.tensor([[0], [1], [2], [3]])),
    "gather, negative": (lambda x, i: x.gather(1, i), X, torch.tensor([[0], [1], [2], [-1]])),
    "softmax of gather": (lambda x, i: x.gather(0, i).softmax(1), X, torch.tensor([[1, 4, 0]])),
    "index_select": (lambda x, i: x.index_select(0, i), X, ix(0, 4)),
    "index_select, negative": (lambda x, i: x.index_select(0, i), X, ix(0, -1)),
    "index_select, int32": (lambda x, i: x.index_select(0, i), X, ix(0, -1, dtype=torch.int32)),
    "embedding": (lambda x, i: F.embedding(i, x) * 2, X, ix(0, 4)),
    "embedding, negative": (lambda x, i: F.embedding(i, x), X, ix(0, -1)),
    "cross entropy": (F.cross_entropy, X, ix(0, 1, 2, 3)),
    "cross entropy, negative": (F.cross_entropy, X, ix(0, 1, -1, 2)),
    "cross entropy that learns": (lambda x, i: F.cross_entropy(x * LEARNT, i), X, ix(0, 1, 2, 3)),
    "cross entropy of weights": (lambda x, i: F.cross_entropy(x, i, weight=ONES[0]), X, ix(0, 1, 2, 3)),
    "nll_loss": (F.nll_loss, X, ix(0, 1, 2, 3)),
    "nll_loss, negative": (F.nll_loss, X, ix(0, 1, -1, 2)),
    "nll_loss of pictures": (lambda x, i: F.nll_loss(x, i.expand(2, 4)), CUBE, ix(3)),
    "max_unpool2d": (lambda x, i: F.max_unpool2d(x, i.expand(2, 3, 4), 2), CUBE, ix(99)),
    # writes
    "written": (written, X, ix(1, 4)),
    "written, before the first": (written, X, ix(1, -5)),
    "written at two": (written, X, ix(1, 3), ix(1, 3)),
    "written at two of one register": (lambda x, i: written(x, i, i), X, ix(3, 1)),
    "written at three": (lambda x, i: written(x, i[0], i[1], i[2]), CUBE, torch.tensor([[0], [1], [4]])),
    "written to one row": (written_row, X, ix(1)),
    "index_put": (lambda x, i: x.index_put((i,), ONES), X, ix(1, 4)),
    "index_put of a constant": (lambda x, i: torch.zeros(4, 3).index_put((i,), ONES), X, ix(1, 4)),
    "index_copy": (lambda x, i: x.index_copy(0, i, ONES), X, ix(1, 4)),
    "index_copy_": (lambda x, i: x.index_copy_(0, i, ONES), X, ix(1, 4)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 5.0), X, ix(1, 4)),
    "cache": (appended, X, ix(4), torch.ones(1, 3)),
    "scatter": (lambda x, i: x.scatter(1, i, 5.0), X, torch.tensor([[0], [1], [2], [3]])),
    "scatter, negative": (lambda x, i: x.scatter(1, i, 5.0), X, torch.tensor([[0], [1], [2], [-1]])),
    "scatter of a tensor": (lambda x, i: x.scatter(0, i, ONES[:1]), X, torch.tensor([[0, 1, 4]])),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("what", BAD)
def test_out_of_range_raises(what, strict):
    """An exception of eager's type, of ark's own plan as of ATen's ops."""
    body, x, *rest = BAD[what]
    call = torch.compile(body, backend=ark, options={"strict": strict})
    with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)|invalid max index") as eager:
        body(x.clone(), *rest)
    assert eager.type in (IndexError, RuntimeError)
    for _ in range(2):
        with pytest.raises(eager.type, match="out of (range|bounds)"):
            call(x.clone(), *rest)
    fine = [t.clamp(0, 0) for t in rest[:1]] if what != "cache" else [ix(2), *rest[1:]]
    fine += [t.clamp(0, 0) for t in rest[1:]] if what != "cache" else []
    torch.testing.assert_close(call(x.clone(), *fine), body(x.clone(), *fine))


GOOD = {
    "rows from the end": (lambda x, i: x[i], X, ix(-4, 3, -1)),
    "two of one register": (lambda x, i: x[i, i], X, ix(-1, 1, 0)),
    "three from the end": (each_of_cube, CUBE, torch.tensor([[-1], [1], [-4]])),
    "counting from the end": (lambda x, i: torch.arange(4)[i], X, ix(0, -4)),
    "one row": (lambda x, i: x[:1][i], X, ix(0, -1)),
    "expanded": (lambda x, i: x[:1].expand(4, 3)[i] * 2, X, ix(3, -4)),
    "constant": (lambda x, i: torch.zeros(4)[i] + 1, X, ix(3, -4)),
    "only where it is read": (lambda x, i: torch.cat([x[i], x[i + 1]]), X, ix(0, 2)),
    "written from the end": (written, X, ix(-4, 2)),
    "written at two of one register": (lambda x, i: written(x, i, i), X, ix(-1, 1)),
    "written at three": (lambda x, i: written(x, i[0], i[1], i[2]), CUBE, torch.tensor([[0], [1], [-4]])),
    "written to one row": (written_row, X, ix(-1)),
    "targets that are left out": (F.cross_entropy, X, ix(0, 1, -100, 2)),
}


@pytest.mark.parametrize("what", GOOD)
def test_in_range(what):
    body, x, *rest = GOOD[what]
    mine, eager = x.clone(), x.clone()
    torch.testing.assert_close(torch.compile(body, backend=ark)(mine, *rest), body(eager, *rest))
    assert torch.equal(mine, eager)


def test_the_message_says_index_size_and_op():
    """Where arguments may have been written before the error was met, it is ark's own."""
    with pytest.raises(IndexError, match="index -5 is out of range for size 4 in op 'index_put'") as raised:
        torch.compile(written, backend=ark)(X.clone(), ix(1, -5))
    error = raised.value
    assert (error.index, error.size, error.op) == (-5, 4, "index_put")
    again = pickle.loads(pickle.dumps(error))  # as between the processes of a data loader or of a test
    assert isinstance(error, ValueError) and (again.index, str(again)) == (-5, str(error))


def test_sizes_that_are_data():
    call = torch.compile(lambda x, i: x.gather(0, i) + 1, backend=ark, dynamic=True)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 3)
        index = torch.randint(rows, (2, 3))
        assert torch.equal(call(x, index), x.gather(0, index) + 1)
        with pytest.raises(RuntimeError, match=f"index {rows} is out of bounds"):
            call(x, index.fill_(rows))
