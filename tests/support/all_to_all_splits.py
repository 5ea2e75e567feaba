"""all_to_all_single of ranks that pass splits, and ranks that pass none, on the host and on GPUs."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from tests.support.survivors import end_of_device, raised

SIZES = (1, 5000, 300_000, 2_500_000)  # of a pair; on GPUs packets, then rings with several numbers of CTAs


def exchange(rows: list[list[int]], passes: bool | str, device: str) -> None:
    """rows[a][b] go from rank a to rank b. Whether this rank passes splits: "lists" as a list of tensors."""
    rank, world = dist.get_rank(), dist.get_world_size()
    to, from_ = rows[rank], [row[rank] for row in rows]
    value = lambda a, b: torch.full((rows[a][b],), 10.0 * a + b, device=device)
    sent = torch.cat([value(rank, b) for b in range(world)])
    got = torch.full((sum(from_),), -1.0, device=device)
    if passes == "lists":
        dist.all_to_all(list(got.split(from_)), list(sent.split(to)))
    elif passes == "outputs":
        dist.all_to_all_single(got, sent, from_, None)
    elif passes:
        dist.all_to_all_single(got, sent, from_, to)
    else:
        dist.all_to_all_single(got, sent)
    assert torch.equal(got, torch.cat([value(a, rank) for a in range(world)])), (rows, passes)


def mixed(rank: int, world: int, device: str) -> None:
    for n in SIZES:
        even = [[n] * world for _ in range(world)]
        for form in (True, "outputs", "lists"):
            exchange(even, form if rank == 0 else False, device)
            exchange(even, False if rank == 0 else form, device)
        # Even for rank 0 alone, which cannot know it.
        uneven = [[n if 0 in (a, b) else n + a + b for b in range(world)] for a in range(world)]
        for passes in (True, False, "lists"):
            exchange(uneven, True if rank > 0 else passes, device)
    end_of_device(device)


def disagree(rank: int, world: int, device: str) -> dict[str, str]:
    """Rank 0 passes no splits."""
    ones = lambda n: torch.ones(n, device=device)

    def sends_more(group: dist.ProcessGroup, n: int) -> None:
        """Rank 1 to rank 0. Who is not concerned hears of it next time."""
        to = [n + (rank == 1 and r == 0) for r in range(world)]
        splits = ([n] * world, to) if rank > 0 else (None, None)
        dist.all_to_all_single(ones(n * world), ones(sum(to)), *splits, group=group)
        end_of_device(device, group)
        dist.all_reduce(ones(64), group=group)
        end_of_device(device, group)

    def other_size(group: dist.ProcessGroup, n: int) -> None:
        """No splits at all."""
        size = (n + (rank == 1)) * world
        dist.all_to_all_single(ones(size), ones(size), group=group)
        end_of_device(device, group)

    texts = {}
    for name, call in (("more", sends_more), ("size", other_size)):
        for n in (100, 1_000_000):
            group = dist.new_group(list(range(world)), timeout=timedelta(seconds=5))
            texts[f"{name} {n}"] = raised(partial(call, group, n))[0]
    return texts


def check_texts(ranks: list[dict[str, str]]) -> None:
    for texts in ranks:
        for name, text in texts.items():
            assert any(word in text for word in ("disagree", "sends", "failed", "gave up")), (name, text)
    for n in (100, 1_000_000):
        said = " ".join(texts[f"more {n}"] for texts in ranks[:2])
        sides = (f"rank 1 sends {4 * n + 4} bytes to rank 0, which expects {4 * n}",  # host
                 f"rank 1 sends {4 * n + 4} bytes to this rank, which expects {4 * n}",
                 f"rank 0 expects {4 * n} bytes from this rank, which sends {4 * n + 4}")  # fmt: skip
        assert any(side in said for side in sides), said
