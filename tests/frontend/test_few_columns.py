"""Products of few rows with weights k x n, run on the host: as many workers as a GPU has."""

from __future__ import annotations

import pytest
import torch

from tests.support.few_columns import BODIES, check, columns, gated, heads, inputs, normed, pairs, residual


def ops(folder, name):
    text = next(folder.rglob("plan.txt")).read_text()
    return [line for line in text.splitlines() if line.startswith("op ") and f" {name} " in line]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("m", [1, 2, 7, 16])
def test_epilogues(monkeypatch, tmp_path, body, m):
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    check(body, inputs(m, 104, 200, torch.bfloat16, "cpu"), workers=132)
    assert ops(tmp_path, "matmul_rows") and not ops(tmp_path, "matmul_tile")


@pytest.mark.parametrize("m", range(1, 17))
def test_rows(m):
    check(residual, inputs(m, 8 * (2 * m + 1), 8 * (33 - 2 * m), torch.float16, "cpu"), workers=132)


@pytest.mark.parametrize("m, k, n", [(17, 64, 64), (4, 60, 64), (1, 64, 60), (1, 12000, 16)])
def test_others(monkeypatch, tmp_path, m, k, n):
    """More rows, lines that no tensor map reads, a row too long for shared memory: as without strips."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    check(residual, inputs(m, k, n, torch.bfloat16, "cpu"), workers=132)
    assert not ops(tmp_path, "matmul_rows")


@pytest.mark.parametrize("m", [1, 5])
def test_parts(monkeypatch, tmp_path, m):
    """Query, key and value of one weight are one op, which writes the caches too."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    check(columns, inputs(m, 64, 3 * 64, torch.bfloat16, "cpu"), workers=132)
    assert len(ops(tmp_path, "matmul_rows")) == 1


@pytest.mark.parametrize("body", [gated, pairs, heads], ids=lambda f: f.__name__)
@pytest.mark.parametrize("m", [1, 3, 11])
@pytest.mark.parametrize("workers", [2, 132])
def test_two_lanes(monkeypatch, tmp_path, body, m, workers):
    """Gates and pairs of columns are epilogues of one op: nothing else is left to do."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    check(body, inputs(m, 72, 3 * 96, torch.bfloat16, "cpu"), workers=workers)
    text = next(tmp_path.rglob("plan.txt")).read_text()
    assert len(ops(tmp_path, "matmul_rows")) == 1 and ", lanes 2," in text and ", strips of " in text, text


def test_near_pairs():
    """Pairs that lie closer than a strip's columns: as without strips of two lanes."""
    check(pairs, inputs(4, 72, 8, torch.bfloat16, "cpu"), workers=132)


@pytest.mark.parametrize("body", [gated, pairs], ids=lambda f: f.__name__)
def test_long_gates(monkeypatch, tmp_path, body):
    """In several windows of k a product has one lane."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    check(body, inputs(9, 4104, 32, torch.bfloat16, "cpu"), workers=132)
    assert ", lanes 2," not in next(tmp_path.rglob("plan.txt")).read_text()


def test_norm_of_segments():
    check(normed, inputs(3, 96, 72, torch.bfloat16, "cpu"), workers=7)


def test_sizes_that_vary(monkeypatch, tmp_path):
    """Strips also where the number of rows is data, in a graph that has no other products."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    torch._dynamo.reset()
    fast = torch.compile(residual, backend="ark", options={"strict": True, "workers": 132}, dynamic=True)
    with torch.no_grad():
        for m in (5, 9, 12):
            given = inputs(m, 64, 96, torch.bfloat16, "cpu")
            torch.testing.assert_close(fast(*given), residual(*given), rtol=2e-2, atol=2e-2)
    assert ops(tmp_path, "matmul_rows") and not ops(tmp_path, "matmul_tile")
