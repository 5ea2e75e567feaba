"""kAttentionDecode against float64: few queries, a cache that is partly immutable, parts of the keys."""

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
import driver
from test_attention import error, heads, reference_attention

TYPES = [torch.bfloat16, torch.float16]
DIMS = [64, 128, 256]  # of both types
ODD_DIMS = [80, 96, 112, 160, 192]  # of bfloat16


def range_of(mask, batch, num_heads, queries, keys):
    mask = mask.expand(batch, num_heads, queries, keys)
    out = torch.full((batch, num_heads, 1, 4), -7, dtype=torch.int32, device="cuda")
    driver.mask_range(mask, out).run()
    return out


def combined(sums, maxima, used):
    """(batch, kv head, part, row, dim) and (.., 2) of the parts that are used, as the reader puts them together."""
    sums, maxima = sums[:, :, :used].double(), maxima[:, :, :used].double()
    top, total = maxima[..., 0], maxima[..., 1]
    seen = total > 0
    weight = torch.where(seen, torch.exp2(top - top.masked_fill(~seen, -math.inf).amax(2, keepdim=True)), 0.0)
    value = (sums.masked_fill(~seen[..., None], 0) * weight[..., None]).sum(2)
    total = (total.masked_fill(~seen, 0) * weight).sum(2)
    return torch.where(total[..., None] > 0, value / total[..., None], 0.0)


