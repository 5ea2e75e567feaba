"""`ark::select_by_count` and `ark::select_by_mass`: a plan's op, and what eager makes of them, against sorted rows."""

from __future__ import annotations

import pytest
import torch

import ark_torch.row_select
from tests.conftest import has_extension

STRICT = {"strict": True}
extension = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
MOST = 2**28 - 1


def rows_of(kind: str, rows: int, size: int) -> torch.Tensor:
    torch.manual_seed(size)
    x = torch.randn(rows, size).mul(3).abs()
    if kind == "equal":
        return torch.full_like(x, 2.5)
    if kind == "few values":
        return (x * 2).round() / 2
    if kind == "close":  # all in one bin of the first digit, and of the second
        return 3 + x * 2.0**-21
    if kind == "taken away":
        return torch.where(torch.rand(rows, size) < 0.9, torch.inf, x)
    if kind == "far":  # but for the nearest, which is at 0 where distances are those to the best
        return torch.cat([x[:, :1] * 0, x[:, 1:] * 40], 1)
    return x


KINDS = ("random", "equal", "few values", "close", "taken away", "far")
# A row is one worker's below 8192 elements, or where there are many rows; vectors and parts divide few of them.
SIZES = ((1, 1), (3, 7), (2, 256), (5, 3001), (2, 20000), (1, 8193), (40, 9001), (3, 32771))


def steps_of(distances: torch.Tensor) -> torch.Tensor:
    return (distances.double() * 2**22).clamp(max=2**28 - 16).long()


def check_counts(select, distances: torch.Tensor) -> None:
    size = distances.size(1)
    ordered = steps_of(distances.cpu()).sort(-1).values
    for count in (-1, 0, 1, 2, 50, size - 1, size, size + 1, 2**40):
        wanted = torch.full((distances.size(0),), 0 if count <= 0 else MOST)
        if 0 < count <= size:
            wanted = ordered[:, count - 1]
        given = torch.full((distances.size(0),), count, device=distances.device)
        assert torch.equal(select(distances, given).cpu(), wanted), count


def check_masses(select, distances: torch.Tensor) -> None:
    steps, masses = steps_of(distances.cpu()), torch.exp(-distances.double().cpu())
    for share in (0.0, 1e-4, 0.1, 0.5, 0.999, 0.99999, 1.0):
        bound = share * masses.sum(-1)
        found = select(distances, torch.full((distances.size(0),), share, device=distances.device)).cpu()[:, None]
        not_below, behind = (masses.where(side, 0.0).sum(-1) for side in (steps >= found, steps > found))
        error = 2.0**-15 * masses.sum(-1)
        assert ((not_below > bound - error) | (found[:, 0] == 0)).all(), share
        assert (behind <= bound + error).all(), share
        if share == 0:  # not below it is whatever has a mass; a GPU has none below the normal numbers
            normal, any_mass = (masses.float() >= least for least in (2.0**-126, 2.0**-149))
            assert (found >= steps.where(normal, 0).amax(-1, keepdim=True)).all()
            assert (found <= steps.where(any_mass, 0).amax(-1, keepdim=True)).all()
        if share == 1:
            assert (found <= steps.amin(-1, keepdim=True)).all()


def check(kind: str, rows: int, size: int, device: str, how: str) -> None:
    compiled = (lambda f: torch.compile(f, backend="ark", options=STRICT)) if how == "ark" else lambda f: f
    distances = rows_of(kind, rows, size).to(device)
    with torch.no_grad():
        check_counts(compiled(lambda x, n: torch.ops.ark.select_by_count(x, n)), distances)
        check_masses(compiled(lambda x, n: torch.ops.ark.select_by_mass(x, n)), distances)


