"""Parallel styles of whole models inside plans: Llama under DTensor, sharded data parallel, gradients summed within the
backward plan, DDP under compiled autograd. Each against a single process that has all of it."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ark_torch.errors import RanksDisagree
from ark_torch.exchanges import exchanges_of
from ark_torch.records import recording
from ark_torch.versions import minor
from tests.conftest import has_extension
from tests.distributed.test_plan_collectives import gathered
from tests.support import parallel_llama as llama
from tests.support.distributed_worker import own_device, run_each, run_ranks, values
from tests.support.parallel_training import (
    Replicated,
    Residuals,
    ShardedMlp,
    batch_of,
    mean_over_ranks,
    trained,
    whole_mlp,
)

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

STEPS = 10


def sent(records: list) -> dict[str, list]:
    """The exchanges of each kind of graph. Asks for one plan in each graph, and for no ATen step."""
    found = {}
    for record in records:
        causes = {*record.fallbacks, *record.runtime_fallbacks, *record.internal_errors}
        assert not causes, f"{record.name}: {causes}"
        assert len(record.segments) == 1, f"{record.name}: {len(record.segments)} plans"
        found[record.kind] = exchanges_of(record.segments[0].executable.stats())
    return found


def check_llama(whole: nn.Module, shared: nn.Module, fast: nn.Module, length: int) -> dict[str, list]:
    """Tokens, logits, and loss and gradients of a training step."""
    ids = llama.tokens(2, length)
    with recording() as records:
        assert torch.equal(llama.continued(fast, ids, length - 5), llama.continued(whole, ids, length - 5))
        torch.testing.assert_close(llama.logits(fast, ids), llama.logits(whole, ids), rtol=1e-4, atol=1e-5)
        losses = [model(ids, labels=ids, **llama.arguments(ids)).loss for model in (fast, whole)]
        for loss in losses:
            loss.backward()
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    for (name, want), got in zip(whole.named_parameters(), shared.parameters()):
        gradient = got.grad.full_tensor() if isinstance(got.grad, DTensor) else got.grad
        assert torch.allclose(gradient, want.grad, rtol=1e-3, atol=1e-5), f"{name}: {gradient} instead of {want.grad}"
    return sent(records)


def llama_tensor_parallel(rank: int, world: int) -> None:
    """Sums of the lookup and of two products of each layer, and the gathered logits. In the backward a sum for each
    pair of products instead, and for the head."""
    layers = 1 if world > 2 and own_device() == "cpu" else 2
    torch._dynamo.reset()
    whole, shared = llama.build_both(llama.tensor_styles(), world, layers)
    found = check_llama(whole, shared, torch.compile(shared, backend="ark"), 12)
    assert len(found["inference"]) == len(found["forward"]) == 1 + 2 * layers + 1
    assert len(found["backward"]) >= 2 * layers + 1


def check_sequence_parallel(world: int) -> tuple[nn.Module, nn.Module]:
    """Of each sum a reduce-scatter and an all-gather. Returns the whole model and the compiled one."""
    torch._dynamo.reset()
    whole, shared = llama.build_both(llama.sequence_styles(), world)
    fast = torch.compile(shared, backend="ark", dynamic=False)
    found = check_llama(whole, shared, fast, 12)
    assert len(found["inference"]) == len(found["forward"]) == 2 * (1 + 2 * 2) + 1
    assert sum(exchange.parts for exchange in found["forward"]) == 1 + 2 * 2
    assert sum(exchange.parts for exchange in found["backward"]) >= 2 * 2 + 1
    return whole, fast


def llama_sequence_parallel(rank: int, world: int) -> None:
    check_sequence_parallel(world)


def llama_uneven_sequence(rank: int, world: int) -> None:
    """The same; then tokens that do not divide: DTensor pads on some ranks only, their plans differ, which all ranks
    hear. The group goes on, with the plan that it had."""
    whole, fast = check_sequence_parallel(world)
    with pytest.raises(RanksDisagree, match="rank 0 has op .* rank 1|ranks disagree"):
        llama.logits(fast, llama.tokens(2, 13))
    ids = llama.tokens(2, 12)
    torch.testing.assert_close(llama.logits(fast, ids), llama.logits(whole, ids), rtol=1e-4, atol=1e-5)


def sharded_data_parallel(rank: int, world: int) -> None:
    torch._dynamo.reset()
    whole, mine = ShardedMlp(3, 0, 1), ShardedMlp(3, rank, world)
    batches = [batch_of(step, world) for step in range(STEPS)]
    fast = torch.compile(mine, backend="ark", fullgraph=True, options={"strict": True})
    with recording() as records:
        losses = trained(fast, mine.parameters(), [batch.chunk(world)[rank] for batch in batches])
    want = trained(lambda x: whole_mlp(x, list(whole.rows)), whole.parameters(), batches)
    torch.testing.assert_close(mean_over_ranks(losses), want, rtol=1e-4, atol=1e-6)
    for got, weight in zip(mine.rows, whole.rows):
        torch.testing.assert_close(gathered(got.detach(), dist.group.WORLD), weight.detach(), rtol=1e-4, atol=1e-5)
    found = sent(records)
    unread = minor(torch.__version__) >= (2, 14)  # of the first layer's rows, for a gradient of x that nobody asks for
    assert [exchange.parts for exchange in found["forward"]] == [False] * (3 + unread)
    assert sum(exchange.parts for exchange in found["backward"]) == 3


def check_gradients(rank: int, world: int, model: nn.Module, call) -> list:
    """Ten steps of ranks that have a part of the batch each; what they compiled."""
    whole = Residuals().to(own_device())
    batches = [batch_of(step, world) for step in range(STEPS)]
    with recording() as records:
        losses = trained(call, model.parameters(), [batch.chunk(world)[rank] for batch in batches])
    want = trained(whole, whole.parameters(), batches)
    torch.testing.assert_close(mean_over_ranks(losses), want, rtol=1e-4, atol=1e-6)
    for got, parameter in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(got, parameter, rtol=1e-4, atol=1e-5)
    return records


def check_overlap(backward: list) -> None:
    """Each gradient is an exchange; the layers before it run meanwhile."""
    assert len(backward) == 2 * 4, backward
    alone = [exchange for exchange in backward if not exchange.meanwhile]
    assert len(alone) <= 2, alone


def replicated(rank: int, world: int) -> None:
    torch._dynamo.reset()
    model = Residuals().to(own_device())

    def call(x):
        parameters = {name: Replicated.apply(p) for name, p in model.named_parameters()}
        return torch.func.functional_call(model, parameters, x)

    fast = torch.compile(call, backend="ark", fullgraph=True, options={"strict": True})
    found = sent(check_gradients(rank, world, model, fast))
    assert not found["forward"]
    check_overlap(found["backward"])


@contextlib.contextmanager
def compiled_autograd():
    """Hooks of parameters are part of the backward graph; DDP's reducer is made of such hooks."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(compiled_autograd=True, optimize_ddp="python_reducer"):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="ark", options={"strict": True})):
            yield


