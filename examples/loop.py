"""Trains a small network for many steps in one launch: python examples/loop.py [--steps 500] [--width 64]

`ark_torch.loop` carries the parameters, their momentum and the losses from step to step; the gradients are worked out
inside the step by `torch.func`. The same step, compiled and called once per iteration, gives the same bits.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

import ark_torch

RATE, MOMENTUM, BATCH = 0.05, 0.9, 32


def make_step(data: torch.Tensor, target: torch.Tensor):
    """A step of gradient descent over (number of the step, parameters, momentum, losses)."""
    places = torch.arange(BATCH)

    def loss_of(parameters: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ parameters["first"] + parameters["bias"])
        return F.mse_loss(hidden @ parameters["last"], y)

    def step(i, parameters, momentum, losses):
        rows = (places + i * BATCH) % data.size(0)
        batch = data.index_select(0, rows), target.index_select(0, rows)
        gradients, loss = torch.func.grad_and_value(loss_of)(parameters, *batch)
        momentum = {name: MOMENTUM * momentum[name] + gradients[name] for name in parameters}
        parameters = {name: parameters[name] - RATE * momentum[name] for name in parameters}
        return i + 1, parameters, momentum, losses.index_copy(0, i.reshape(1), loss.reshape(1))

    return step


def make_carry(steps: int, width: int) -> tuple:
    parameters = {"first": torch.randn(8, width) / 3, "bias": torch.zeros(width), "last": torch.randn(width, 1) / width}
    momentum = {name: torch.zeros_like(x) for name, x in parameters.items()}
    return torch.zeros((), dtype=torch.int64), parameters, momentum, torch.zeros(steps)


def timed(function) -> tuple[tuple, float]:
    begin = time.perf_counter()
    result = function()
    return result, 1e6 * (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(256, 8)
    step, carry = make_step(data, torch.sin(data.sum(1, keepdim=True))), make_carry(args.steps, args.width)

    compiled = torch.compile(step, backend="ark")

    def one_by_one() -> tuple:
        result = carry
        for _ in range(args.steps):
            result = compiled(*result)
        return result

    with torch.no_grad():
        compiled(*carry), ark_torch.loop(step, 1, carry, strict=True)  # compile
        looped, together = timed(lambda: ark_torch.loop(step, args.steps, carry, strict=True))
        called, apart = timed(one_by_one)
    losses = looped[3]
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after step {args.steps}")
    same = all(torch.equal(looped[1][name], called[1][name]) for name in looped[1]) and torch.equal(losses, called[3])
    print(f"parameters and losses {'equal' if same else 'NOT equal'} to steps called one by one")
    print(f"one launch: {together / args.steps:.1f} us a step; one by one: {apart / args.steps:.1f} us")
    print("\n".join(line for line in str(ark_torch.report()).splitlines() if "_loop" in line))


if __name__ == "__main__":
    main()