@pytest.mark.parametrize(
    "how", ["eager", pytest.param("ark", marks=pytest.mark.skipif(not has_extension(), reason=""))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_selects(kind, how):
    for rows, size in SIZES if how == "ark" else SIZES[:5]:
        check(kind, rows, size, "cpu", how)


@pytest.mark.parametrize("kind", ["computed", "columns", "every second", "rows apart", "one row for all"])
def test_layouts(kind, executor, device="cpu"):
    """Distances that are computed on the way, or lie in memory in other ways; bounds that are one for all rows."""
    check_layouts(kind, device)


def check_layouts(kind: str, device: str) -> None:
    torch.manual_seed(1)
    x = torch.rand(40, 24, device=device) * 9
    ways = {
        "computed": lambda x: x * 0.5 + 1,
        "columns": lambda x: x.t(),
        "every second": lambda x: x[:, ::2],
        "rows apart": lambda x: x[3:, 4:21],
        "one row for all": lambda x: x[:1].expand(7, -1),
    }

    def function(x, count, share):
        distances = ways[kind](x)
        rows = distances.size(0)
        by_count = torch.ops.ark.select_by_count(distances, count.expand(rows))
        return by_count, torch.ops.ark.select_by_mass(distances, share.expand(rows)), distances

    bounds = torch.tensor(5, device=device), torch.tensor(0.3, device=device)
    with torch.no_grad():
        counted, weighed, distances = torch.compile(function, backend="ark", options=STRICT)(x, *bounds)
        wanted = function(x, *bounds)
    assert torch.equal(distances, wanted[2])
    assert torch.equal(counted, wanted[0]) and torch.equal(weighed, wanted[1])


def selects_of(distances, workers: int, count: int, share: float):
    options = {**STRICT, "workers": workers}
    bounds = (
        torch.full(distances.shape[:1], count, device=distances.device),
        torch.full(distances.shape[:1], share, device=distances.device),
    )

    def both(x, n, p):
        return torch.ops.ark.select_by_count(x, n), torch.ops.ark.select_by_mass(x, p)

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(both, backend="ark", options=options)(distances, *bounds)


@extension
@pytest.mark.parametrize("rows,size", [(1, 128256), (8, 16385), (200, 5003), (70, 33001)])
def test_any_number_of_workers_finds_the_same(rows, size):
    distances = rows_of("random", rows, size)
    first = selects_of(distances, 1, 50, 0.1)
    for workers in (7, 132, 700):
        found = selects_of(distances, workers, 50, 0.1)
        assert torch.equal(found[0], first[0]) and torch.equal(found[1], first[1]), workers


def parts_of_views(size: int) -> dict:
    """Rows of several parts that vectors do not reach, or only in part."""
    return {
        "offset": lambda x: x[:, 1 : size + 1],
        "offset by a vector": lambda x: x[:, 4 : size + 4],
        "every second": lambda x: x[:, : 2 * size : 2],
        "columns": lambda x: x[:, : 3 * size].reshape(-1, 3)[:, :2].t()[:, :size],
        "one row for all": lambda x: x[:1, :size].expand(5, -1),
    }


def check_views(device: str) -> None:
    torch.manual_seed(5)
    size = 20002
    x = torch.randn(2, 3 * size + 3, device=device).mul(3).abs()

    def functions(view):
        return (
            lambda x, n: torch.ops.ark.select_by_count(view(x), n),
            lambda x, p: torch.ops.ark.select_by_mass(view(x), p),
        )

    for view in parts_of_views(size).values():
        by_count, by_mass = (torch.compile(f, backend="ark", options=STRICT) for f in functions(view))
        with torch.no_grad():
            check_counts(lambda _, n, run=by_count: run(x, n), view(x))
            check_masses(lambda _, p, run=by_mass: run(x, p), view(x))


@extension
def test_views_in_parts():
    check_views("cpu")


def check_tail(device: str) -> None:
    """Elements that have next to nothing each count together, and none of them is lost."""
    size, far = 128256, 20.0
    distances = torch.full((2, size), far, device=device)
    distances[0, 77], distances[1, 100000] = 0, 0
    tail = (size - 1) * float(torch.exp(torch.tensor(-far, dtype=torch.float64)))
    share = tail / (1 + tail)
    near, all_of_it = int(0 * 2**22), int(far * 2**22)
    for asked, wanted in ((0.9 * share, all_of_it), (0.0, all_of_it)):
        assert selects_of(distances, 132, 1, asked)[1].tolist() == [wanted] * 2
    assert (selects_of(distances, 132, 1, share + 1e-4)[1] <= near).all()
    assert selects_of(distances, 132, 2, 0.5)[0].tolist() == [all_of_it] * 2
    distances[0, 5] = 70.0  # behind the last bin's low end, one element of a mass of 4e-31
    assert selects_of(distances, 132, 1, 0.0)[1].tolist() == [2**28 - 16, all_of_it]


@extension
def test_long_tails():
    check_tail("cpu")


def test_no_rows_and_no_elements():
    """Through ATen, as all that is empty."""
    run = torch.compile(lambda x, n: torch.ops.ark.select_by_count(x, n), backend="ark")
    assert run(torch.zeros(0, 5), torch.ones(0, dtype=torch.int64)).shape == (0,)
    assert run(torch.zeros(2, 0), torch.tensor([1, 0])).tolist() == [MOST, 0]


def test_steps():
    given = torch.tensor([0.0, 2.0**-22, 1.0, 63.99999, 64.0, torch.inf])
    assert ark_torch.row_select.steps(given).tolist() == [0, 1, 2**22, 2**28 - 48, 2**28 - 16, 2**28 - 16]


@pytest.mark.parametrize(
    "how", ["eager", pytest.param("ark", marks=pytest.mark.skipif(not has_extension(), reason=""))]
)
def test_nan_is_as_far_as_can_be(how):
    compiled = (lambda f: torch.compile(f, backend="ark", options=STRICT)) if how == "ark" else lambda f: f
    x = torch.tensor([[0.0, 1.0, 2.0, torch.nan], [torch.nan] * 4])
    count = compiled(lambda x, n: torch.ops.ark.select_by_count(x, n))
    assert count(x, torch.tensor([4, 2])).tolist() == [2**28 - 16] * 2
    assert count(x, torch.tensor([3, 0])).tolist() == [2 * 2**22, 0]
    mass = compiled(lambda x, p: torch.ops.ark.select_by_mass(x, p))
    assert mass(x, torch.tensor([0.0, 0.0])).tolist() == [2 * 2**22, 0]


def test_other_types_are_refused():
    x, count, share = torch.rand(3, 5), torch.ones(3, dtype=torch.int64), torch.ones(3)
    with pytest.raises(TypeError, match=r"distances: torch.float64 of 2 dimensions, expected torch.float32 of 2"):
        torch.ops.ark.select_by_count(x.double(), count)
    with pytest.raises(TypeError, match=r"torch.float32 \[3\], expected torch.int64 \[3\]"):
        torch.ops.ark.select_by_count(x, share)
    with pytest.raises(TypeError, match=r"torch.float32 \[1\], expected torch.float32 \[3\]"):
        torch.ops.ark.select_by_mass(x, share[:1])


def distances_below_the_top(values: torch.Tensor) -> torch.Tensor:
    return values.amax(-1, keepdim=True) - values


def check_values(device: str, special: float | None, size: int, rows: int = 2) -> None:
    """What a select makes of values is what distances of their own give, bit by bit, and so are the distances."""
    torch.manual_seed(5)
    values = torch.randn(rows, size, device=device) * 3
    if special is not None:
        values[0, 17], values[-1, size - 3] = special, special
    bounds = torch.full((rows,), 50, device=device), torch.full((rows,), 0.2, device=device)

    def selects(distances, count, share):
        near = distances * 2  # read before the selects are
        by_count = torch.ops.ark.select_by_count(distances, count)
        return (
            near,
            by_count,
            torch.ops.ark.select_by_mass(distances, share),
            torch.ops.ark.select_by_count(distances.abs(), count),
        )

    def of_values(values, count, share):
        return selects(distances_below_the_top(values + 1), count, share)

    with torch.no_grad():
        found = torch.compile(of_values, backend="ark", options=STRICT)(values, *bounds)
        distances = distances_below_the_top(values + 1)
        wanted = torch.compile(selects, backend="ark", options=STRICT)(distances, *bounds)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.nan_to_num(nan=-7.0), theirs.nan_to_num(nan=-7.0))


@extension
@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), float("-inf"), 0.0])
@pytest.mark.parametrize("size", [20000, 33001, 17250])
def test_selects_of_values(special, size, executor):
    check_values("cpu", special, size)


