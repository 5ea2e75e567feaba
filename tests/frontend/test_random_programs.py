"""Random Python programs (views, writes into slices, reductions, products, indexing), with static and with dynamic
sizes, forward and backward, on the host target: as close to fp64 as eager is.

ARK_PROGRAMS=300 runs more of them than the default.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F

from ark_torch.backend import ark
from ark_torch.records import recording

PROGRAMS = int(os.environ.get("ARK_PROGRAMS", "8"))
SEEDS = sorted({*range(PROGRAMS), 929})  # 929: sizes that look different and are the same number
SIZES = ((1, 2, 7, 20, 130), (1, 2, 3, 5), (4, 8, 24, 64))  # of the three dimensions of a value

# What a step appends to the values: {a} and {c} are earlier ones, {t} and {s} are places in the last two dimensions.
EXPRESSIONS = (
    "{a} @ w",
    "{a}.softmax(-1)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "{a} * {c}",
    "{a} + {c}.mean(1, keepdim=True)",
    "F.gelu({a})",
    "torch.cat([{a}[:, {t}:], {c}[:, :{t}]], 1)",
    "{a}.roll({s}, -1)",
    "F.pad({a}[..., {s}:], ({s}, 0))",
    "({a} + b).sigmoid()",
    "{a}.flip(1)",
    "{a}.transpose(0, 1).reshape({a}.shape)",
    "{a} - {a}.amax(-1, keepdim=True)",
    "({a}.transpose(1, 2) @ {c})[:, :1] * 0.01 + {c}",
    "torch.where({a} > {c}, {a}, b)",
    "{a}[i]",
    "{a}.cumsum(1)",
    "{a}.sum(0, keepdim=True) * 0.01 + {c}",
    "{a}.reshape(-1, {a}.shape[-1] // 2, 2).flip(-1).reshape({a}.shape)",
    "F.scaled_dot_product_attention({a}[:, None], {c}[:, None], {a}[:, None])[:, 0]",
    "torch.stack([{a}[..., ::2], {c}[..., 1::2]], -1).flatten(-2)",
    "{a}.var(-1, keepdim=True) + {c}",
    "{a}.argmax(-1, keepdim=True) * 0.1 + {c}",
)
# The same for several statements; `z` is the value.
WRITES = (
    "z = {a}.clone(); z[:, {t}] = {c}[:, -1 - {t}].exp().clamp(max=5)",
    "z = torch.zeros_like(x)\n for j in range(x.shape[1]): z[:, j] = ({a}[:, j] @ w).tanh()",
    "z = {a} + 0; z[..., {s}:] *= 2; z[..., :{s}] = z[..., :{s}] + {c}[..., :{s}]",
    "z = {a} * 1; z[:, :, {s}].add_(1)",
    "z = torch.empty_like(x)\n for j in range(x.shape[1]): z[:, j] = {a}[:, j] * b + {c}[:, max(0, j - 1)]",
    "z = {a} * 1; z[i] = {c}[i] * 2",
)
INTO_INPUT = "y[:, {t}] = {a}[:, {t}] * 0.5; z = y + 1"  # of programs without gradients


class Program:
    """The source of a function and what it is called with, all of it a function of the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed, self.dynamic, self.gradients = seed, seed % 2 == 1, seed % 4 < 2
        # two shapes for a program of dynamic sizes
        self.shapes = [[self.random.choice(sizes) for sizes in SIZES] for _ in range(2 if self.dynamic else 1)]
        self.least = [min(sizes) for sizes in zip(*self.shapes)]
        lines = ["def f(x, y, w, b, i):", " v = [x, y]"]
        for _ in range(self.random.randint(4, 14)):
            lines.append(" " + self.step())
        lines.append(f" return v[-1], v[-2] @ w, {self.value()}.sum(1)")
        self.source = "\n".join(lines)
        names = {"torch": torch, "F": F}
        exec(self.source, names)
        self.function = names["f"]

    def value(self) -> str:
        return f"v[{self.random.choice([-1, -1, -2, 0, 1])}]"

    def step(self) -> str:
        writes = WRITES if self.gradients else (*WRITES, INTO_INPUT)
        step = self.random.choice(EXPRESSIONS + writes)
        places = {"t": self.random.randrange(self.least[1]), "s": self.random.randrange(self.least[2])}
        text = step.format(a=self.value(), c=self.value(), **places)
        return f"{text}\n v.append(z)" if step in writes else f"v.append(({text}).clamp(-9, 9))"

    def arguments(self, shape: list[int]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        batch, _, width = shape
        sizes = (shape, shape, (width, width), (width,))
        x, y, w, b = (torch.randn(size, generator=generator) for size in sizes)
        return [x, y, w / width**0.5, b, torch.randperm(batch, generator=generator)]

    def run(self, function, arguments: list[torch.Tensor], dtype=torch.float32) -> list[torch.Tensor]:
        """Results, the arguments as they are afterwards, gradients."""
        own = [a.clone() if a.dtype == torch.int64 else a.to(dtype, copy=True) for a in arguments]
        leaves = [a.requires_grad_() for a in own if a.is_floating_point()] if self.gradients else []
        results = list(function(*own))
        if not leaves:
            return results + own
        torch.manual_seed(self.seed)
        total = sum((result * torch.randn(result.shape).to(dtype)).sum() for result in results)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        return results + own + [torch.zeros(1) if g is None else g for g in gradients]


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that say something."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def assert_as_good_as_eager(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, slack=4.0, floor=1e-5):
    """Error against fp64, measured against eager's own."""
    assert (mine.shape, steps(mine), mine.dtype) == (eager.shape, steps(eager), eager.dtype)
    scale = exact.abs().max() + 0.1
    error, own = ((t.double() - exact).abs().max() / scale for t in (mine, eager))
    assert error <= slack * own + floor, f"error {error:.3e} of the largest number, eager's {own:.3e}"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program(seed):
    program = Program(seed)
    compiled = torch.compile(program.function, backend=ark, dynamic=program.dynamic)
    for shape in program.shapes:
        arguments = program.arguments(shape)
        with recording() as records:
            mine = program.run(compiled, arguments)
        assert not [e for r in records for e in r.internal_errors]
        eager = program.run(program.function, arguments)
        exact = program.run(program.function, arguments, torch.float64)
        for number, (m, e, x) in enumerate(zip(mine, eager, exact, strict=True)):
            try:
                assert_as_good_as_eager(m.detach(), e.detach(), x.detach().double())
            except AssertionError as error:
                pytest.fail(f"shape {shape}, result {number}: {error}\n{program.source}")
