"""A module that torch.export made, compiled: a graph of ops instead of Python."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ark_torch.backend import ark
from ark_torch.records import recording
from tests.frontend.test_attention import REPEATS

STRICT = {"strict": True}


class Counting(nn.Module):
    """With buffers that a call writes."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.down(torch.relu(self.norm(self.up(x))))


def gradients(model, out):
    return torch.autograd.grad(out.square().sum(), list(model.parameters()))


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_a_module_with_buffers(executor, train):
    model = Counting().train(train)
    exported = torch.export.export(model, (torch.randn(6, 16),)).module()
    compiled = torch.compile(exported, backend=ark, options=STRICT)
    for _ in range(3):
        x = torch.randn(6, 16)
        actual, wanted = compiled(x), model(x)
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(exported, actual), gradients(model, wanted), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(exported.named_buffers()), dict(model.named_buffers()))


def test_a_dynamic_size(executor):
    model = Counting().eval()
    rows = torch.export.Dim("rows", min=2, max=100)
    exported = torch.export.export(model, (torch.randn(6, 16),), dynamic_shapes={"x": {0: rows}}).module()
    with recording() as records:
        compiled = torch.compile(exported, backend=ark, options=STRICT, dynamic=True)
        for rows in (6, 9, 50):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert [r.kind for r in records].count("forward") == 1


def test_a_program_from_a_file(executor):
    model, x, file = Counting().eval(), torch.randn(6, 16), io.BytesIO()
    torch.export.save(torch.export.export(copy.deepcopy(model), (x,), strict=True), file)
    file.seek(0)
    compiled = torch.compile(torch.export.load(file).module(), backend=ark, options=STRICT)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class Grouped(nn.Module):
    def __init__(self, repeat):
        super().__init__()
        self.repeat = repeat

    def forward(self, q, k, v):
        keys, values = (self.repeat(x.float(), 4) for x in (k, v))  # export checks the type before a cast
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)


@pytest.mark.parametrize("repeat", REPEATS)
def test_attention_of_an_exported_graph(executor, repeat):
    """It is ark's, over the heads that were repeated; what export asserts of types costs no step."""
    q, k, v = torch.randn(2, 8, 7, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    model = Grouped(REPEATS[repeat])
    exported = torch.export.export(model, (q, k, v)).module()
    assert "scaled_dot_product_attention.default" in exported.code
    with recording() as records:
        actual = torch.compile(exported, backend=ark, options=STRICT)(q, k, v)
    torch.testing.assert_close(actual, model(q, k, v), rtol=1e-4, atol=1e-5)
    (found,) = [n for s in records[0].segments for n in s.nodes if n.target is torch.ops.ark.attention.default]
    assert found.args[1].meta["val"].shape[1] == 2


def test_an_assertion_on_a_type_still_fails(executor):
    def body(x):
        torch.ops.aten._assert_tensor_metadata(x, None, None, torch.float32)
        return x * 2 + 1

    compiled = torch.compile(body, backend=ark, options=STRICT)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    with pytest.raises(Exception, match="dtype mismatch"):
        compiled(torch.ones(3, dtype=torch.float64))
