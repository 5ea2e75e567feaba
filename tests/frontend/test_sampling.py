"""Choosing tokens (`ark_torch.sampling`): what is kept is what transformers' processors keep, and draws are distributed
as softmax says; all of it native."""

from __future__ import annotations

import pytest
import torch

from ark_torch.errors import Unsupported
from ark_torch.records import recording
from ark_torch.sampling import Processor, draw, gumbel_like, process, seen_tokens, unread_tokens
from ark_torch.sampling_checks import read_processors
from tests.conftest import has_extension

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
STRICT = {"strict": True}
PROCESSORS = {
    "temperature": lambda: [TemperatureLogitsWarper(0.7)],
    "top-k 1": lambda: [TopKLogitsWarper(1)],
    "top-k 50": lambda: [TopKLogitsWarper(50)],
    "top-k of all": lambda: [TopKLogitsWarper(10**6)],
    "top-p": lambda: [TopPLogitsWarper(0.9)],
    "top-p of the best": lambda: [TopPLogitsWarper(1e-6)],
    "top-p of nearly all": lambda: [TopPLogitsWarper(0.999)],
    "top-p of some at least": lambda: [TopPLogitsWarper(0.01, min_tokens_to_keep=5)],
    "min-p": lambda: [MinPLogitsWarper(0.05)],
    "min-p of some at least": lambda: [MinPLogitsWarper(0.9, min_tokens_to_keep=4)],
    "repetition": lambda: [RepetitionPenaltyLogitsProcessor(1.3)],
    "repetition, a part": lambda: [RepetitionPenaltyLogitsProcessor(0.8, prompt_ignore_length=torch.tensor([0, 3, 6]))],
    "least length": lambda: [MinLengthLogitsProcessor(8, [3, 5])],
    "least length that is there": lambda: [MinLengthLogitsProcessor(7, [3, 5])],
    "least new tokens": lambda: [MinNewTokensLengthLogitsProcessor(4, 4, [1])],
    "all": lambda: [
        RepetitionPenaltyLogitsProcessor(1.2),
        MinLengthLogitsProcessor(9, [7]),
        TemperatureLogitsWarper(1.4),
        TopKLogitsWarper(40),
        TopPLogitsWarper(0.8),
        MinPLogitsWarper(0.02),
    ],
}


def read(processors: list, ids: torch.Tensor) -> tuple:
    return read_processors(processors, ids, Unsupported)


def seen_by(ids: torch.Tensor, vocabulary: int, processors: tuple) -> torch.Tensor | None:
    unread = unread_tokens(processors)
    return None if unread is None else seen_tokens(ids, vocabulary, unread)


def natively(scores: torch.Tensor, ids: torch.Tensor, processors: list) -> torch.Tensor:
    given = read(processors, ids)
    run = torch.compile(lambda *args: process(*args), backend="ark", options=STRICT)
    with torch.no_grad():
        return run(scores, given, torch.tensor(ids.size(1), device=ids.device), seen_by(ids, scores.size(1), given))


def scores_of(kind: str, rows: int, vocabulary: int) -> torch.Tensor:
    scores = 4 * torch.randn(rows, vocabulary)
    if kind == "flat":
        scores = torch.rand(rows, vocabulary) * 1e-3
    if kind == "steep":
        scores *= 30
    if kind == "some missing":
        scores = scores.masked_fill(torch.rand_like(scores) < 0.5, -torch.inf)
    return scores


