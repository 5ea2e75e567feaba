"""The tensor-core attention kinds, forward and backward, against float64."""

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
import driver


def heads(batch, count, length, dim, dtype, transposed):
    """(batch, count, length, dim), stored so or as (batch, length, count, dim)."""
    if transposed:
        return torch.randn(batch, length, count, dim, device="cuda").to(dtype).transpose(1, 2)
    return torch.randn(batch, count, length, dim, device="cuda").to(dtype)


def error(value, reference):
    assert not value.isnan().any()
    return ((value.double() - reference).norm() / reference.norm()).item()


def reference_attention(q, k, v, scale, causal_offset, mask):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    if causal_offset is not None:
        s, t = scores.shape[2:]
        visible = torch.arange(t, device="cuda")[None] <= torch.arange(s, device="cuda")[:, None] + causal_offset
        scores = scores.masked_fill(~visible, -math.inf)
    lse = scores.logsumexp(3)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
    return weights @ v, lse


def mask_range(mask, batch, num_heads, queries, keys):
    """What kMaskRange makes of a mask, and that it is right: keys that a block sees; keys where the mask changes no
    score of the block, whole groups of 64 of them if there are such."""
    mask = mask.expand(batch, num_heads, queries, keys)
    out = torch.full((batch, num_heads, (queries + 127) // 128, 4), -7, dtype=torch.int32, device="cuda")
    driver.mask_range(mask, out).run()
    visible = mask if mask.dtype == torch.bool else mask > -math.inf
    neutral = mask if mask.dtype == torch.bool else mask == 0
    for i, (block, plain) in enumerate(zip(visible.split(128, 2), neutral.split(128, 2))):
        seen, kept = block.any(2), plain.all(2)
        first = torch.where(seen.any(2), seen.int().argmax(2), 0)
        last = torch.where(seen.any(2), keys - seen.flip(2).int().argmax(2), 0)
        assert torch.equal(out[:, :, i, 0], first.int()) and torch.equal(out[:, :, i, 1], last.int())
        one_row = block.shape[2] == 1 or mask.stride(2) == 0
        for row, (low, high, begin, end) in zip(kept.flatten(0, 1).tolist(), out[:, :, i].flatten(0, 1).tolist()):
            if one_row and low < high and all(row[low:high]):  # then it is exact
                assert (begin, end) == (low, high)
                continue
            groups = [all(row[k : k + 64]) for k in range(0, keys, 64)]
            longest = max(map(len, "".join("x" if group else " " for group in groups).split()), default=0)
            assert all(row[begin:end]) and (end - begin + 63) // 64 == longest, (begin, end, longest)
    return out


def check(
    batch,
    num_heads,
    kv_heads,
    queries,
    keys,
    dim,
    dtype=torch.bfloat16,
    causal_offset=None,
    mask=None,
    transposed=False,
    chunk=1,
):
    q = heads(batch, num_heads, queries, dim, dtype, transposed)
    k, v = (heads(batch, kv_heads, keys, dim, dtype, transposed) for _ in range(2))
    dout = heads(batch, num_heads, queries, dim, dtype, transposed)
    scale = 1 / math.sqrt(dim)
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    out_exact, lse_exact = reference_attention(*exact, scale, causal_offset, mask)
    out_exact.backward(dout.double())

    def empty(t):
        return torch.full_like(t, float("nan"))

    sizes = (batch, num_heads, kv_heads, queries, keys, dim)
    options = dict(
        scale=scale, causal=causal_offset is not None, causal_offset=causal_offset or 0, mask=mask, chunk=chunk
    )
    ranges = None if mask is None else mask_range(mask, batch, num_heads, queries, keys)
    mask4 = None if mask is None else mask.expand(batch, num_heads, queries, keys)
    if mask4 is not None:  # strides of broadcast dimensions are 0 after expand
        assert mask4.dim() == 4
    out, lse = empty(q), torch.full((batch, num_heads, queries), float("nan"), device="cuda")
    jobs = [driver.attention(0, [q, k, v, out, lse, mask4, ranges], sizes, **options)]
    delta = torch.full_like(lse, float("nan"))
    jobs.append(driver.attention(1, [dout, out, delta], sizes, **options))
    dq, dk, dv = empty(q), empty(k), empty(v)
    backward = [q, k, v, dout, lse, delta, mask4, ranges]
    jobs.append(driver.attention(2, backward + [None, dk, dv], sizes, **options))
    jobs.append(driver.attention(3, backward + [dq, None, None], sizes, **options))
    for job in jobs:
        job.run()
    results = {"out": (out, out_exact), "dk": (dk, exact[1].grad), "dv": (dv, exact[2].grad), "dq": (dq, exact[0].grad)}
    errors = {name: error(*pair) for name, pair in results.items()}
    seen = lse_exact > -math.inf
    errors["lse"] = (lse.double() - lse_exact)[seen].abs().max().item()
    assert torch.equal(lse > -math.inf, seen)
    assert all(e < 1e-2 for e in errors.values()), errors
    before = [t.clone() for t in (out, dq, dk, dv)]
    for job in jobs:
        job.run()
    assert all(torch.equal(x, y) for x, y in zip(before, (out, dq, dk, dv)))


@pytest.mark.parametrize("dim", [8, 32, 64, 72, 80, 96, 120, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_plain(dim, dtype):
    check(2, 3, 3, 384, 384, dim, dtype)
    check(1, 2, 2, 128, 2048, dim, dtype)


@pytest.mark.parametrize("dim", [24, 64, 80, 128])
def test_ragged_layouts_and_groups(dim):
    check(2, 4, 2, 200, 333, dim, transposed=True)
    check(1, 8, 2, 77, 1000, dim, chunk=3)
    check(3, 2, 1, 1, 40, dim)


@pytest.mark.parametrize("dim", [40, 64, 96, 128])
def test_causal(dim):
    check(2, 2, 2, 512, 512, dim, causal_offset=0)
    check(1, 4, 2, 300, 700, dim, causal_offset=400, transposed=True)
    check(1, 2, 2, 1024, 1024, dim, causal_offset=0, chunk=5)


@pytest.mark.parametrize("dim", [64, 128])
def test_masks(dim):
    keys = torch.arange(500, device="cuda")
    padding = keys[None] < torch.tensor([130, 500], device="cuda")[:, None]
    check(2, 2, 2, 500, 500, dim, mask=padding[:, None, None, :])
    window = (keys[None] <= keys[:, None]) & (keys[None] > keys[:, None] - 150)
    check(2, 2, 1, 500, 500, dim, mask=window[None, None])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        bias = torch.randn(1, 2, 500, 500, device="cuda").masked_fill(~window, -math.inf).to(dtype)
        check(2, 2, 2, 500, 500, dim, mask=bias)


@pytest.mark.parametrize("dim", [64, 128])
def test_masks_that_change_little(dim):
    """Blocks that a mask leaves as they are beside blocks that it changes."""
    visible = torch.ones(2, 2, 384, 300, dtype=torch.bool, device="cuda")
    check(2, 2, 2, 384, 300, dim, mask=visible[:1, :1])
    visible[1, :, 200, 17] = False
    check(2, 2, 2, 384, 300, dim, mask=visible)
    bias = torch.zeros(1, 2, 384, 300, device="cuda")
    bias[:, 1, 130:140, 7] = 0.5
    check(2, 2, 1, 384, 300, dim, mask=bias.bfloat16())


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("keys", [42, 300])
def test_hidden_keys_may_be_anything(dim, keys):
    """Neither NaN nor infinity of a key that the mask hides reaches the output."""
    q = heads(1, 2, 70, dim, torch.bfloat16, False)
    k, v = (heads(1, 2, keys, dim, torch.bfloat16, False) for _ in range(2))
    mask = (torch.arange(keys, device="cuda") < keys - 3).view(1, 1, 1, keys)
    exact, _ = reference_attention(*(t.double() for t in (q, k, v)), 0.1, None, mask)
    k[:, :, keys - 3], k[:, :, keys - 2] = float("nan"), float("inf")
    out, lse = torch.full_like(q, float("nan")), torch.full((1, 2, 70), float("nan"), device="cuda")
    tensors = [q, k, v, out, lse, mask.expand(1, 2, 70, keys), mask_range(mask, 1, 2, 70, keys)]
    driver.attention(0, tensors, (1, 2, 2, 70, keys, dim), scale=0.1, mask=mask).run()
    assert error(out, exact) < 4e-3


def test_rows_that_see_nothing():
    visible = torch.ones(1, 1, 256, 256, dtype=torch.bool, device="cuda")
    visible[..., 100:140, :] = False
    check(1, 2, 2, 256, 256, 64, mask=visible)
    check(1, 2, 2, 256, 128, 64, causal_offset=-64)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("keys", [512, 333, 3000])
def test_mask_ranges(dtype, keys):
    torch.manual_seed(keys)
    position = torch.arange(keys, device="cuda")
    visible = (position <= torch.arange(300, device="cuda")[:, None]) & (position >= 100)
    visible = visible.expand(2, 3, 300, keys).clone()
    visible[1, :, 130:] = True
    visible[1, 2, 200, 70] = False
    visible[0, 0] = False
    mask = visible if dtype == torch.bool else torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, -math.inf)
    mask_range(mask, 2, 3, 300, keys)
    mask_range(mask[:, :1, :1], 2, 3, 300, keys)