def check(
    sizes,
    dtype=torch.bfloat16,
    position=None,
    parts=1,
    each=256,
    mask=None,
    causal_offset=None,
    transposed=False,
    chunk=1,
    at_once=1,
    later=0,
):
    """sizes: batch, heads, kv heads, queries, keys, dim. Rows of the cache that nothing sees hold no numbers; `later`:
    so many behind those of this launch may be seen."""
    batch, num_heads, kv_heads, queries, keys, dim = sizes
    q = heads(batch, num_heads, queries, dim, dtype, False)
    k, v = (heads(batch, kv_heads, keys, dim, dtype, transposed) for _ in range(2))
    scale = 1 / math.sqrt(dim)
    reference, _ = reference_attention(*(t.double() for t in (q, k, v)), scale, causal_offset, mask)
    if position is not None:
        for t in (k, v):
            t[:, :, position + queries + later :] = math.nan
    out = torch.full_like(q, math.nan)
    sums = torch.full((batch, kv_heads, parts, num_heads // kv_heads * queries, dim), math.nan, device="cuda")
    maxima = torch.full((*sums.shape[:-1], 2), math.nan, device="cuda")
    range_ = None if mask is None else range_of(mask, *sizes[:2], *sizes[3:5])
    full = None if mask is None else mask.expand(batch, num_heads, queries, keys)
    scalar = None if position is None else torch.tensor(position, device="cuda")
    shown = [t if parts > 1 else None for t in (sums, maxima)]
    job = driver.decode(
        [q, k, v, out, None, full, range_, *shown, scalar],
        sizes,
        scale,
        parts,
        each,
        causal_offset is not None,
        causal_offset or 0,
        chunk,
        at_once,
    )
    job.run()
    if parts > 1:
        used = parts if position is None else min(max(1, -(-(position + queries) // each)), parts)
        out = combined(sums, maxima, used).reshape(batch, num_heads, queries, dim)
    assert error(out, reference) < (4e-3 if dtype == torch.bfloat16 else 8e-4)


def row_mask(keys, visible, queries=1):
    """Query i sees the keys below visible + i."""
    return torch.arange(keys, device="cuda")[None] < visible + torch.arange(queries, device="cuda")[:, None]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 16])
def test_positions(dtype, dim, group):
    for position in (0, 1, 15, 31, 63, 96, 127, 130, 500, 1000):
        sizes = (1, 2 * group, 2, 1, 1024, dim)
        check(sizes, dtype, position, parts=4, mask=row_mask(1024, position + 1))


@pytest.mark.parametrize("dim", ODD_DIMS)
@pytest.mark.parametrize("group", [1, 3, 4, 5, 16])
def test_other_head_sizes(dim, group):
    for position in (0, 7, 15, 31, 96, 130, 1000):
        mask = row_mask(1024, position + 1)
        check((2, 2 * group, 2, 1, 1024, dim), position=position, parts=8, each=128, mask=mask)


@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
@pytest.mark.parametrize("queries", [2, 3, 4, 5, 8])
def test_several_queries(dim, queries):
    for position in (0, 13, 96, 250):
        mask = row_mask(300, position + 1, queries)
        check((2, 4, 2, queries, 300, dim), position=position, parts=2, each=128, mask=mask)
        check((1, 2, 2, queries, 300, dim), position=position, mask=mask, chunk=2)
    check((2, 4, 2, queries, 300, dim), causal_offset=300 - queries)
    check((1, 4, 4, queries, 300, dim), causal_offset=300 - queries, parts=3, each=100, chunk=3)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.float32])
def test_masks(dim, dtype):
    """Padding on the left, holes, and additive masks that change every score."""
    position, keys = 200, 512
    visible = row_mask(keys, position + 1)
    padded = visible & (torch.arange(keys, device="cuda") >= 37)
    holes = visible & (torch.arange(keys, device="cuda") % 5 != 2)
    for shown in (visible, padded, holes):
        mask = shown
        if dtype != torch.bool:
            mask = torch.where(shown, torch.zeros((), dtype=dtype, device="cuda"), -math.inf)
        check((2, 8, 2, 1, keys, dim), position=position, mask=mask, parts=2, each=128)
    if dtype != torch.bool:
        slopes = torch.arange(1, 9, device="cuda")[:, None, None] * torch.linspace(-1, 0, keys, device="cuda")
        mask = torch.where(visible, slopes, -math.inf).to(dtype)
        check((2, 8, 2, 1, keys, dim), position=position, mask=mask, parts=2, each=128)
    per_head = torch.arange(keys, device="cuda") < torch.tensor([201, 180, 77, 3], device="cuda")[:, None, None]
    check((1, 4, 1, 1, keys, dim), position=position, mask=per_head, parts=2, each=128)


@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_everything_after_the_waits(dim):
    for keys in (1, 40, 64, 100, 1000):
        check((2, 8, 2, 1, keys, dim))
        check((2, 8, 8, 1, keys, dim), mask=row_mask(keys, keys // 2 + 1), parts=3, each=64)
        check((1, 8, 2, 1, keys, dim), transposed=True)


@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_rows_that_lie_apart(dim):
    check((2, 8, 2, 1, 300, dim), position=170, mask=row_mask(300, 171), transposed=True)


PAIRED_DIMS = [64, 80, 96, 112, 128]


@pytest.mark.parametrize("dim", PAIRED_DIMS)
@pytest.mark.parametrize("group", [1, 3, 4, 5, 16])
def test_two_tiles_at_once(dim, group):
    """9 tiles: of items of 2 the last is one tile, of items of 3 each has one left over."""
    for position in (0, 1, 15, 31, 63, 64, 96, 127, 130, 1000):
        for chunk in (2, 3, 9):
            sizes = (3, 3 * group, 3, 1, 1024, dim)
            check(sizes, position=position, mask=row_mask(1024, position + 1), chunk=chunk, at_once=2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
def test_rows_of_two_tiles_at_once(dtype, dim):
    """Several queries, causal or by a mask; padding on the left that differs by sequence; rows that lie apart; more
    rows behind the position than are staged at a time."""
    keys = 300
    for queries, position in ((2, 0), (3, 13), (8, 96), (16, 250)):
        for num_heads in (4, 8) if queries <= 4 else (2, 1):
            sizes = (2, num_heads, 1 if num_heads == 1 else 2, queries, keys, dim)
            check(sizes, dtype, position, mask=row_mask(keys, position + 1, queries), chunk=2, at_once=2)
            causal = (*sizes[:4], position + queries, dim)
            check(causal, dtype, position, causal_offset=position, chunk=2, at_once=2)
    visible = row_mask(keys, 201)
    begins = torch.tensor([0, 37, 130, 200], device="cuda")[:, None, None, None]
    padded = visible & (torch.arange(keys, device="cuda") >= begins)
    for mask in (padded, torch.where(padded, torch.linspace(-1, 0, keys, device="cuda"), -math.inf).to(dtype)):
        check((4, 8, 2, 1, keys, dim), dtype, 200, mask=mask, chunk=3, at_once=2)
        check((4, 8, 2, 1, keys, dim), dtype, 200, mask=mask, chunk=2, at_once=2, transposed=True)
    for later in (1, 7, 8, 15, 16, 40, 99):
        check((2, 8, 2, 1, keys, dim), dtype, 200, mask=row_mask(keys, 201 + later), chunk=4, at_once=2, later=later)
