"""One executable that runs the extension and, on copies of the arguments, the reference evaluator: what the extension
has computed and written must be what the reference has."""

from __future__ import annotations

import torch

from ark_torch._compat import FakeTensor
from tests.support.reference_eval import DTYPES, ReferenceGraph

# Of the largest number, by the coarsest dtype of the graph: they differ in orders of sums, in functions of libm and in
# what is rounded. At least what assert_close allows near 0.
RELATIVE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-10}


def copies(inputs: list) -> list:
    """Of the tensors, which share memory where the given ones do."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(x):
        if not isinstance(x, torch.Tensor):
            return x
        storage = x.untyped_storage()
        own = storages.setdefault(storage.data_ptr(), storage.clone() if storage.data_ptr() else storage)
        return torch.empty(0, dtype=x.dtype).set_(own, x.storage_offset(), x.shape, x.stride())

    return [copy(x.detach() if isinstance(x, torch.Tensor) else x) for x in inputs]


def check_equal(actual: torch.Tensor, wanted: torch.Tensor, coarsest: float, what: str) -> None:
    assert (actual.dtype, actual.shape, actual.stride()) == (wanted.dtype, wanted.shape, wanted.stride()), what
    rtol = max(RELATIVE[actual.dtype], coarsest) if actual.is_floating_point() else 0
    finite = wanted[wanted.isfinite()] if rtol else None
    atol = max(1e-5, rtol * finite.abs().max().item()) if finite is not None and finite.numel() else 0
    torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}")


class BothGraph:
    """CompiledGraph's twin; what is not here is the extension's."""

    def __init__(self, make, text: str, *rest):
        self.native, self.reference = make(text, *rest), ReferenceGraph(text, *rest)
        dtypes = {DTYPES[value["dtype"]] for value in self.reference.graph["values"]}
        self.coarsest = max((RELATIVE[dtype] for dtype in dtypes & RELATIVE.keys()), default=0.0)

    def __getattr__(self, name: str):
        return getattr(self.native, name)

    def prepare(self, symbols) -> None:
        self.native.prepare(symbols)
        self.reference.prepare(symbols)

    def __call__(self, inputs: list) -> list:
        if any(isinstance(x, FakeTensor) for x in inputs):
            return self.native(inputs)
        copied, name = copies(inputs), self.reference.graph["name"]
        try:
            results = self.native(inputs)
        except ValueError as error:
            assert self._refuses(copied), f"{name}: the reference takes what the extension refuses: {error}"
            raise
        for i, (actual, wanted) in enumerate(zip(results, self.reference(copied), strict=True)):
            check_equal(actual, wanted, self.coarsest, f"{name}, output {i}")
        for i, (actual, wanted) in enumerate(zip(inputs, copied)):
            if isinstance(actual, torch.Tensor):
                check_equal(actual.detach(), wanted, self.coarsest, f"{name}, input {i}")
        return results

    def _refuses(self, inputs: list) -> bool:
        try:
            self.reference(inputs)
        except (ValueError, RuntimeError):
            return True
        return False