def cut_values(kind: str, rows: int, size: int) -> torch.Tensor:
    torch.manual_seed(size + rows)
    x = torch.randn(rows, size) * 3
    if kind == "16 bits":
        return x.bfloat16().float()
    if kind == "equal":
        return torch.full_like(x, 1.5)
    if kind == "few values":
        return x.round()
    if kind == "one part's":  # more of them than a list holds
        return torch.where(torch.arange(size) < 90, x + 40, x)
    if kind == "taken away":
        return torch.where(torch.rand(rows, size) < 0.999, -torch.inf, x)
    if kind == "far":  # masses that are next to nothing
        return torch.where(torch.arange(size) % 5 == 2, x * 0 - 60, x)
    if kind in ("nan", "inf", "-inf"):
        x[0, 17], x[-1, size - 3] = float(kind), float(kind)
    return x


CUT_KINDS = ("random", "16 bits", "equal", "few values", "one part's", "taken away", "far", "nan", "inf", "-inf")


def check_cuts(kind: str, rows: int, size: int, device: str) -> None:
    """A select by mass of what one by count leaves, as `sampling` has them: one op finds both."""
    values = cut_values(kind, rows, size).to(device)

    def selects(values, count, share):
        top = values.amax(-1, keepdim=True)
        distances = top - values
        found = torch.ops.ark.select_by_count(distances, count)
        kept = values.where(ark_torch.row_select.steps(distances) <= found[:, None], -torch.inf)
        return found, torch.ops.ark.select_by_mass(top - kept, share), kept

    run = torch.compile(selects, backend="ark", options=STRICT)
    for count in (50, 1, 0, 2, 17, 100, 127, 128, 129, 1000, size - 1, size, size + 1):
        for share in (0.0, 0.1, 0.5, 0.9, 1.0):
            given = torch.full((rows,), count, device=device), torch.full((rows,), share, device=device)
            with torch.no_grad():
                (found, cut, kept), wanted = run(values, *given), selects(values, *given)
            assert torch.equal(found, wanted[0]), (count, share)
            assert torch.equal(kept.nan_to_num(nan=-7.0), wanted[2].nan_to_num(nan=-7.0)), (count, share)
            distances = (values.amax(-1, keepdim=True) - kept).double().cpu()
            steps, masses = steps_of(distances), torch.exp(-distances)
            steps, masses = steps.where(~distances.isnan(), MOST - 15), masses.nan_to_num(0.0)
            sums = masses.sum(-1)
            cut = cut.cpu()[:, None]
            not_below, behind = (masses.where(side, 0.0).sum(-1) for side in (steps >= cut, steps > cut))
            error = 2.0**-15 * sums
            assert ((not_below > share * sums - error) | (cut[:, 0] == 0)).all(), (count, share)
            assert (behind <= share * sums + error).all(), (count, share)
            if share == 0:  # what is farthest has no mass, in lists and in rows
                assert torch.equal(cut, steps.where(steps < MOST - 15, 0).amax(-1, keepdim=True)), count
            there = (steps == cut).any(-1) | (cut[:, 0] == 0)
            assert there.all(), (count, share, cut)


@extension
@pytest.mark.parametrize("kind", CUT_KINDS)
@pytest.mark.parametrize(("rows", "size"), [(1, 16896), (3, 20000)])
def test_cuts(kind, rows, size):
    check_cuts(kind, rows, size, "cpu")


@extension
@pytest.mark.parametrize("kind", ["row", "other row"])
@pytest.mark.parametrize("count", [1, 50, 100, 3000])
def test_maxima_of_other_values(kind, count, device="cpu"):
    check_other_maxima(kind, count, device)


def check_other_maxima(kind: str, count: int, device: str, size: int = 128256) -> None:
    """The top is of more than what is selected from, or of something else in the same memory."""
    torch.manual_seed(7)
    x = torch.randn(2, size, device=device) * 3
    x[:, size // 2 + 9] = 20
    values = (lambda x: x[:1, : size // 2]) if kind == "row" else (lambda x: x[1:])

    def select(x, n):
        return torch.ops.ark.select_by_count(x[:1].amax(-1, keepdim=True) - values(x), n)

    with torch.no_grad():
        given = torch.full((1,), count, device=device)
        found = torch.compile(select, backend="ark", options=STRICT)(x, given)
        assert torch.equal(found, select(x, given))