@pytest.mark.parametrize("kind", ["normal", "flat", "steep", "some missing"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processed_scores_are_those_of_transformers(name, kind):
    """Theirs in float64, whose sums of probabilities are exact enough. `flat`: distances are closer than a step of the
    search here and there, which keeps tokens that are as likely."""
    rows, vocabulary = 3, 1501
    scores, ids = scores_of(kind, rows, vocabulary), torch.randint(0, vocabulary, (rows, 7))
    wanted = LogitsProcessorList(PROCESSORS[name]())(ids, scores.double()).float()
    actual = natively(scores, ids, PROCESSORS[name]())
    kept, ours = wanted > -torch.inf, actual > -torch.inf
    torch.testing.assert_close(actual[kept & ours], wanted[kept & ours], rtol=3e-7, atol=0)
    check_kept(kept, ours, wanted.where(kept, actual))


def check_kept(kept: torch.Tensor, ours: torch.Tensor, processed: torch.Tensor) -> None:
    """Where the sets differ, the score is as near to the last one kept as the search can tell them apart."""
    for row in (kept != ours).any(1).nonzero().flatten().tolist():
        x, both = processed[row], kept[row] & ours[row]
        distance = (x.max() - x[both].min()).clamp(min=1.0)
        resolution = torch.maximum(torch.tensor(2.0**-22), distance * 2.0**-23)
        different = x[kept[row] != ours[row]]
        near = (different - x[both].min()).abs() <= 2 * resolution
        assert (near | (different < x.max() - 60)).all(), (row, different, x[both].min())


# Rows long enough to be counted in parts: how many are left decides who finds the last digit, and how.
PARTED = {
    "top-k 1": lambda: [TopKLogitsWarper(1)],
    "top-k 50": lambda: [TopKLogitsWarper(50)],
    "top-k of nearly all": lambda: [TopKLogitsWarper(20002)],
    "top-k of more than all": lambda: [TopKLogitsWarper(10**6)],
    "top-p of the best": lambda: [TopPLogitsWarper(1e-6)],
    "top-p": lambda: [TopPLogitsWarper(0.9)],
    "top-p of nearly all": lambda: [TopPLogitsWarper(0.999)],
    "both": lambda: [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.9)],
}


def parted_scores(kind: str, rows: int) -> torch.Tensor:
    scores = 4 * torch.randn(rows, 20003)
    if kind == "ties":
        return scores.bfloat16().float()
    if kind == "equal":
        return torch.full_like(scores, -1.5)
    if kind == "few words":
        few = torch.full_like(scores, -torch.inf)
        few[:, [3, 4, 9000, 20002]] = torch.tensor([1.0, 2.0, 2.0, -3.0])
        return few
    if kind == "close":  # one bin but for the last digit
        return scores.masked_fill(torch.rand_like(scores) < 0.5, -torch.inf) * 2.0**-20
    return scores


@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "few words", "close"])
@pytest.mark.parametrize("name", PARTED)
def test_processed_scores_of_rows_in_parts(name, kind):
    torch.manual_seed(2)
    ids = torch.zeros(3, 1, dtype=torch.int64)
    for rows in (1, 3):
        scores = parted_scores(kind, rows)
        wanted = LogitsProcessorList(PARTED[name]())(ids[:rows], scores.double()).float()
        actual = natively(scores, ids[:rows], PARTED[name]())
        kept, ours = wanted > -torch.inf, actual > -torch.inf
        torch.testing.assert_close(actual[kept & ours], wanted[kept & ours], rtol=3e-7, atol=0)
        check_kept(kept, ours, wanted.where(kept, actual))
        least, most = scores.where(ours, torch.inf).amin(1), scores.where(~ours, -torch.inf).amax(1)
        assert (least > most).all()  # those as good as the last one stay too


@pytest.mark.parametrize(
    "name, least", [("top-k of all", 5), ("top-p of some at least", 5), ("min-p of some at least", 4)]
)
def test_what_is_far_away_stays_where_so_many_are_asked_for(name, least):
    scores = torch.tensor([[100.0, 30.0, 20.0, 10.0, 0.0]]).expand(3, -1).contiguous()
    actual = natively(scores, torch.zeros(3, 7, dtype=torch.int64), PROCESSORS[name]())
    assert ((actual > -torch.inf).sum(1) >= least).all(), actual


def test_ties_at_the_threshold_stay():
    scores = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0]])
    ids = torch.zeros(1, 1, dtype=torch.int64)
    for processor in (TopKLogitsWarper(2), TopPLogitsWarper(0.6)):
        assert (natively(scores, ids, [processor]) > -torch.inf).tolist() == [[True, False, True, True, True, False]]


