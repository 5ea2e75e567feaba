"""kAttentionSimple: attention forward of any type, size and stride. Errors are against float64, and eager's is the
yardstick."""

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
import driver
from test_attention import mask_range, reference_attention

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def tensor(batch, heads, length, dim, dtype, layout):
    """(batch, heads, length, dim), stored "plain", with heads innermost but one, with columns apart, with rows that
    begin anywhere, or as rows of a longer line."""
    if layout == "transposed":
        return torch.randn(batch, length, heads, dim, device="cuda").to(dtype).transpose(1, 2)
    if layout == "columns":
        return torch.randn(batch, heads, dim, length, device="cuda").to(dtype).transpose(2, 3)
    if layout == "odd":
        return torch.randn(batch, heads, length, dim + 1, device="cuda").to(dtype)[..., 1:]
    if layout == "cut":
        return torch.randn(batch, heads, length, dim + 16, device="cuda").to(dtype)[..., 8:-8]
    return torch.randn(batch, heads, length, dim, device="cuda").to(dtype)


def eager(q, k, v, scale, causal_offset, mask):
    """In the tensors' own type: products, softmax and masks as PyTorch's operators do them one by one."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(q.dtype)
    if causal_offset is not None:
        s, t = scores.shape[2:]
        visible = torch.arange(t, device="cuda")[None] <= torch.arange(s, device="cuda")[:, None] + causal_offset
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(3).nan_to_num(0) @ v


def error(value, exact):
    size = exact.norm()
    return ((value.double() - exact).norm() / (size if size > 0 else 1)).item()


def run(q, k, v, scale, causal_offset=None, mask=None, ranges=None, chunk=1):
    batch, heads, queries, dim = q.shape
    keys, value_dim = v.shape[2:]
    out = torch.empty_strided(
        (batch, heads, queries, value_dim),
        (queries * heads * value_dim, value_dim, heads * value_dim, 1),
        device="cuda",
        dtype=q.dtype,
    ).fill_(float("nan"))
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = torch.full((batch, heads, queries), float("nan"), device="cuda", dtype=statistics)
    mask4 = None if mask is None else mask.expand(batch, heads, queries, keys)
    sizes = (batch, heads, k.shape[1], queries, keys, dim, value_dim)
    options = dict(causal=causal_offset is not None, causal_offset=causal_offset or 0, mask=mask4, chunk=chunk)
    job = driver.attention(4, [q, k, v, out, lse, mask4, ranges], sizes, scale, **options)
    job.run()
    before = out.clone()
    job.run()
    assert torch.equal(before.nan_to_num(7), out.nan_to_num(7))  # the same bits again
    return out, lse


def assert_as_good_as_eager(out, exact, eager_out, keys):
    """Twice eager's error, or what adding up so many products one after the other errs (libraries add few rows in
    parts). In fp64 eager computes what the reference computes: there the error of a few roundings is allowed."""
    own, yardstick = error(out, exact), error(eager_out, exact)
    limit = 1e-14 if out.dtype == torch.float64 else max(2 * yardstick, 2**-24 * math.sqrt(keys))
    assert own <= limit, (own, yardstick, limit)


def as_float(x):
    """Scales are in fp32."""
    return torch.tensor(x, dtype=torch.float32).item()


def check(q, k, v, causal_offset=None, mask=None, ranges=None, chunk=1):
    scale = as_float(1 / math.sqrt(q.shape[3]))
    out, lse = run(q, k, v, scale, causal_offset, mask, ranges, chunk)
    exact, lse_exact = reference_attention(q.double(), k.double(), v.double(), scale, causal_offset, mask)
    assert not out.isnan().any()
    assert_as_good_as_eager(out, exact, eager(q, k, v, scale, causal_offset, mask), k.shape[2])
    seen = lse_exact > -math.inf
    assert torch.equal(lse > -math.inf, seen)
    limit = 1e-13 if q.dtype == torch.float64 else 1e-5
    assert ((lse.double() - lse_exact)[seen].abs() <= limit * (1 + lse_exact[seen].abs())).all()
    assert (out[~seen] == 0).all()


def tensors(dtype, dim, value_dim, layouts=("plain", "plain", "plain"), batch=2, heads=4, kv=2, queries=150, keys=210):
    return (
        tensor(batch, heads, queries, dim, dtype, layouts[0]),
        tensor(batch, kv, keys, dim, dtype, layouts[1]),
        tensor(batch, kv, keys, value_dim, dtype, layouts[2]),
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [16, 32, 80, 96, 160, 256, 72, 33, 65])
def test_head_sizes(dim, dtype):
    q, k, v = tensors(dtype, dim, dim, ("transposed", "plain", "transposed"))
    check(q, k, v)
    check(q, k, v, causal_offset=0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim, value_dim", [(32, 96), (160, 80), (40, 256), (300, 16), (8, 24), (65, 33), (64, 300)])
def test_value_sizes(dim, value_dim, dtype):
    if dtype in (torch.bfloat16, torch.float16) and value_dim == 24:
        value_dim = 32  # among the kernels that the driver has
    check(*tensors(dtype, dim, value_dim), causal_offset=60)


@pytest.mark.parametrize("dtype", TYPES)
def test_layouts(dtype):
    for layouts in [
        ("columns", "plain", "plain"),
        ("odd", "odd", "odd"),
        ("cut", "cut", "cut"),
        ("plain", "columns", "odd"),
    ]:
        check(*tensors(dtype, 80, 96, layouts), causal_offset=20)


@pytest.mark.parametrize("dtype", TYPES)
def test_lengths_and_items(dtype):
    for queries, keys, chunk in [(1, 1, 1), (1, 500, 1), (129, 64, 2), (64, 65, 3), (200, 1000, 100), (257, 31, 5)]:
        check(*tensors(dtype, 32, 32, queries=queries, keys=keys), chunk=chunk)
        check(*tensors(dtype, 32, 32, queries=queries, keys=keys), causal_offset=keys - queries, chunk=chunk)


@pytest.mark.parametrize("dtype", TYPES)
def test_causal_offsets(dtype):
    q, k, v = tensors(dtype, 96, 96, queries=300, keys=280)
    for offset in (-400, -130, -1, 0, 63, 64, 279):
        check(q, k, v, causal_offset=offset)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask_type", [torch.bool, torch.float32, torch.float64, torch.bfloat16])
def test_masks(dtype, mask_type):
    queries, keys = 150, 212
    for shape in [(2, 4, queries, keys), (1, 1, queries, keys), (2, 1, 1, keys), (1, 4, queries, 1)]:
        seen = torch.rand(shape, device="cuda") < 0.7
        mask = seen if mask_type == torch.bool else torch.randn(shape, device="cuda").to(mask_type)
        if mask_type != torch.bool and dtype != torch.float64:
            mask = mask.to(dtype).to(mask_type)  # eager adds it in the tensors' type
        if mask_type != torch.bool and shape[3] != 1:
            mask = mask.masked_fill(~seen, -math.inf)
        for dim in (80, 256):
            q, k, v = tensors(dtype, dim, dim, queries=queries, keys=keys)
            check(q, k, v, mask=mask)
            check(q, k, v, mask=mask, causal_offset=100)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [96, 256])
def test_mask_ranges(dtype, dim):
    """Keys that a block of queries does not see are not read, nor is the mask where it changes nothing."""
    queries, keys = 300, 400
    position = torch.arange(keys, device="cuda")
    visible = (position <= torch.arange(queries, device="cuda")[:, None]) & (position >= 70)
    mask = visible.expand(2, 4, queries, keys).clone()
    mask[1, 2] = False
    for m in (mask, torch.zeros(mask.shape, device="cuda").masked_fill(~mask, -math.inf)):
        q, k, v = tensors(dtype, dim, dim, queries=queries, keys=keys)
        check(q, k, v, mask=m, ranges=mask_range(m, 2, 4, queries, keys), chunk=2)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_see_nothing(dtype):
    mask = torch.ones(1, 1, 150, 210, dtype=torch.bool, device="cuda")
    mask[..., 20:90, :] = False
    check(*tensors(dtype, 80, 80), mask=mask)
    check(*tensors(dtype, 80, 80), mask=torch.zeros(mask.shape, device="cuda").masked_fill(~mask, -math.inf))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [80, 33])
def test_nan_passes_through(dtype, dim):
    """A query that is not a number, a key that some queries see, a value: in what eager makes NaN and nowhere else."""
    q, k, v = tensors(dtype, dim, dim, queries=150, keys=210)
    q[0, 1, 7, 3] = float("nan")
    k[1, 0, 100, 5] = float("nan")
    v[1, 1, 40, 2] = float("nan")
    out, lse = run(q, k, v, 0.1, causal_offset=0)
    wanted = torch.zeros_like(out, dtype=torch.bool)
    wanted[0, 1, 7] = True
    wanted[1, :2, 100:] = True
    wanted[1, 2:, 40:, 2] = True
    visible = torch.ones_like(wanted)
    visible[1, 2:, :40, 2] = False  # weights of 0 times NaN, within a block of keys: either
    assert torch.equal(out.isnan() & visible, wanted & visible)
    assert torch.equal(lse.isnan(), wanted[..., 0])


def test_negative_and_zero_scale():
    for dtype in TYPES:
        q, k, v = tensors(dtype, 80, 80)
        for scale in (as_float(-0.2), 0.0):
            out, _ = run(q, k, v, scale, causal_offset=0)
            exact, _ = reference_attention(q.double(), k.double(), v.double(), scale, 0, None)
            assert_as_good_as_eager(out, exact, eager(q, k, v, scale, 0, None), k.shape[2])
