"""Places of extremes in long rows on the device: an op of parts on many SMs, eager's results exactly."""

from __future__ import annotations

import pytest
import torch

from tests.support.long_places import BODIES, WORDS, compiled, random_rows, same_bits, special_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def check(body, x: torch.Tensor) -> None:
    """Eager on the CPU: its place is the first of equals, that of its kernels for GPUs is not promised."""
    actual, names = compiled(body, x)
    assert any(name.endswith(".parts") for name in names), names
    actual = [actual] if isinstance(actual, torch.Tensor) else actual
    same_bits([y.cpu() for y in actual], body(x.cpu()))


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name, words):
    torch.manual_seed(34)
    for rows in (1, 3, 32):
        check(BODIES[name], random_rows(rows, words, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_dtypes(dtype):
    torch.manual_seed(35)
    for name in ("argmax", "min"):
        check(BODIES[name], random_rows(2, 50257, dtype, "cuda"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_special_values(name, dtype):
    torch.manual_seed(36)
    compiled_body = torch.compile(BODIES[name], backend="ark", options={"strict": True}, dynamic=False)
    for case, x in special_rows(50257, dtype, "cuda").items():
        with torch.no_grad():
            actual, wanted = compiled_body(x), BODIES[name](x.cpu())
        actual = [actual] if isinstance(actual, torch.Tensor) else actual
        try:
            same_bits([y.cpu() for y in actual], wanted)
        except AssertionError as error:
            raise AssertionError(f"{name} of {case}: {error}") from error


def test_sums_beside_places():
    torch.manual_seed(37)
    x = torch.randint(-9, 9, (3, 50257), device="cuda")
    check(lambda x: (x.sum(-1), x.argmax(-1), x.amax(-1), x.argmin(-1)), x)


def test_sizes():
    torch.manual_seed(38)
    body = torch.compile(BODIES["max"], backend="ark", options={"strict": True}, dynamic=True)
    for rows, words in ((2, 50257), (5, 128256), (7, 16421), (4, 100)):
        x = random_rows(rows, words, torch.float32, "cuda")
        same_bits([y.cpu() for y in body(x)], BODIES["max"](x.cpu()))