def test_other_values_compile_nothing():
    ids, scores = torch.zeros(2, 3, dtype=torch.int64), torch.randn(2, 50)
    run = torch.compile(lambda *args: process(*args), backend="ark", options=STRICT)
    with torch.no_grad(), recording() as records:
        for k, p in ((5, 0.5), (9, 0.8), (50, 0.1)):
            processors = [TopKLogitsWarper(k), TopPLogitsWarper(p)]
            actual = run(scores, read(processors, ids), torch.tensor(3), None)
            assert torch.equal(actual, LogitsProcessorList(processors)(ids, scores))
    assert len(records) == 1


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """In standard deviations of the statistic's normal approximation."""
    wanted = probabilities * counts.sum()
    statistic, freedom = ((counts - wanted) ** 2 / wanted).sum().item(), len(counts) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_are_distributed_as_softmax(temperature):
    torch.manual_seed(4)
    scores, rows = torch.randn(24), 1 << 17
    given = read([TemperatureLogitsWarper(temperature), TopKLogitsWarper(20)], torch.zeros(1, 1, dtype=torch.int64))
    run = torch.compile(lambda *args: draw(*args), backend="ark", options=STRICT)
    with torch.no_grad():
        tokens, drawn = run(scores.expand(rows, -1).contiguous(), given, torch.tensor(1), None)
    kept = scores.topk(20).indices
    counts = torch.bincount(tokens, minlength=24)
    assert drawn.all() and counts.sum() == counts[kept].sum()
    probabilities = torch.softmax(scores[kept].double() / temperature, 0)
    assert chi_square(counts[kept].double(), probabilities) < 4


def check_tail(device: str) -> None:
    """Single uniform numbers of 24 bits would end at 16.6, and have steps of a quarter there."""
    torch.manual_seed(5)
    with torch.no_grad():
        noise = torch.compile(gumbel_like, backend="ark", options=STRICT)(torch.zeros(1 << 22, device=device))
    noise = noise.cpu().double()
    for bound in (0.0, 4.0, 8.0, 11.0):
        wanted = -torch.expm1(-torch.exp(torch.tensor(-bound, dtype=torch.float64))).item() * noise.numel()
        assert abs((noise > bound).sum().item() - wanted) < 5 * wanted**0.5 + 1, bound
    largest = noise.topk(64).values
    assert largest.unique().numel() == 64 and noise.isfinite().all()


def test_noise_reaches_into_its_tail():
    check_tail("cpu")


def test_draws_follow_the_seed():
    scores = torch.zeros(4, 1000)
    run = torch.compile(lambda *args: draw(*args), backend="ark", options=STRICT)

    def tokens(seed: int) -> list[int]:
        torch.manual_seed(seed)
        with torch.no_grad():
            return run(scores, (), torch.tensor(1), None)[0].tolist()

    assert tokens(1) == tokens(1) and tokens(1) != tokens(2) and len(set(tokens(1))) == 4


def test_a_penalty_for_other_rows_is_refused():
    ids = torch.zeros(3, 7, dtype=torch.int64)
    with pytest.raises(ValueError, match="has 2 elements, expected one for each of 3 rows"):
        read([RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=torch.tensor([0, 1]))], ids)
    with pytest.raises(Unsupported, match="leaves out more than the 7 tokens"):
        read([RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=8)], ids)


def test_a_normalization_at_the_end_is_nothing():
    from transformers import LogitNormalization

    ids = torch.zeros(1, 1, dtype=torch.int64)
    assert [one.kind for one in read([TopKLogitsWarper(2), LogitNormalization()], ids)] == ["top_k"]
    with pytest.raises(Unsupported):
        read([LogitNormalization(), TopKLogitsWarper(2)], ids)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_nothing_can_be_drawn_from(value):
    scores = torch.randn(3, 40)
    scores[1] = value
    run = torch.compile(lambda *args: draw(*args), backend="ark", options=STRICT)
    with torch.no_grad():
        assert run(scores, (), torch.tensor(1), None)[1].tolist() == [True, False, True]
        assert run(scores[2:].clone(), (), torch.tensor(1), None)[1].tolist() == [True]


def test_an_infinity_is_not_taken_away():
    """Nothing is as likely as it, and what is not likely enough is taken away."""
    scores, processors = torch.tensor([[torch.inf, 1.0, 2.0, 3.0]]), [Processor("min_p", (torch.tensor(0.0),))]
    assert not draw(scores, processors, torch.tensor(1), None)[1]
