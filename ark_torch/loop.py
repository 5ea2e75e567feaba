"""`ark_torch.loop`: a step n times, in one launch where it is one plan."""

from __future__ import annotations

from collections.abc import Callable

import torch


def loop(step: Callable, n: int, carry, until: Callable | None = None, *, strict: bool = False) -> tuple:
    """Calls `carry = step(*carry)` n times, or until `until(*carry)` is true, and returns the last carry.

    `carry` is a tuple or list of tensors or of dicts, lists and tuples of tensors, of any shapes and dtypes, on one
    device. `step` gets its items and returns a tuple of the same structure; each tensor keeps its shape, dtype and
    device. It may return what it was given, or views of it, and may read and write tensors from outside. `until` is
    asked after each iteration and returns a bool tensor of one element. Both are traced: what they do besides tensors
    happens while that is done. In a function that is compiled itself, use `torch.while_loop`.

    The step is compiled at the first call and kept (the last 64 steps, until `torch.compiler.reset()`); another n
    compiles nothing. On the CPU a step of native ops alone runs as one launch. Any other is called once per iteration,
    logged once with the cause (a warning of `logging.getLogger("ark")`); under `strict` that is an error.

    Results are contiguous tensors of their own, also for n = 0; `carry` is never written. No gradients flow through a
    loop.

    Raises TypeError for a carry or an n of another type, ValueError for a negative n, tensors that need gradients and a
    step whose result does not fit the carry (it names the tensor, what was expected and what came),
    ark_torch.Unsupported under `strict`, and what the step raises, with the iteration's number.
    """
    from ark_torch.looped import check_carry, looped_step  # brings Dynamo with it

    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"loop: n is {n!r}, expected an int")
    if not 0 <= n < 2**62:
        raise ValueError(f"loop: n is {n}, expected 0 to 2**62 - 1")
    leaves, spec = check_carry(carry)
    with torch.no_grad():
        own = [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return looped_step(step, until, spec, strict)(n, own)


__all__ = ["loop"]
