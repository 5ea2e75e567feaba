"""Places of extremes in long rows, against eager: what tests of the host and of the device share."""

from __future__ import annotations

import re

import torch

from ark_torch.backend import ark
from ark_torch.records import recording

WORDS = (50257, 128256)  # a prime; a multiple of 256
BODIES = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "max": lambda x: tuple(x.max(-1)),
    "min": lambda x: tuple(x.min(-1, keepdim=True)),
    "of all": lambda x: (x.argmax(), x.argmin()),
    "both": lambda x: (x.argmax(-1), x.argmin(-1), x.amax(-1), x.amin(-1)),
    "computed": lambda x: (x * 2 + 1).argmax(-1),
    "followed": lambda x: x.argmax(-1) * 2 + 1,
}


def random_rows(rows: int, words: int, dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """[rows, words] of few different numbers; the least and the greatest are met twice a row, in its last half."""
    x = torch.randint(1, 8, (rows, words), device=device)
    places = words // 2 + torch.rand(rows, words - words // 2, device=device).argsort(-1)[:, :4]
    return x.scatter_(1, places, torch.tensor([0, 0, 9, 9], device=device).expand(rows, 4)).to(dtype)


def special_rows(words: int, dtype: torch.dtype, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Rows [3, words] by the rule that they ask for: the first of equals, NaN before all, zeros equal."""
    nan, inf = float("nan"), float("inf")
    middle, last = words // 2, words - 1
    cases = {}

    def add(name: str, places: dict[int, float], fill: float | None = None) -> None:
        x = torch.randn(3, words, device=device).to(dtype)
        if fill is not None:
            x.fill_(fill)
        for place, value in places.items():
            x[:, place] = value
        cases[name] = x

    add("one value", {}, fill=2.0)
    add("last", {last: 100.0, last - 1: -100.0})
    add("equals far apart", {5: 100.0, middle: 100.0, last: 100.0, 7: -100.0, middle + 1: -100.0})
    add("one NaN", {middle: nan})
    add("NaN of several", {middle: nan, last: nan, 40_001: nan})
    add("NaN among infinities", {3: inf, 4: -inf, last: nan})
    add("NaN first", {0: nan, 1: inf})
    add("all NaN", {}, fill=nan)
    add("infinities", {middle: inf, last: inf, 9: -inf})
    add("all least", {}, fill=-inf)
    add("all greatest", {}, fill=inf)
    add("zeros", {middle: -0.0, 3: -0.0}, fill=0.0)
    add("negative zeros", {middle: 0.0, last: 0.0}, fill=-0.0)
    # The seams of parts of any length
    add("steps", {place: float(place // 4096) for place in range(4095, words, 4096)})
    return cases


def compiled(body, *inputs, dynamic: bool = False):
    """The results of the compiled body, and the ops and tensors of its plans that are named `.parts`."""
    torch._dynamo.reset()
    with recording() as records, torch.no_grad():
        results = torch.compile(body, backend=ark, options={"strict": True}, dynamic=dynamic)(*inputs)
    plans = [] if dynamic else [s.executable.plan_text() for record in records for s in record.segments]
    return results, [name for text in plans for name in re.findall(r"\S+\.parts\b", text)]


def same_bits(actual, wanted) -> None:
    """Shapes, dtypes and every value exactly. The greatest of zeros of both signs is either, in eager as well."""
    actual, wanted = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (actual, wanted))
    for mine, theirs in zip(actual, wanted, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
