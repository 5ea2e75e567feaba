"""A product of few rows whose columns are split is one product a part: views behind the parts, biases of any shape."""

from __future__ import annotations

import pytest
import torch

import ark_torch  # noqa: F401  (registers the backend)
from tests.conftest import has_extension

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

WIDTH, K = 32, 64


def rotated(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


BEHIND = {
    "rotated": rotated,
    "heads": lambda a: [h * 2 for h in a.view(a.size(0), 2, 16).unbind(1)],
    "chunks of heads": lambda a: [h * 2 for h in a.view(a.size(0), 2, 16).chunk(2, 1)],
    "a row's chunks": lambda a: [h * 2 for h in a[-1:].chunk(2, -1)],
    "a row's heads": lambda a: [h * 2 for h in a.view(a.size(0), 2, 16)[-1].unbind(0)],
    "a row, rotated": lambda a: rotated(a.view(a.size(0), 2, 16)[-1]),
    "split again": lambda a: [part * 2 for part in a.split([8, 24], -1)],
    "turned": lambda a: a.view(a.size(0), 2, 16).transpose(0, 1) * 2,
    "stepped": lambda a: a[:, ::2] * 2,
}


def check(function, *inputs) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(function, backend="ark", options={"strict": True})(*inputs)
        want = function(*inputs)
    for one, other in zip(got, want, strict=True):
        strides = [[s for n, s in zip(t.shape, t.stride()) if n > 1] for t in (one, other)]
        assert strides[0] == strides[1]
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("layout", ["k x n", "n x k"])
def test_views_behind_a_part(name, rows, layout):
    torch.manual_seed(0)
    x, w = torch.randn(rows, K), torch.randn(K, 3 * WIDTH) / 8
    w = w.t().contiguous().t() if layout == "n x k" else w

    def function(x, w):
        a, b, c = (x @ w).split(WIDTH, -1)
        found = BEHIND[name](b)
        return [a + 1, *(found if isinstance(found, list) else [found]), c * 2]

    check(function, x.bfloat16(), w.bfloat16())


@pytest.mark.parametrize("shape", [(), (1,), (96,), (4, 1), (1, 96), (4, 96)], ids=str)
def test_biases(shape):
    torch.manual_seed(0)
    x, w, bias = torch.randn(4, K), torch.randn(K, 3 * WIDTH) / 8, torch.randn(shape)
    function = lambda bias, x, w: [part * 2 for part in torch.addmm(bias, x, w).split(WIDTH, -1)]
    check(function, bias.bfloat16(), x.bfloat16(), w.bfloat16())
