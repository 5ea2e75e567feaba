"""`ark::draw_by_mass`: a plan's op, and what eager makes of it, against masses in float64 and against a select of the
distances that are kept; and the draws of `sampling`, which takes it for top-p alone.

On the host target the last op looks at the whole row, and candidates are neither listed nor weighed: these are for
tests/cuda_compile/host/draws.cpp, and for a GPU."""

from __future__ import annotations

import pytest
import torch

from ark_torch.row_select import steps
from ark_torch.sampling import Processor, draw, gumbel_like, process
from tests.conftest import has_extension

STRICT = {"strict": True}
extension = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
HOWS = ["eager", pytest.param("ark", marks=extension)]
# A row is one worker's below 8192 elements, or where there are many rows; vectors and parts divide few of them.
SIZES = ((1, 1), (3, 7), (1, 20003), (2, 33001), (8, 16384), (33, 9001))
SHARES = (0.99, 0.9, 0.5, 0.1, 0.01, 0.0)


def values_of(kind: str, rows: int, size: int) -> torch.Tensor:
    x = torch.randn(rows, size) * 3
    if kind == "16 bits":
        return x.bfloat16().float()
    if kind == "flat":
        return x * 1e-3
    if kind == "equal":
        return torch.full_like(x, -1.5)
    if kind == "few values":
        return x.round()
    if kind == "peaked":
        return torch.where(torch.arange(size) == size // 2, x + 15, x)
    if kind == "taken away":
        return torch.where(torch.rand(rows, size) < 0.99, -torch.inf, x).index_fill(1, torch.tensor([size // 3]), 1.0)
    if kind == "in order":  # the best are neighbours
        return x.sort(-1, descending=True).values
    return x


KINDS = ("random", "16 bits", "flat", "equal", "few values", "peaked", "taken away", "in order")


def compiled(function, how: str, **options):
    return torch.compile(function, backend="ark", options={**STRICT, **options}) if how == "ark" else function


def drawn(how: str, **options):
    torch._dynamo.reset()
    return compiled(lambda *args: torch.ops.ark.draw_by_mass(*args), how, **options)


def by_selects(values, noise, share):
    """The same of two ops: what is kept, and the best of it."""
    distances = values.amax(-1, keepdim=True) - values
    last = torch.ops.ark.select_by_mass(distances, share)[:, None]
    kept = values.where(steps(distances) <= last, -torch.inf)
    best, token = (kept + noise).where(kept > -torch.inf, kept).max(-1)
    return token, best


def check_drawn(values, noise, share, token, best) -> None:
    """The best of what is kept for certain is not better, and what is drawn may be kept."""
    values, noise, share = values.cpu(), noise.cpu(), share.cpu().double()[:, None]
    noisy = values + noise
    token, best = token.cpu()[:, None], best.cpu()[:, None]
    assert torch.equal(noisy.gather(-1, token), best)
    distances = values.double().amax(-1, keepdim=True) - values.double()
    ordered, places = distances.sort(-1, descending=True)
    behind = torch.exp(-ordered).cumsum(-1)
    same = (
        torch.searchsorted(-ordered.contiguous(), (2.0**-21 - ordered).contiguous(), right=True) - 1
    )  # steps, and distances in float32
    error = 2.0**-15
    certain = behind / behind[:, -1:] > share + error
    possible = (behind / behind[:, -1:]).gather(-1, same) > share - error
    surely, maybe = (torch.zeros_like(x).scatter(-1, places, x) for x in (certain, possible | (ordered < 2.0**-21)))
    assert maybe.gather(-1, token).all()
    assert (noisy.where(surely, -torch.inf).amax(-1, keepdim=True) <= best).all()


def check(kind: str, rows: int, size: int, device: str, how: str, seed: int = 0) -> None:
    torch.manual_seed(size + seed)
    values = values_of(kind, rows, size).to(device)
    run = drawn(how)
    for one in SHARES:
        noise, share = gumbel_like(values), torch.full((rows,), one, device=device)
        with torch.no_grad():
            check_drawn(values, noise, share, *run(values, noise, share))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_draws(kind, how):
    for rows, size in SIZES if how == "ark" else SIZES[:4]:
        check(kind, rows, size, "cpu", how)


def check_against_selects(kind: str, rows: int, size: int, device: str, seeds: int) -> int:
    """How many tokens differ."""
    torch.manual_seed(rows + size)
    values = values_of(kind, rows, size).to(device)
    ours, theirs = drawn("ark"), compiled(by_selects, "ark")
    different = 0
    for one in SHARES:
        share = torch.full((rows,), one, device=device)
        for _ in range(seeds):
            noise = gumbel_like(values)
            with torch.no_grad():
                (token, best), wanted = ours(values, noise, share), theirs(values, noise, share)
            different += int((token != wanted[0]).sum())
            assert torch.equal(best[token == wanted[0]], wanted[1][token == wanted[0]])
    return different


@extension
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_a_select(kind):
    """Bit by bit, though each of the two may be off by 2**-15 of the mass."""
    for rows, size in ((1, 20003), (2, 33001), (8, 16385), (33, 5001)):
        assert check_against_selects(kind, rows, size, "cpu", 8) == 0


def check_special(value: float, rows: int, size: int, device: str, how: str) -> None:
    """Nothing can be drawn: the token is where such a value is first, and the sum says so."""
    torch.manual_seed(3)
    values = torch.randn(rows, size, device=device)
    values[0, 17], values[0, size - 3] = value, value
    if value == -torch.inf:
        values[0] = value
    noise, share = gumbel_like(values), torch.full((rows,), 0.1, device=device)
    with torch.no_grad():
        token, best = drawn(how)(values, noise, share)
    assert not best[0].isfinite() and best[1:].isfinite().all()
    assert token[0].item() == (0 if value == -torch.inf else 17)
    if rows > 1:
        check_drawn(values[1:], noise[1:], share[1:], token[1:], best[1:])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_nothing_can_be_drawn_from(value, how):
    for rows, size in ((1, 20003), (3, 8192), (2, 300)):
        check_special(value, rows, size, "cpu", how)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("share", [1.0, 2.0, torch.inf, -0.5, -torch.inf, torch.nan])
def test_shares_out_of_range(share, how):
    """The nearest stay in any case; less than nothing takes nothing away."""
    torch.manual_seed(5)
    values = torch.randn(2, 20003)
    values[:, 7], values[1, 9000] = 9, 9
    noise = gumbel_like(values)
    token, best = drawn(how)(values, noise, torch.full((2,), share))
    wanted = torch.tensor([7, 7 if noise[1, 7] >= noise[1, 9000] else 9000])
    if not share >= 1:
        wanted = (values + noise).argmax(-1)
    assert torch.equal(token, wanted) and torch.equal(best, (values + noise).gather(-1, wanted[:, None])[:, 0])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("share", [0.0, -0.0, -0.5, torch.nan])
def test_what_is_64_away_is_not_drawn(share, how):
    """Whatever its noise, in rows of one worker and of parts."""
    torch.manual_seed(8)
    for size in (300, 20003):
        values = torch.randn(3, size)
        values[:, 5] = torch.tensor([10.0, 0.0, 70.0])
        top = values.amax(-1)
        values[:, 100:110], values[:, 200] = (top - 64)[:, None], top - 90
        values[:, 150] = top - 63.5
        noise = torch.zeros(3, size).index_fill(1, torch.tensor([102, 200]), 200.0)
        noise[1, 150] = 150.0
        token, best = drawn(how)(values, noise, torch.full((3,), share))
        near = values > (top - 64)[:, None]
        wanted = (values + noise).where(near, -torch.inf).max(-1)
        assert torch.equal(token, wanted.indices) and torch.equal(best, wanted.values)


def test_default_dtypes():
    """Torch's default type changes nothing: 2^28, where what is far away begins, is no number of half precision."""
    torch.manual_seed(9)
    values, noise, share = torch.randn(2, 300), torch.rand(2, 300) * 9, torch.full((2,), 0.9)
    wanted = torch.ops.ark.draw_by_mass(values, noise, share)
    torch.set_default_dtype(torch.float16)
    try:
        found = torch.ops.ark.draw_by_mass(values, noise, share)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, found, wanted))


def check_views(device: str) -> None:
    torch.manual_seed(6)
    size = 20002
    x = torch.randn(3, 2 * size + 3, device=device) * 3
    views = {
        "offset": lambda x: x[:, 1 : size + 1],
        "offset by a vector": lambda x: x[:, 4 : size + 4],
        "every second": lambda x: x[:, : 2 * size : 2],
        "columns": lambda x: x[:2].t()[:40],
        "one row for all": lambda x: x[:1, :size].expand(5, -1),
        "computed": lambda x: x[:, :size] * 0.5 + 1,
    }
    for view in views.values():
        values = view(x)
        noise, share = gumbel_like(values), torch.full((values.size(0),), 0.2, device=device)
        run = compiled(lambda x, noise, share, view=view: torch.ops.ark.draw_by_mass(view(x), noise, share), "ark")
        with torch.no_grad():
            check_drawn(values, noise, share, *run(x, noise, share))


@extension
def test_views(executor):
    check_views("cpu")


@extension
@pytest.mark.parametrize("rows,size", [(1, 128256), (8, 16385), (70, 33001)])
def test_any_number_of_workers_draws_the_same(rows, size, device="cpu"):
    check_workers(rows, size, device)


def check_workers(rows: int, size: int, device: str, most: int = 700) -> None:
    torch.manual_seed(rows)
    values = values_of("few values", rows, size).to(device)
    given = values, gumbel_like(values), torch.full((rows,), 0.1, device=device)
    with torch.no_grad():
        first = drawn("ark", workers=1)(*given)
        for workers in (7, 132, most):
            for ours, theirs in zip(drawn("ark", workers=workers)(*given), first, strict=True):
                assert torch.equal(ours, theirs), workers


def processors(rest: float, *others: Processor) -> tuple:
    return *others, Processor("top_p", (torch.tensor(rest),))


@extension
@pytest.mark.parametrize("rows,size", [(1, 20003), (3, 900)])
def test_top_p_alone_draws_what_processed_scores_do(rows, size):
    """The same seed makes the same noise: tokens are the best of what `process` leaves, with it."""
    temperature = Processor("temperature", (torch.tensor(0.7),))

    def of_processed(scores, given, length):
        values = process(scores, given, length, None)
        best, token = (values + gumbel_like(scores)).where(values > -torch.inf, values).max(-1)
        return token, best.isfinite()

    ours = torch.compile(lambda *args: draw(*args, None), backend="ark", options=STRICT)
    theirs = torch.compile(of_processed, backend="ark", options=STRICT)
    scores = torch.randn(rows, size) * 3
    for rest in (0.1, 0.5, 0.99):
        for others in ((), (temperature,)):
            given, results = processors(rest, *others), []
            for seed in range(12):
                for run in (ours, theirs):
                    torch.manual_seed(seed)
                    with torch.no_grad():
                        results.append(run(scores, given, torch.tensor(1)))
            for mine, wanted in zip(results[::2], results[1::2], strict=True):
                assert torch.equal(mine[0], wanted[0]) and mine[1].all() and wanted[1].all()


def test_which_processors_draw_at_once():
    used = []
    scores, length = torch.randn(2, 50), torch.tensor(1)
    top_k = Processor("top_k", (torch.tensor(9),))

    class Noted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            used.append(func is torch.ops.ark.draw_by_mass.default)
            return func(*args, **kwargs or {})

    least = Processor("top_p", (torch.tensor(0.1), torch.tensor(3)))
    cases = ((processors(0.1), 1), (processors(0.1, top_k), 0), ((least,), 0), ((*processors(0.1), top_k), 0), ((), 0))
    for given, wanted in cases:
        used.clear()
        with Noted():
            draw(scores, given, length, None)
        assert sum(used) == wanted, given


def check_distribution(device: str, rows: int = 1 << 14) -> None:
    """Of draws from a row, among those the share leaves."""
    torch.manual_seed(9)
    scores = torch.randn(30, device=device) * 1.5
    ordered = torch.softmax(scores.double(), 0).sort(descending=True)
    kept = int((ordered.values.cumsum(0) < 0.8).sum()) + 1
    run = torch.compile(lambda *args: draw(*args, None), backend="ark", options=STRICT)
    given = (Processor("top_p", (torch.tensor(0.2, device=device),)),)
    with torch.no_grad():
        tokens, fine = run(scores.expand(rows, -1).contiguous(), given, torch.tensor(1, device=device))
    counts = torch.bincount(tokens, minlength=30)[ordered.indices].double()
    assert fine.all() and counts[kept:].sum() == 0
    wanted = ordered.values[:kept] / ordered.values[:kept].sum() * rows
    assert (((counts[:kept] - wanted) ** 2 / wanted).sum() / (kept - 1)).item() < 4


@extension
def test_draws_are_distributed_as_softmax():
    check_distribution("cpu")


def test_other_types_are_refused():
    x, share = torch.rand(3, 5), torch.ones(3)
    with pytest.raises(TypeError, match=r"noise for each element: torch.float64 \[3, 5\], expected torch.float32"):
        torch.ops.ark.draw_by_mass(x, x.double(), share)
    with pytest.raises(TypeError, match=r"torch.float32 \[1\], expected torch.float32 \[3\]"):
        torch.ops.ark.draw_by_mass(x, x, share[:1])
