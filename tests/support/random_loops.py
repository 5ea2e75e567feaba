"""Loops to try: random steps, `step(number, *carry) -> (number, *carry)` of a few matrices, with a condition."""

from __future__ import annotations

import random

import torch

from ark_torch.backend import ark

OPS = ("product", "centre", "turn", "tanh", "add", "max", "row", "soft", "pick")


class RandomStep:
    """Numbers stay small. `carry` begins with the number of the iteration, a rank-0 tensor. `limit` is how many may
    run; a threshold may end them earlier."""

    def __init__(self, seed: int):
        draw = self.draw = random.Random(seed)
        numbers = torch.Generator().manual_seed(seed)
        self.rows, self.columns = draw.randint(1, 20), 4 * draw.randint(1, 8)
        self.num_carried, self.limit = draw.randint(1, 3), draw.randint(0, 9)
        self.threshold = draw.choice([None, 0.9, 0.99])
        shape = (self.rows, self.columns)
        self.weights = [torch.randn(self.columns, self.columns, generator=numbers) / 4 for _ in range(2)]
        self.plan = [(draw.choice(OPS), draw.random(), draw.random()) for _ in range(draw.randint(1, 8))]
        self.moves = [draw.random() < 0.3 for _ in range(self.num_carried)]
        self.choices = [draw.random() for _ in range(self.num_carried)]
        carried = [torch.randn(shape, generator=numbers) / 2 for _ in range(self.num_carried)]
        self.carry = (torch.zeros((), dtype=torch.int64), *carried)
        self.workers, self.threads = draw.choice([1, 6, 132]), draw.choice([1, 2])

    def step(self, i, *carried):
        values = list(carried)
        for name, first, second in self.plan:
            x, y = (values[int(place * len(values))] for place in (first, second))
            values.append(getattr(self, name)(x, y, i))
        new = []
        for k, (moves, place) in enumerate(zip(self.moves, self.choices)):
            other = carried[k - 1].clone() if moves else torch.tanh(values[int(place * len(values))])
            new.append(other)
        return i + 1, *new

    def goes_on(self, i, *carried):
        more = i < self.limit
        return more if self.threshold is None else more & (carried[0].amax() < self.threshold)

    def product(self, x, y, i):
        return x @ self.weights[0] + y

    def centre(self, x, y, i):
        return x - y.mean(1, keepdim=True)

    def turn(self, x, y, i):
        half = self.columns // 2
        return torch.cat([y[:, half:], x[:, :half]], 1)

    def tanh(self, x, y, i):
        return torch.tanh(x @ self.weights[1])

    def add(self, x, y, i):
        return x + y * 0.5

    def max(self, x, y, i):
        return torch.maximum(x, y.sum(0, keepdim=True) / self.rows)

    def row(self, x, y, i):
        """A row of each iteration, written in place."""
        return x.index_copy(0, (i % self.rows).reshape(1), y[:1])

    def soft(self, x, y, i):
        return x.softmax(-1) * y

    def pick(self, x, y, i):
        return x + y.index_select(0, (i % self.rows).reshape(1))


def called(step, goes_on, carry: tuple) -> tuple:
    """The loop in Python."""
    while bool(goes_on(*carry)):
        carry = step(*carry)
    return carry


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


def below(limit: int):
    return lambda i, *carried: i < limit


def looped(step, goes_on, **options):
    """The loop as one compiled function of its carry."""
    return torch.compile(
        lambda *carry: torch.while_loop(goes_on, step, carry), backend=ark, fullgraph=True, options=options
    )
