"""Random numbers in a loop that is one launch: others in every iteration, the same for a seed, well distributed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ark_torch
from tests.conftest import has_extension
from tests.support.random_loops import below, looped, zero

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")


def rows_of(number: int, draw, seed: int, **options) -> torch.Tensor:
    """Row i is what iteration i draws, [20, 8]; 0 from iteration `number` on."""
    step = lambda i, rows: (i + 1, rows.index_copy(0, i.reshape(1), draw(rows[:1])))
    torch.compiler.reset()  # else the number becomes a size that changes
    torch.manual_seed(seed)
    with torch.no_grad():  # strict: one launch, or an error
        return looped(step, below(number), strict=True, **options)(zero(), torch.zeros(20, 8))[1]


DRAWS = {"uniform": torch.rand_like, "normal": torch.randn_like, "dropout": lambda x: F.dropout(x + 1, 0.5)}


@pytest.mark.parametrize("name", DRAWS)
def test_iterations_differ_and_follow_the_seed(name):
    rows = rows_of(20, DRAWS[name], 1)
    assert len({tuple(row) for row in rows.tolist()}) >= 19  # of 256 dropouts two may be one
    assert torch.equal(rows_of(20, DRAWS[name], 1), rows)
    assert torch.equal(rows_of(20, DRAWS[name], 1, workers=1, threads=2), rows)
    assert not torch.equal(rows_of(20, DRAWS[name], 2), rows)
    assert torch.equal(rows_of(7, DRAWS[name], 1), torch.cat([rows[:7], torch.zeros(13, 8)]))


def test_two_draws_of_an_iteration_are_two():
    step = lambda i, a, b: (i + 1, torch.rand_like(a), torch.rand_like(b))
    with torch.no_grad():
        _, a, b = looped(step, below(3), strict=True)(zero(), torch.zeros(64), torch.zeros(64))
    assert (a != b).sum() > 60


def test_numbers_of_neighbouring_iterations_are_independent():
    """Their correlation is 0 within 4 standard deviations, for each distance of iterations."""
    step = lambda i, rows: (i + 1, rows.index_copy(0, i.reshape(1), torch.rand_like(rows[:1])))
    torch.manual_seed(7)
    with torch.no_grad():
        rows = looped(step, below(64), strict=True)(zero(), torch.zeros(64, 1024))[1].double() - 0.5
    assert abs(rows.mean()) < 4 * (1 / 12 / rows.numel()) ** 0.5
    for distance in range(1, 8):
        product = rows[distance:] * rows[:-distance]
        assert abs(product.mean()) < 4 / 12 / product.numel() ** 0.5, distance


def test_nothing_else_is_carried():
    """Beside the numbers only what is stored by rows: the seed tells iterations apart."""
    table = torch.zeros(6, 4)
    with torch.no_grad():
        (rows,) = ark_torch.loop(lambda rows: (rows + torch.rand_like(rows),), 3, (table,), strict=True)
    assert ((0 < rows) & (rows < 3)).all() and len(set(rows.flatten().tolist())) == 24


def test_calls_of_a_loop_differ():
    run = looped(lambda i, a: (i + 1, a + torch.rand_like(a)), below(3), strict=True)
    with torch.no_grad():
        first, second = (run(zero(), torch.zeros(32))[1] for _ in range(2))
    assert not torch.equal(first, second)
