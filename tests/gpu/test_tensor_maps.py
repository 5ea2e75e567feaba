"""Tensor maps are patched where addresses change and acquired once an SM: operands that move between launches."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Set = tuple[torch.Tensor, ...]


def products(x, up, down):
    """Both operands of the first product are inputs; a hidden tensor is one of the second."""
    return torch.nn.functional.gelu(x @ up.t()) @ down.t()


def more(x, up, down):
    return products(x, up, down) + 1


def gradients(body: Callable) -> Callable:
    """Of a sum over body's squares, by all operands, in one tensor."""

    def run(*sets: torch.Tensor) -> torch.Tensor:
        leaves = tuple(t.detach().requires_grad_() for t in sets)
        loss = body(*leaves).to(torch.promote_types(leaves[0].dtype, torch.float32)).square().sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])

    return run


def operands(count: int, rows: int, dtype=torch.bfloat16) -> list[Set]:
    """`count` sets of (rows x 512, 768 x 512, 384 x 768), each in memory of its own."""
    torch.manual_seed(rows)
    sizes = ((rows, 512), (768, 512), (384, 768))
    return [tuple(torch.randn(size, device="cuda", dtype=dtype) / 20 for size in sizes) for _ in range(count)]


def compiled(body: Callable, workers: int = 132):
    return torch.compile(body, backend="ark", options={"workers": workers, "strict": True})


def check(values: torch.Tensor, sets: Set, body: Callable) -> None:
    """As near to fp64 as eager's."""
    exact = body(*(t.double() for t in sets))
    off = lambda mine: (mine.double() - exact).norm().item()
    assert off(values) <= 1.5 * off(body(*sets)) + 1e-9


def checked(call: Callable, sets: list[Set], body: Callable) -> list[torch.Tensor]:
    """What the call gives for each set: right, and other than for the rest."""
    first = [call(*s).clone() for s in sets]
    for values, s in zip(first, sets):
        check(values, s, body)
    assert not any(torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])
    return first


@torch.no_grad()
@pytest.mark.parametrize("rows", [64, 128, 1000])
@pytest.mark.parametrize("workers", [132, 40, 1])
def test_operands_move(rows, workers):
    """In any order, each of them alone too; beside other work, so that fewer workers find themselves on other SMs."""
    torch._dynamo.reset()
    call, sets, order = compiled(products, workers), operands(4, rows), random.Random(rows)
    first = checked(call, sets, products)
    beside, other = torch.cuda.Stream(), torch.randn(1 << 22, device="cuda")
    for _ in range(60):
        with torch.cuda.stream(beside):
            other[: 1 << order.randrange(8, 23)].mul_(1.0)
        i = order.randrange(len(sets))
        assert torch.equal(call(*sets[i]), first[i])
    for i, (x, _, _) in enumerate(sets):  # one map of three changes
        mixed = (x, *sets[0][1:])
        check(call(*mixed), mixed, products)
        assert torch.equal(call(*sets[i]), first[i])


@torch.no_grad()
def test_two_graphs_in_turns():
    """Run states of two plans; whatever an SM keeps of one is not taken for the other's."""
    torch._dynamo.reset()
    calls, sets = [compiled(products), compiled(more)], operands(3, 128)
    first = [checked(call, sets, body) for call, body in zip(calls, (products, more))]
    for i in range(40):
        assert torch.equal(calls[i % 2](*sets[i % 3]), first[i % 2][i % 3])


@torch.no_grad()
def test_captures_beside_calls():
    """Each capture has a run state of its own, patched at its first replay."""
    torch._dynamo.reset()
    call, sets = compiled(products), operands(3, 128)
    first = checked(call, sets, products)
    graphs = []
    for s in sets[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(*s)
        graphs.append((graph, out))
    for i in range(30):
        graph, out = graphs[i % 2]
        graph.replay()
        assert torch.equal(out, first[i % 2])
        assert torch.equal(call(*sets[i % 3]), first[i % 3])


@torch.no_grad()
def test_plans_without_maps_in_a_kernel_with_them():
    """Rows of odd lengths have no maps; plans of one graph may share a kernel, whatever length came first."""
    torch._dynamo.reset()
    body = torch.nn.functional.linear
    call = torch.compile(body, backend="ark", dynamic=True, options={"strict": True})
    for k in (64, 63, 61, 64, 59, 128, 61):
        operand = tuple(torch.randn(128, k, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        check(call(*operand), operand, body)


def test_gradients_of_operands_that_move():
    """Tensors that a forward keeps for the backward are allocated anew by each step."""
    torch._dynamo.reset()
    call, sets = gradients(compiled(products)), operands(3, 256)
    first, kept = checked(call, sets, gradients(products)), []
    for i in range(12):
        kept.append(torch.empty(1 << (16 + i % 5), device="cuda"))  # what follows lies elsewhere
        assert torch.equal(call(*sets[i % 3]), first[i % 3])
