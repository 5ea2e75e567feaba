"""Draws on a GPU: processed scores of a whole vocabulary as transformers has them, their distribution, one launch."""

from __future__ import annotations

import threading

import pytest
import torch

import ark_torch
from ark_torch.records import recording
from ark_torch.sampling import draw
from tests.frontend import test_row_draw as draws
from tests.frontend import test_row_select as selects
from tests.frontend import test_sampling as host
from tests.frontend.test_generate_function import make, plainly, prompts

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
VOCABULARY = 128256
PROCESSORS = ("temperature", "top-k 50", "top-p", "min-p", "repetition", "least length", "all")


@pytest.mark.parametrize("kind", selects.KINDS)
def test_selects(kind):
    for rows, size in (*selects.SIZES, (1, VOCABULARY), (8, VOCABULARY), (2, 151937), (150, 12345)):
        selects.check(kind, rows, size, "cuda", "ark")


@pytest.mark.parametrize("kind", ["computed", "columns", "every second", "rows apart", "one row for all"])
def test_selects_of_other_layouts(kind):
    selects.check_layouts(kind, "cuda")


def test_selects_of_parts():
    selects.check_views("cuda")
    selects.check_tail("cuda")


@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("rows", "size"), [(1, VOCABULARY), (8, VOCABULARY), (2, 33001), (3, 17250)])
def test_selects_of_values(special, rows, size):
    selects.check_values("cuda", special, size, rows)


@pytest.mark.parametrize("kind", selects.CUT_KINDS)
@pytest.mark.parametrize(("rows", "size"), [(1, VOCABULARY), (8, VOCABULARY), (3, 20000), (30, 33000)])
def test_cuts(kind, rows, size):
    selects.check_cuts(kind, rows, size, "cuda")


@pytest.mark.parametrize("kind", ["row", "other row"])
@pytest.mark.parametrize("count", [1, 50, 100, 3000])
def test_maxima_of_other_values(kind, count):
    selects.check_other_maxima(kind, count, "cuda")


@pytest.mark.parametrize(("rows", "size"), [(1, VOCABULARY), (8, VOCABULARY), (200, VOCABULARY), (70, 33001)])
def test_any_number_of_workers_finds_the_same(rows, size):
    distances = selects.rows_of("few values", rows, size).cuda() + selects.rows_of("random", rows, size).cuda() / 64
    first = selects.selects_of(distances, 1, 50, 0.1)
    for workers in (7, 60, 132):
        found = selects.selects_of(distances, workers, 50, 0.1)
        assert torch.equal(found[0], first[0]), workers
        assert torch.equal(found[1], first[1]), workers


@pytest.mark.parametrize("kind", draws.KINDS)
def test_draws(kind):
    for rows, size in (
        *draws.SIZES,
        (1, VOCABULARY),
        (8, VOCABULARY),
        (64, VOCABULARY),
        (3, 50257),
        (8, 151936),
        (2, 151937),
        (150, 12345),
    ):
        draws.check(kind, rows, size, "cuda", "ark")


@pytest.mark.parametrize("kind", draws.KINDS)
def test_tokens_are_those_of_a_select(kind):
    """But for rows whose last kept element is within what a select may be off by."""
    differ = sum(draws.check_against_selects(kind, rows, VOCABULARY, "cuda", 30) for rows in (1, 2, 8, 33))
    assert differ <= (2 if kind in ("flat", "in order") else 1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("rows", "size"), [(1, VOCABULARY), (8, VOCABULARY), (3, 300)])
def test_rows_that_nothing_can_be_drawn_from(value, rows, size):
    draws.check_special(value, rows, size, "cuda", "ark")


@pytest.mark.parametrize(("rows", "size"), [(1, VOCABULARY), (8, VOCABULARY), (70, 33001)])
def test_draws_of_any_number_of_workers(rows, size):
    draws.check_workers(rows, size, "cuda", most=60)


def test_draws_of_views_and_their_distribution():
    draws.check_views("cuda")
    draws.check_distribution("cuda", rows=1 << 16)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processed_scores_are_those_of_transformers(name, rows):
    torch.manual_seed(0)
    scores, ids = 3 * torch.randn(rows, VOCABULARY), torch.randint(0, VOCABULARY, (rows, 7))
    wanted = transformers.LogitsProcessorList(host.PROCESSORS[name]())(ids, scores.double()).float()
    actual = host.natively(scores.cuda(), ids.cuda(), host.PROCESSORS[name]()).cpu()
    kept, ours = wanted > -torch.inf, actual > -torch.inf
    torch.testing.assert_close(actual[kept & ours], wanted[kept & ours], rtol=3e-7, atol=0)
    host.check_kept(kept, ours, wanted.where(kept, actual))


def test_draws_are_distributed_as_softmax():
    torch.manual_seed(4)
    scores, rows = torch.randn(24, device="cuda"), 1 << 17
    given = host.read([transformers.TopKLogitsWarper(20)], torch.zeros(1, 1, dtype=torch.int64, device="cuda"))
    run = torch.compile(lambda *args: draw(*args), backend="ark", options=host.STRICT)
    with torch.no_grad():
        tokens, drawn = run(scores.expand(rows, -1).contiguous(), given, torch.tensor(1, device="cuda"), None)
    kept = scores.topk(20).indices
    counts = torch.bincount(tokens, minlength=24)
    assert drawn.all() and counts.sum() == counts[kept].sum()
    assert host.chi_square(counts[kept].double(), torch.softmax(scores[kept].double(), 0)) < 4


def test_noise_reaches_into_its_tail():
    host.check_tail("cuda")


@pytest.mark.parametrize("rows", [1, 3])
def test_generate_draws_in_one_launch(rows):
    model = make("llama").cuda()
    try:
        inputs = {name: x.cuda() for name, x in prompts(rows, padded=True).items()}
        options = dict(max_new_tokens=12, do_sample=True)

        def run(seed: int, **more) -> torch.Tensor:
            torch.manual_seed(seed)
            return ark_torch.generate(model, **inputs, strict=True, **options, **more)

        with recording() as records:
            first = run(1, top_k=30, top_p=0.9, temperature=1.5, repetition_penalty=1.2)
        assert [row.cause for record in records for row in record.loops] == [""]
        assert torch.equal(run(1, top_k=30, top_p=0.9, temperature=1.5, repetition_penalty=1.2), first)
        assert torch.equal(run(2, top_k=1), plainly(model, inputs, max_new_tokens=12))
    finally:
        model.cpu()


def test_a_streamer_gets_tokens_while_the_launch_runs():
    """The launch of many tokens is under way when the call returns; what comes before its end comes from the thread."""

    class Streamer:
        def __init__(self):
            self.parts, self.threads = [], []

        def put(self, value):
            self.parts.append(value)
            self.threads.append(threading.current_thread().name)

        def end(self):
            pass

    model = make("llama").cuda()
    try:
        inputs, streamer = {name: x.cuda() for name, x in prompts(2).items()}, Streamer()
        options = dict(max_new_tokens=1500, max_cache_len=1507)
        wanted = ark_torch.generate(model, **inputs, strict=True, **options).cpu()
        sequences = ark_torch.generate(model, **inputs, strict=True, streamer=streamer, **options).cpu()
        assert torch.equal(sequences, wanted) and torch.equal(torch.stack(streamer.parts[1:], 1), wanted[:, 7:])
        assert "ark streamer" in streamer.threads
    finally:
        model.cpu()
