"""argmax, argmin, max and min over long rows on the host target: cut into parts, eager's results exactly."""

from __future__ import annotations

import json

import pytest
import torch

from ark_torch.records import recording
from tests.support.long_places import BODIES, WORDS, compiled, random_rows, same_bits, special_rows

_C = pytest.importorskip("ark_torch._C")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def check(body, x: torch.Tensor, parts: bool = True) -> None:
    actual, names = compiled(body, x)
    same_bits(actual, body(x))
    assert bool(names) == parts, names


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name, words):
    for rows in (1, 3):
        check(BODIES[name], random_rows(rows, words, torch.float32))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_dtypes(dtype):
    for name in ("argmax", "argmin", "max", "min"):
        check(BODIES[name], random_rows(2, 50257, dtype))


def test_bool():
    x = torch.zeros(2, 50257, dtype=torch.bool)
    x[1, 30_000:] = True
    for name in ("max", "min"):
        check(BODIES[name], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype):
    for name in ("argmax", "argmin", "max", "min"):
        body = torch.compile(BODIES[name], backend="ark", options={"strict": True}, dynamic=False)
        for case, x in special_rows(50257, dtype).items():
            try:
                same_bits(body(x), BODIES[name](x))
            except AssertionError as error:
                raise AssertionError(f"{name} of {case}: {error}") from error


def test_extremes_of_integers():
    """The least and the greatest numbers of a type, and numbers that floats do not tell apart."""
    limits = torch.iinfo(torch.int64)
    x = torch.full((2, 50257), limits.min)
    x[0, 40_000] = limits.min + 1
    x[1, 9_000:] = limits.max - 1
    x[1, 20_000] = limits.max
    for name in ("argmax", "argmin", "max", "min"):
        check(BODIES[name], x)


