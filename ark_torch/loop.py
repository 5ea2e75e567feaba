"""`ark_torch.loop`: a step n times, in one launch where it is one plan."""

from __future__ import annotations

from collections.abc import Callable


def loop(step: Callable, n: int, carry, until: Callable | None = None, *, strict: bool = False) -> tuple:
    """Calls `carry = step(*carry)` n times, or until `until(*carry)` is true, and returns the last carry.

    `carry` is a tuple or list of tensors or of dicts, lists and tuples of tensors, of any shapes and dtypes, on one
    device. `step` gets its items and returns a tuple of the same structure; each tensor keeps its shape, dtype and
    device. It may return what it was given, or views of it, and may read and write tensors from outside (below torch
    2.13, whose Dynamo makes no loop of a step that writes there, carry those). `until` is asked after each iteration
    and returns a bool tensor of one element. Both are traced: what they do besides tensors happens while that is done.
    A function that is compiled itself breaks its graph here; `torch.while_loop` does not.

    The step is compiled at the first call and kept (the last 64 steps, until `torch.compiler.reset()`); another n
    compiles nothing. A step of native ops alone runs as one launch; on a GPU nobody waits for it, and nothing
    but the end of the process ends it early. Any other step is called once per iteration,
    logged once with the cause (a warning of `logging.getLogger("ark")`); under `strict` that is an error.

    Results are contiguous tensors of their own, also for n = 0; `carry` is never written. No gradients flow through a
    loop.

    Raises TypeError for a carry or an n of another type, ValueError for a negative n, tensors that need gradients and a
    step whose result does not fit the carry (it names the tensor, what was expected and what came),
    ark_torch.Unsupported under `strict`, and what the step raises, with the iteration's number.
    """
    from ark_torch.looped import run_loop  # brings Dynamo with it

    return run_loop(step, n, carry, until, strict)


__all__ = ["loop"]
