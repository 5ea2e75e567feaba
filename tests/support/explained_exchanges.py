"""What `explain` says of exchanges, as cases of the form f(rank, world): numbers that the program gives, and nothing of
plans without any."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch


def explained(function, *arguments: torch.Tensor):
    with torch.no_grad():
        return ark_torch.explain(function, *arguments, ark_options={"strict": True})


def of_one_reduction(rank: int, world: int) -> None:
    """Sent by the product, read by the softmax; a product that needs none of it lies between."""

    def function(x, w, other):
        y = funcol.all_reduce(x @ w, "sum", dist.group.WORLD)
        z = other @ w
        return torch.softmax(y, -1), z

    found = explained(function, torch.ones(24, 48), torch.ones(48, 64), torch.ones(40, 48))
    (exchange,) = found.exchanges
    bytes_sent = 24 * 64 * 4
    assert (exchange.ranks, exchange.bytes, exchange.parts) == (world, bytes_sent, False)
    assert exchange.from_ranks == tuple(range(world))
    assert exchange.op.startswith("mm+all_reduce") and exchange.readers and exchange.meanwhile == ("mm_1",)
    assert exchange.box_bytes == found.box_bytes == 2 * world * bytes_sent  # a multiple of 256
    text = str(found)
    assert f"exchanges between ranks: 1, each rank sends {bytes_sent * (world - 1) / 1e6:.3f} MB" in text
    assert "1 with ops that run meanwhile" in text and "meanwhile 'mm_1'" in text


def of_a_chain(rank: int, world: int) -> None:
    """What comes from an exchange, or only follows it through others, does not run meanwhile."""

    def function(x, w):
        y = funcol.all_reduce(x @ w, "sum", dist.group.WORLD)
        return funcol.all_reduce(torch.relu(y) @ w, "sum", dist.group.WORLD)

    first, second = explained(function, torch.ones(24, 48), torch.ones(48, 48)).exchanges
    assert first.op != second.op and first.readers and second.readers
    assert not first.meanwhile and not second.meanwhile


def of_parts(rank: int, world: int) -> None:
    """Each rank gets its own part; of a broadcast one box is read."""
    x = torch.ones(8 * world, 16)
    (exchange,) = explained(lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD), x).exchanges
    assert exchange.parts and exchange.bytes == 8 * 16 * 4
    found = explained(lambda x: funcol.broadcast(x, 1, dist.group.WORLD), x)
    assert found.exchanges[0].from_ranks == (1,) and "read from rank 1 by" in str(found)


def of_many(rank: int, world: int) -> None:
    """Boxes are taken over: their memory is less than the sum. The print is short."""

    def function(x, w):
        for _ in range(20):
            x = torch.softmax(funcol.all_reduce(x @ w, "sum", dist.group.WORLD), -1)
        return x

    found = explained(function, torch.ones(128, 128), torch.ones(128, 128))
    assert len(found.exchanges) == 20 and found.box_bytes < sum(e.box_bytes for e in found.exchanges)
    assert "and 8 more" in str(found) and str(found).count("the same to each") == 12


def of_none(rank: int, world: int) -> None:
    found = explained(lambda x: x * 2, torch.ones(3))
    assert not found.exchanges and found.box_bytes == 0 and "exchange" not in str(found)


EXPLAINED = [of_one_reduction, of_a_chain, of_parts, of_many, of_none]
