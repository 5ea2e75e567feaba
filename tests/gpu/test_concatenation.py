"""Concatenations that their pieces write: bit for bit eager's."""

from __future__ import annotations

import pytest
import torch

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float64]


def check(body, *inputs):
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        wanted = body(*inputs)
        for _ in range(2):  # what lies in outputs differs the second time
            torch.testing.assert_close(compiled(*inputs), wanted, rtol=0, atol=0)


def values(shape, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randint(-8, 8, shape, device="cuda").to(dtype)  # exact in every type


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "widths", [(1024, 1024), (768, 769), (769, 768), (1000, 1, 1000), (8, 2040), (33, 31, 1025)], ids=str
)
def test_last_dimension(widths, dtype):
    """Slices that begin anywhere in rows of any length, of whole vectors or not."""
    check(lambda *xs: torch.cat(xs, -1), *(values((515, width), dtype) for width in widths))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_other_dimensions(dim):
    shape = [24, 40, 129]
    parts = []
    for more in (0, 1, 5):
        own = list(shape)
        own[dim] += more
        parts.append(values(own))
    check(lambda *xs: torch.cat(xs, dim), *parts)
    check(lambda *xs: torch.cat([x.relu() * 2 for x in xs], dim), *parts)
    check(lambda *xs: torch.cat(xs, dim).relu() * 2, *parts)


def test_layouts():
    """Transposed, broadcast and overlapping pieces."""
    x = values((512, 512))
    check(lambda x: torch.cat([x, x.t(), x[:, :1].expand(512, 512)], 1), x)
    check(lambda x: torch.cat([x[:, 1:].t(), x], 0), x)
    check(lambda x: torch.cat([-x[:, 256:], x[:, :256]], -1), x)


def test_computed_pieces():
    """Products and rows store into their slices; who reads the whole waits for all of them."""
    a, w = values((512, 256)).sign(), values((256, 384)).sign()  # sums that bf16 holds
    b = values((512, 301), torch.float32)

    def body(a, w, b):
        joined = torch.cat([(a @ w).float(), b - b.amax(1, keepdim=True)], 1)
        return joined, joined.amax(1), joined.t().contiguous()

    check(body, a, w, b)


def test_read_by_a_product():
    a, b, w = values((512, 301)), values((512, 211)), values((512, 256))
    check(lambda a, b, w: torch.cat([a, b], 1) @ w, a, b, w)


def test_sizes_vary():
    torch._dynamo.reset()

    def body(a, b):
        return torch.cat([a, b * 2], 1)

    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=True)
    for rows, left, right in [(300, 512, 512), (515, 768, 769), (7, 5, 3), (2048, 64, 1000)]:
        a, b = values((rows, left)), values((rows, right))
        torch.testing.assert_close(compiled(a, b), body(a, b), rtol=0, atol=0)
