"""The compiled form of a step for `ark_torch.loop`: a `torch.while_loop` around it, or calls where Dynamo gives up."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable

import torch

from ark_torch._compat import (
    BackendCompilerFailed,
    FakeTensor,
    FakeTensorMode,
    GraphBreak,
    ObservedException,
    TorchDispatchMode,
    TorchDynamoException,
    UncapturedHigherOrderOpError,
    pytree,
)
from ark_torch.errors import StrictRefusal
from ark_torch.loop_runs import own_tensors, writing_over
from ark_torch.records import REGISTRY, log

_numbers = itertools.count()


def _check_carry(carry) -> tuple[list[torch.Tensor], object]:
    """Its tensors and its structure."""
    if not isinstance(carry, (tuple, list)):
        raise TypeError(f"loop: carry is a {type(carry).__name__}, expected a tuple or list of tensors")
    named, spec = pytree.tree_flatten_with_path(tuple(carry))
    for path, leaf in named:
        name = f"carry{pytree.keystr(path)}"
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"loop: {name} is {leaf!r} ({type(leaf).__name__}), expected a tensor")
        if leaf.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"loop: {name} requires gradients, which do not flow through a loop (detach it)")
    if not named:
        raise ValueError("loop: carry has no tensors")
    return [leaf for _, leaf in named], spec


def _type(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"


def _check_result(result, leaves: list[torch.Tensor], spec) -> list[torch.Tensor]:
    """The tensors of what the step has returned; raises ValueError where they do not fit the carry."""
    result = tuple(result) if isinstance(result, list) else result
    named, found = pytree.tree_flatten_with_path(result)
    if found != spec:
        expected = pytree.tree_unflatten([_type(x) for x in leaves], spec)
        actual = pytree.tree_map(lambda x: _type(x) if isinstance(x, torch.Tensor) else repr(x), result)
        raise ValueError(f"loop: the step returned {actual}, expected {expected}")
    for (path, new), old in zip(named, leaves):
        if not isinstance(new, torch.Tensor) or _type(new) != _type(old):
            actual = _type(new) if isinstance(new, torch.Tensor) else repr(new)
            raise ValueError(f"loop: the step returned carry{pytree.keystr(path)} as {actual}, expected {_type(old)}")
    return [new for _, new in named]


def _check_stop(stop) -> torch.Tensor:
    if not isinstance(stop, torch.Tensor) or stop.dtype != torch.bool or stop.numel() != 1:
        actual = _type(stop) if isinstance(stop, torch.Tensor) else repr(stop)
        raise ValueError(f"loop: until returned {actual}, expected a bool tensor of one element")
    return stop


def _while_loop(step: Callable, until: Callable | None, spec) -> Callable:
    """run(limit, *tensors of the carry) -> the last ones. A code object per step: Dynamo counts compilations by it."""

    def run(limit, *leaves):
        def goes_on(i, stop, *leaves):
            return (i < limit) & ~stop

        def body(i, stop, *leaves):
            carry = step(*pytree.tree_unflatten(list(leaves), spec))
            carry = tuple(carry)
            stop = stop.clone() if until is None else until(*carry).reshape(()).clone()
            new = [x.clone(memory_format=torch.contiguous_format) for x in pytree.tree_leaves(carry)]
            return (i + 1, stop, *new)

        begin = torch.zeros_like(limit), torch.zeros_like(limit, dtype=torch.bool)
        return torch.while_loop(goes_on, body, (*begin, *leaves))[2:]

    code = run.__code__.replace(co_name=f"loop_{next(_numbers)}")
    return types.FunctionType(code, run.__globals__, code.co_name, None, run.__closure__)


class _WritesAreFake(TorchDispatchMode):
    """Above a FakeTensorMode, which would write tensors from outside where no fake one is among the arguments."""

    def __init__(self, mode: FakeTensorMode):
        super().__init__()
        self.mode = mode

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (args, kwargs))
        return func(*args, **kwargs)

    def _fake(self, x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(x, FakeTensor) else self.mode.from_tensor(x)


class LoopedStep:
    def __init__(self, step: Callable, until: Callable | None, spec, strict: bool):
        self.step, self.until, self.spec, self.strict = step, until, spec, strict
        options = {"strict": strict}
        self.run = torch.compile(_while_loop(step, until, spec), backend="ark", fullgraph=True, options=options)
        self.step_alone = torch.compile(step, backend="ark")
        self.checked: set = set()
        self.cause = ""  # why Dynamo cannot make a loop of it

    def __call__(self, n: int, leaves: list[torch.Tensor]) -> tuple:
        key = tuple((x.shape, x.dtype, x.device) for x in leaves)
        if n and key not in self.checked:
            self._check(leaves)
            self.checked.add(key)
        if n and not self.cause:
            try:
                with writing_over(leaves):
                    leaves = self.run(torch.full((), n, device=leaves[0].device), *leaves)
                return pytree.tree_unflatten(list(leaves), self.spec)
            except TorchDynamoException as error:
                self._give_up(error)
        return pytree.tree_unflatten(self._one_by_one(n, leaves), self.spec)

    def _check(self, leaves: list[torch.Tensor]) -> None:
        """Whether the results fit the carry, by a run without values; a step that needs values is checked later."""
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, _WritesAreFake(mode):
            fake = [mode.from_tensor(x) for x in leaves]
            try:
                result = self.step(*pytree.tree_unflatten(fake, self.spec))
                stop = None if self.until is None else self.until(*result)
            except Exception:
                return
            _check_result(result, fake, self.spec)
            if self.until is not None:
                _check_stop(stop)

    def _give_up(self, error: Exception) -> None:
        cause = _cause(error)
        name = getattr(self.step, "__name__", type(self.step).__name__)
        if self.strict:
            raise StrictRefusal(f"loop of {name}: {cause}") from error
        self.cause = cause
        if REGISTRY.first(f"loop of {name}: {cause}"):
            log.warning("ark_torch.loop calls %s once per iteration: %s", name, cause)

    def _one_by_one(self, n: int, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        given = leaves
        for iteration in range(n):
            carry = pytree.tree_unflatten(leaves, self.spec)
            try:
                result = self.step_alone(*carry)
                leaves = _check_result(result, leaves, self.spec)
                stop = self.until is not None and bool(_check_stop(self.until(*result)))
            except Exception as error:
                error.add_note(f"in iteration {iteration} of a loop")
                raise
            if stop:
                break
        return given if leaves is given else [x.contiguous() for x in own_tensors([], leaves)]


def _cause(error: Exception) -> str:
    """What is wrong: what the backend raised, or what Dynamo met in the step (the kind of a graph break, or what the
    step raises), of which it says only that a loop needs all of its step captured."""
    if isinstance(error, BackendCompilerFailed):
        inner = error.inner_exception
        return inner.cause if isinstance(inner, StrictRefusal) else _first_line(inner)
    met: BaseException | None = error
    if isinstance(error, UncapturedHigherOrderOpError):
        while met is not None and not isinstance(met, (GraphBreak, ObservedException)):
            met = met.__context__
    return getattr(met, "gb_type", None) or _first_line(met or error)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@functools.lru_cache(maxsize=64)
def looped_step(step: Callable, until: Callable | None, spec, strict: bool) -> LoopedStep:
    return LoopedStep(step, until, spec, strict)


@torch.compiler.disable
def run_loop(step: Callable, n: int, carry, until: Callable | None, strict: bool, in_place: bool = False) -> tuple:
    """`ark_torch.loop`, with its arguments checked. `in_place`: contiguous tensors of the carry, which share no memory,
    become the results where the iterations are one launch."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"loop: n is {n!r}, expected an int")
    if not 0 <= n < 2**62:
        raise ValueError(f"loop: n is {n}, expected 0 to 2**62 - 1")
    leaves, spec = _check_carry(carry)
    step = step if type(step).__hash__ else step.__call__  # a bound method is hashed by its object's address
    if any(isinstance(leaf, FakeTensor) for leaf in leaves):  # in a step of another loop, which is being checked
        return pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)
    with torch.no_grad():
        own = [
            leaf.detach() if in_place and leaf.is_contiguous() else leaf.clone(memory_format=torch.contiguous_format)
            for leaf in leaves
        ]
        return looped_step(step, until, spec, strict)(n, own)


__all__ = ["looped_step", "run_loop"]
