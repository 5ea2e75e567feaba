"""The error types of ark_torch. `Unsupported` is the extension's own type where the extension is built."""

from __future__ import annotations

try:
    from ark_torch._C import DeviceError, Unsupported
except ImportError:

    class Unsupported(RuntimeError):
        """Legal, but ark does not run it natively; the backend falls back to ATen (an error under `strict`)."""

    class DeviceError(RuntimeError):
        """The device failed or a deadline passed."""


class StrictRefusal(Unsupported):
    """Something would not run natively, under `strict`. `cause`: what."""

    def __init__(self, cause: str):
        super().__init__(f"strict: {cause}")
        self.cause = cause

    def __reduce__(self):
        return type(self), (self.cause,)


class NodeUnsupported(Unsupported):
    """The planner declines one node of a step. `node` is its name, empty where no node alone is to blame."""

    def __init__(self, message: str, node: str):
        super().__init__(message)
        self.node = node

    def __reduce__(self):
        return type(self), (*self.args, self.node)


class TooLong(NodeUnsupported):
    """The planner declines a step for its length: an op needs `actual` of what `unit` names, and may have `limit`."""

    def __init__(self, message: str, unit: str, actual: int, limit: int, node: str = ""):
        super().__init__(message, node)
        self.unit, self.actual, self.limit = unit, actual, limit

    def __reduce__(self):
        return type(self), (*self.args, self.unit, self.actual, self.limit, self.node)


class IndexOutOfRange(IndexError, ValueError, RuntimeError):
    """A run met an index outside of its tensor. `index` and `size` are what it met, `op` is the plan's name of the op
    that did. In eager some ops raise an IndexError (`x[i]`, `embedding`), others a RuntimeError (`gather`, `scatter`):
    it is both."""

    def __init__(self, message: str, index: int, size: int, op: str):
        super().__init__(message)
        self.index, self.size, self.op = index, size, op

    def __reduce__(self):
        return type(self), (*self.args, self.index, self.size, self.op)


class ArgumentRefused(ValueError):
    """An argument is not what the graph was compiled for. `argument` says which: "input 3 (x)"."""

    def __init__(self, message: str, argument: str):
        super().__init__(message)
        self.argument = argument

    def __reduce__(self):
        return type(self), (*self.args, self.argument)


class RanksDisagree(ValueError):
    """The ranks of a group have plans that do not fit together; all of them raise it."""


class RanksApart(ValueError):
    """Nothing has run: other ranks call the collectives of this plan, and so has this one (segment.py)."""


__all__ = [
    "ArgumentRefused",
    "DeviceError",
    "IndexOutOfRange",
    "NodeUnsupported",
    "RanksApart",
    "RanksDisagree",
    "StrictRefusal",
    "TooLong",
    "Unsupported",
]
