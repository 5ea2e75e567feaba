"""That the fixture `executor` sees where the extension and the reference evaluator differ."""

from __future__ import annotations

import pytest
import torch

import ark_torch.segment
from ark_torch.backend import ark
from tests.support.both_executors import BothGraph, copies
from tests.support.reference_eval import ReferenceGraph


class WrongResult(ReferenceGraph):
    def __call__(self, inputs):
        return [result + 1e-3 for result in super().__call__(inputs)]


class WrongWrite(ReferenceGraph):
    def __call__(self, inputs):
        results = super().__call__(inputs)
        inputs[0].detach().add_(1e-3)
        return results


class Refusing(ReferenceGraph):
    def __call__(self, inputs):
        raise ValueError("not these")


def doubled(x):
    x.mul_(2)
    return x.sum(0)


@pytest.mark.parametrize(
    "made, message",
    [
        (WrongResult, "output 0: .*not close"),
        (WrongWrite, "input 0: .*not close"),
        (Refusing, "the reference takes what the extension refuses: not these"),
        (ReferenceGraph, None),
    ],
)
def test_what_differs_is_an_error(monkeypatch, made, message):
    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: BothGraph(made, *args))
    compiled, x = torch.compile(doubled, backend=ark), torch.ones(3, 4)
    if message:
        with pytest.raises(AssertionError, match=f"(?s){message}"):
            compiled(x)
    else:
        torch.testing.assert_close((compiled(x), x), (torch.full((4,), 6.0), torch.full((3, 4), 2.0)))


def test_copies_share_what_the_arguments_share():
    base = torch.arange(6.0)
    first, second, number = copies([base[1:], base[:4].view(2, 2), 7])
    first[0] = 9
    assert second[0, 1] == 9 and base[1] == 1 and number == 7
    assert (first.storage_offset(), second.stride()) == (1, (2, 1))