def hooks(rank: int, world: int) -> None:
    with compiled_autograd():
        model = Residuals().to(own_device())
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: funcol.all_reduce(gradient, "avg", dist.group.WORLD))
        found = sent(check_gradients(rank, world, model, torch.compile(model, backend="ark")))
    assert not found["forward"]
    check_overlap(found["inference"])


def ddp_around(rank: int, world: int) -> None:
    with compiled_autograd():
        model = DistributedDataParallel(Residuals().to(own_device()))
        found = sent(check_gradients(rank, world, model, torch.compile(model, backend="ark")))
    assert not found["forward"]
    check_overlap(found["inference"])


def ddp_inside(rank: int, world: int) -> None:
    with compiled_autograd():
        model = DistributedDataParallel(torch.compile(Residuals().to(own_device()), backend="ark"))
        check_overlap(sent(check_gradients(rank, world, model, model))["inference"])


def ddp_step(rank: int, world: int) -> None:
    """Loss and backward in one compiled function."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(compiled_autograd=True, optimize_ddp="python_reducer"):
        model = DistributedDataParallel(Residuals().to(own_device()))

        @torch.compile(backend="ark")
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), batch_of(0, world)
        with recording() as records:
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                losses.append(step(x.chunk(world)[rank]).detach())
                optimizer.step()
    whole = Residuals().to(own_device())
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for loss in mean_over_ranks(torch.stack(losses)):
        optimizer.zero_grad()
        want = whole(x).square().mean()
        want.backward()
        torch.testing.assert_close(loss, want.detach(), rtol=1e-4, atol=1e-6)
        optimizer.step()
    check_overlap(sent(records)["inference"])


def ddp_without_sync(rank: int, world: int) -> None:
    """Gradients of two calls, of which only the second one sums over the ranks."""
    with compiled_autograd():
        model = DistributedDataParallel(Residuals().to(own_device()))
        fast, x = torch.compile(model, backend="ark"), batch_of(rank, world)
        with model.no_sync():
            fast(x).sum().backward()
        of_rank = [parameter.grad.clone() for parameter in model.parameters()]
        with recording() as records:
            fast(x).sum().backward()
    check_overlap(sent(records)["inference"])
    for parameter, gradient in zip(model.parameters(), of_rank):
        want = funcol.all_reduce(2 * gradient, "avg", dist.group.WORLD)
        torch.testing.assert_close(parameter.grad, want, rtol=1e-4, atol=1e-4)


LLAMA = [llama_tensor_parallel, llama_sequence_parallel]
TRAINING = [sharded_data_parallel, replicated, hooks, ddp_around, ddp_inside, ddp_step, ddp_without_sync]
PARALLEL = [llama_tensor_parallel, llama_uneven_sequence, *TRAINING]  # the latter begins as LLAMA's second
OF_FOUR = [llama_tensor_parallel, sharded_data_parallel, ddp_around]  # the others are alike, and take a minute
OF_RANKS = {2: PARALLEL, 3: [llama_tensor_parallel], 4: OF_FOUR}


def parallel(rank: int, world: int) -> dict:
    return run_each(OF_RANKS[world], rank, world)


@pytest.mark.parametrize("world", OF_RANKS)
def test_parallel(world):
    """One set of processes for all of them."""
    for of_rank in values(run_ranks(parallel, world, seconds=20, prepared=True)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