@pytest.mark.parametrize("words", [16416, 16417, 20011, 32768, 65537])
def test_lengths(words):
    """With and without a rest."""
    for place in (0, words // 2, words - 1):
        x = random_rows(2, words, torch.float32)
        x[0, place], x[1, place] = 20.0, -20.0
        check(lambda x: (x.argmax(-1), x.argmin(-1)), x)


def test_seams():
    """Around the first and the last element of every part: 12 parts that begin at multiples of 4184."""
    words, step, parts = 50257, 4184, 12
    body = torch.compile(BODIES["both"], backend="ark", options={"strict": True}, dynamic=False)
    ends = [p * step + at for p in range(parts) for at in (0, words - (parts - 1) * step)]
    places = {end + d for end in ends for d in (-1, 0, 1) if 0 <= end + d < words}
    zeros = torch.zeros(2, words)
    for place in sorted(places):
        x = zeros.clone()
        x[0, place], x[1, place] = 1.0, -1.0
        same_bits(body(x), BODIES["both"](x))


def test_shorter_and_more_rows_stay_whole():
    check(BODIES["argmax"], random_rows(2, 16000, torch.float32), parts=False)
    check(BODIES["argmax"], random_rows(67, 20011, torch.float32), parts=False)


def test_rows_in_memory():
    """Slices, steps, broadcast rows, more dimensions."""
    x = random_rows(4, 50300, torch.float32)
    for view in (
        lambda x: x[:, 13:50270],
        lambda x: x[::2, 1:],
        lambda x: x[:1].expand(3, -1),
        lambda x: x.view(2, 2, 1, 50300),
        lambda x: x.t().contiguous().t(),
    ):
        actual, _ = compiled(lambda x, view=view: (view(x).argmax(-1), view(x).min(-1).indices), x)
        same_bits(actual, (view(x).argmax(-1), view(x).min(-1).indices))


def test_beside_other_reductions():
    """Sums see every element once, in parts that overlap."""
    x = torch.randint(-9, 9, (3, 50257))

    def body(x):
        return x.sum(-1), x.argmax(-1), x.amax(-1), x.argmin(-1), (x == 3).any(-1)

    check(body, x)
    check(lambda x: (x.float().sum(-1), x.float().argmax(-1)), x)


def test_what_is_stored_as_well():
    x = random_rows(2, 50257, torch.float32)
    actual, _ = compiled(lambda x: (x * 2, (x * 2).argmax(-1)), x)
    same_bits(actual, (x * 2, (x * 2).argmax(-1)))


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_dynamic_sizes(name):
    torch._dynamo.reset()
    body = torch.compile(BODIES[name], backend="ark", options={"strict": True}, dynamic=True)
    for rows, words in ((2, 50257), (3, 50257), (5, 128256), (7, 16421), (4, 100), (70, 20000), (2, 33333)):
        x = random_rows(rows, words, torch.float32)
        same_bits(body(x), BODIES[name](x))


@pytest.mark.parametrize("workers", [1, 2, 7, 132, 1000])
def test_workers(workers):
    """Any number of parts gives the same places."""
    x = special_rows(50257, torch.float32)["equals far apart"]
    body = torch.compile(BODIES["both"], backend="ark", options={"strict": True, "workers": workers}, dynamic=False)
    same_bits(body(x), BODIES["both"](x))


def test_sizes_share_a_kernel():
    """Other numbers of rows and other lengths, cut or whole, change no code (beside sums other parts do)."""
    torch._dynamo.reset()
    with recording() as records:
        body = torch.compile(BODIES["argmax"], backend="ark", options={"strict": True}, dynamic=True)
        body(random_rows(3, 50257, torch.bfloat16))
    (segment,) = records[0].segments
    sizes = [[3, 50257], [2, 50257], [64, 50257], [80, 50257], [2, 128256], [5, 33333], [4, 1000]]
    sources = _C.kernel_sources(json.dumps(segment.lowered.graph), sizes)
    assert [size for size, source in zip(sizes, sources) if source != sources[0]] == []


def test_programs_around_places():
    """Elements that know their index, tables before and behind, values of the row."""
    x, table = random_rows(3, 50257, torch.float32), torch.randn(50257, 8)
    rows, bias = torch.tensor([2, 0, 2, 1]), torch.randn(50257)
    word = torch.arange(50257)

    def masked(x):
        return x.masked_fill(word % 5 > 2, float("-inf")).argmax(-1), torch.where(word > 40_000, x, 9.0).argmin(-1)

    bodies = {
        "masked": masked,
        "index": lambda x: (x + word * 1e-4).argmax(-1),
        "rows of a table": lambda x: x[rows].argmax(-1),
        "table behind": lambda x: table[x.argmax(-1)],
        "bias": lambda x: (x + bias).max(-1),
        "value of the row": lambda x: (x * x[:, :1]).argmax(-1),
        "two tensors": lambda x: ((x + bias).argmax(-1), (x - bias).argmin(-1), x.argmax(-1)),
        "equal to another": lambda x: x.argmax(-1) == x.argmin(-1),
    }
    for name, body in bodies.items():
        actual, names = compiled(body, x)
        same_bits(actual, body(x))
        assert names, name


@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_and_its_place_are_found_at_once(name):
    """The row is read once: an op of its parts, one that joins them."""
    torch._dynamo.reset()
    with recording() as records, torch.no_grad():
        torch.compile(BODIES[name], backend="ark", options={"strict": True}, dynamic=False)(torch.randn(2, 50257))
    text = records[0].segments[0].executable.plan_text()
    assert text.count("\nop ") == 2, text


def put(tokens: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    tokens[:, at] = values[:, None]
    return values + 0


PUT = {
    "column": lambda x, tokens, at: put(tokens, at, x.argmax(-1)),
    "of rows": lambda x, tokens, at: tokens.index_put_((torch.arange(len(x)), at.expand(len(x))), x.argmax(-1)),
    "beside others": lambda x, tokens, at: (x.amax(-1), put(tokens, at, x.argmin(-1)), x.argmax(-1)),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", PUT)
def test_places_that_are_put_where_an_index_says(name, rows):
    """As the token of a step: stored once a row, so that the row is cut as others are, and by no op of its own."""
    x, tokens = random_rows(rows, 50257, torch.float32), torch.zeros(rows, 40, dtype=torch.int64)
    torch._dynamo.reset()
    with recording() as records, torch.no_grad():
        body = torch.compile(PUT[name], backend="ark", options={"strict": True}, dynamic=False)
        body(x, tokens.clone(), torch.tensor([7]))
    text = records[0].segments[0].executable.plan_text()
    assert ".parts" in text and text.count("\nop ") == 2, text
    for at in (0, 39, -1, -40):
        actual, expected = tokens.clone(), tokens.clone()
        same_bits(body(x, actual, torch.tensor([at])), PUT[name](x, expected, torch.tensor([at])))
        same_bits(actual, expected)
