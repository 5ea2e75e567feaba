"""Sizes and addresses are data, streams, capture, determinism."""

from __future__ import annotations

import threading

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Block(torch.nn.Module):
    def __init__(self, width: int = 256):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return Block().to("cuda", dtype).eval()


@torch.no_grad()
def test_same_bits_every_run():
    torch._dynamo.reset()
    model, x = make(), torch.randn(777, 256, device="cuda", dtype=torch.bfloat16)
    call = torch.compile(model, backend="ark")
    first = call(x)
    for _ in range(20):
        assert torch.equal(call(x), first)


@torch.no_grad()
def test_outputs_are_fresh():
    torch._dynamo.reset()
    model = make()
    call = torch.compile(model, backend="ark")
    inputs = [torch.randn(64, 256, device="cuda", dtype=torch.bfloat16) for _ in range(10)]
    kept = [call(x) for x in inputs]
    for x, out in zip(inputs, kept):
        assert torch.equal(call(x), out)


@torch.no_grad()
def test_parameters_are_looked_up():
    torch._dynamo.reset()
    model, x = make(torch.float32), torch.randn(64, 256, device="cuda")
    call = torch.compile(model, backend="ark")
    call(x)
    model.load_state_dict({k: torch.randn_like(v) * 0.05 for k, v in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_side_streams_and_threads():
    torch._dynamo.reset()
    model = make()
    call = torch.compile(model, backend="ark")
    inputs = [torch.randn(512, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    expected = [call(x) for x in inputs]
    torch.cuda.synchronize()
    failures = []

    def work(index: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(50):
                out = call(inputs[index])
                stream.synchronize()
                if not torch.equal(out, expected[index]):
                    failures.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not any(t.is_alive() for t in threads)
    assert not failures


@torch.no_grad()
def test_a_thread_begins_with_compiling():
    """Nothing else has made a context current there: so it is where autograd's thread compiles a backward."""
    torch._dynamo.reset()
    model, x = make(), torch.randn(384, 256, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    results = []

    def work() -> None:
        with torch.no_grad():
            results.append(torch.compile(model, backend="ark", options={"strict": True})(x))
        torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert len(results) == 1, "the thread raised, or has not ended"
    torch.testing.assert_close(results[0], model(x), rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_capture_and_replay():
    torch._dynamo.reset()
    model = make()
    call = torch.compile(model, backend="ark")
    x = torch.randn(128, 256, device="cuda", dtype=torch.bfloat16)
    call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(x)
    for _ in range(5):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, call(x))


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 17, 129, 1000])
def test_row_counts(rows):
    torch._dynamo.reset()
    model = make()
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
    double = make(torch.float64)
    double.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    exact = double(x.double())
    mine, eager = torch.compile(model, backend="ark")(x), model(x)
    distance = lambda out: (out.double() - exact).norm().item()
    assert distance(mine) <= 1.5 * distance(eager) + 1e-9
