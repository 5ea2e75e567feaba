"""The result of attention in half precision lies in memory as that of eager's kernel on the GPU does, whichever it
chooses: then what is written for eager's layout (`.view`) compiles, before linear layers whose weights are transposed
views."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ark_torch.backend import ark

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BATCH, HEADS, ROWS = 2, 4, 3


def stored(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float16)


def contiguous(width: int) -> Tensor:
    return stored((BATCH, HEADS, ROWS, width))


def transposed(width: int) -> Tensor:
    """Heads made of a projection's rows."""
    return stored((BATCH, ROWS, HEADS, width)).transpose(1, 2)


def expanded(width: int) -> Tensor:
    """One head, seen by all."""
    return stored((BATCH, 1, ROWS, width)).expand(BATCH, HEADS, ROWS, width)


# Of q, k and v. The last one, of heads of 4 and causal, is a program that once failed to compile.
LAYOUTS = {
    "contiguous": (contiguous, contiguous, contiguous),
    "transposed": (transposed, transposed, transposed),
    "expanded v": (contiguous, contiguous, expanded),
    "transposed q, expanded v": (transposed, contiguous, expanded),
}
FLAT = {
    "view": lambda x: x.view(BATCH, -1),
    "reshape": lambda x: x.reshape(BATCH, -1),
    "rows": lambda x: x.transpose(1, 2).reshape(BATCH, -1),
}


def transposed_linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, device=DEVICE, dtype=torch.float16)
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    return linear


class Model(nn.Module):
    """Attention, its flat result through two layers; returns both where `returned`."""

    def __init__(self, width: int, causal: bool, flat: str, returned: bool = True):
        super().__init__()
        self.first, self.second = transposed_linear(HEADS * ROWS * width, 24), transposed_linear(24, 7)
        self.causal, self.flat, self.returned = causal, FLAT[flat], returned

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        y = self.second(F.relu(self.first(self.flat(out))))
        return (out, y) if self.returned else (y,)


def distance(values, exact) -> float:
    return math.sqrt(sum(float((v.double() - e).square().sum()) for v, e in zip(values, exact)))


def check(model: Model, inputs: list[Tensor]) -> None:
    """Strides and sizes are eager's (of padded rows: their order), errors against double precision no larger than
    eager's but for a rounding."""
    with torch.no_grad():
        eager = model(*inputs)
        exact = copy.deepcopy(model).double()(*[x.double() for x in inputs])
        torch._dynamo.reset()
        actual = torch.compile(model, backend=ark, fullgraph=True, options={"strict": True})(*inputs)
    for mine, theirs in zip(actual, eager, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (theirs.dtype, theirs.shape, dense(theirs).stride())
    scale = math.sqrt(sum(float(e.square().sum()) for e in exact))
    rounding = torch.finfo(torch.float16).eps / 4 * scale
    assert distance(actual, exact) <= 1.5 * distance(eager, exact) + rounding


def dense(x: Tensor) -> Tensor:
    """Without what eager's kernel pads heads of 4 by: as it lies otherwise."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


def can_be_viewed(model: Model, inputs: list[Tensor]) -> bool:
    with torch.no_grad():
        out = F.scaled_dot_product_attention(*inputs, is_causal=model.causal)
    try:
        out.view(BATCH, -1)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [4, 8, 64])
def test_view(width, layout, causal):
    """Where eager's result cannot be viewed, neither can this one."""
    torch.manual_seed(0)
    model, inputs = Model(width, causal, "view"), [make(width) for make in LAYOUTS[layout]]
    if can_be_viewed(model, inputs):
        return check(model, inputs)
    with pytest.raises(Exception, match="view"):
        torch.compile(model, backend=ark)(*inputs)
    check(Model(width, causal, "reshape"), inputs)


@pytest.mark.parametrize("returned", [True, False], ids=["returned", "inside"])
@pytest.mark.parametrize("flat", ["reshape", "rows"])
@pytest.mark.parametrize("width", [4, 8, 64])
def test_copies(width, flat, returned):
    """What eager may have to copy; a result that nobody looks at may lie otherwise."""
    torch.manual_seed(0)
    check(Model(width, True, flat, returned), [make(width) for make in LAYOUTS["transposed q, expanded v"]])
