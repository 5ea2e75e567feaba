"""Random collectives, the same on every rank: the bits of every result checked, and digests of what all of them get
compared over the ranks.

Sizes, types, operations, groups, asynchronous calls, delays on the host and on the GPU, stragglers, registered memory,
sends and receives with several peers, replays of captured graphs in between. Results are looked at in bulk, so that
calls follow each other closely.
"""

from __future__ import annotations

import os
import random
import time

import torch
import torch.distributed as dist

from tests.support.collective_reference import reduced

ROUNDS = int(os.environ.get("ARK_STRESS_ROUNDS", "2000"))
CHECK_EVERY = 200
OPS = ("all_reduce", "all_reduce", "reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather",
       "scatter", "uneven", "send", "sends", "barrier")  # fmt: skip
SAME = ("all_reduce", "all_gather", "broadcast")  # on every rank
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool)  # fmt: skip


def part(base: torch.Tensor, dtype: torch.dtype, number: int) -> torch.Tensor:
    """What the rank of this number has; of bool, neither all true nor all false."""
    numbers = base + number
    return numbers % 3 == 0 if dtype == torch.bool else numbers.to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Differs where one word of 8 bytes does: factors that are odd lose no bit, and all differ."""
    data = bits(tensor)
    words = torch.nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    return (words * torch.arange(1, 2 * len(words), 2, device=tensor.device)).sum()


class Stress:
    def __init__(self, rank: int, world: int, device: str, largest: int, seed: int = 7) -> None:
        self.rank, self.device, self.largest = rank, device, largest
        self.random, self.own = random.Random(seed), random.Random(1000 + rank)  # common, and this rank's delays
        everybody = list(range(world))
        backend = "ark" if device == "cuda" else "cpu:ark"
        self.groups = [(dist.group.WORLD, everybody), (dist.new_group(everybody, backend=backend), everybody)]
        if world > 2:
            for first in range(world):
                members = sorted({first, (first + 1) % world})
                self.groups.append((dist.new_group(members, backend=backend), members))
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.digests = [torch.zeros((), dtype=torch.int64, device=device) for _ in self.groups]
        self.graph = self.capture() if device == "cuda" else None
        self.window = None
        if device == "cuda":
            import ark_torch.distributed as ark

            self.window = ark.empty(largest * world, dtype=torch.uint8)

    def capture(self) -> torch.cuda.CUDAGraph:
        """Collectives of three sizes in a graph."""
        self.captured = [torch.zeros(n, device="cuda") for n in (100, 50_000, 1_500_000)]
        for x in self.captured:
            dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for x in self.captured:
                dist.all_reduce(x)
        return graph

    def replay(self, round_number: int, world: int) -> None:
        for x in self.captured:
            x.fill_(self.rank + round_number)
        self.graph.replay()
        for x in self.captured:
            self.wrong += (x != sum(range(world)) + world * round_number).any()

    def place(self, like: torch.Tensor, registered: bool) -> torch.Tensor:
        """An output tensor, in registered memory if wanted and possible."""
        if not registered or self.window is None or like.nbytes > self.window.nbytes:
            return torch.empty_like(like)
        return self.window[: like.nbytes].view(like.dtype).view(like.shape)

    def delay(self) -> None:
        if self.own.random() < 0.01:
            time.sleep(self.own.random() * 0.01)
        if self.device == "cuda" and self.own.random() < 0.02:
            torch.cuda._sleep(int(self.own.random() * 2_000_000))

    def round(self, i: int) -> None:
        pick = self.random
        kind, dtype = pick.choice(OPS), pick.choice(DTYPES)
        largest = self.largest // 8 if pick.random() < 0.95 else self.largest
        size = max(1, int(2 ** pick.uniform(0, largest.bit_length() - 1)) // dtype.itemsize)
        index = pick.randrange(len(self.groups))
        group, members = self.groups[index]
        asynchronous, registered = pick.random() < 0.3, pick.random() < 0.3
        op = pick.choice(
            (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG)
        )
        root = pick.choice(members)
        self.delay()
        if self.rank not in members:
            return
        registered = registered and index == 0
        n, me = len(members), members.index(self.rank)
        base = torch.arange(size, device=self.device) % (i % 7 + 2) + 1
        own = lambda r, k=0: part(base, dtype, r + 2 * k)  # what rank r has, for rank k
        if op == dist.ReduceOp.AVG and dtype in (torch.bool, torch.int8):  # refused; sums that do not fit
            op = dist.ReduceOp.SUM
        run = getattr(self, kind)
        out, wanted, work = run(group, members, n, me, root, op, own, registered, asynchronous)
        if work is not None:
            work.wait()
        if out is None:
            return
        self.wrong += (bits(out) != bits(wanted)).any()
        if kind in SAME:
            self.digests[index].mul_(31).add_(digest(out))

    # Each returns what came, what should have come (None: nothing to check) and the work of an asynchronous call.
    def all_reduce(self, group, members, n, me, root, op, part, registered, asynchronous):
        mine = part(me)
        out = self.place(mine, registered)
        out.copy_(mine)
        work = dist.all_reduce(out, op=op, group=group, async_op=asynchronous)
        return out, reduced([part(r) for r in range(n)], op), work

    def reduce(self, group, members, n, me, root, op, part, registered, asynchronous):
        out = part(me)
        work = dist.reduce(out, dst=root, op=op, group=group, async_op=asynchronous)
        is_root = members[me] == root
        return (out if is_root else None), reduced([part(r) for r in range(n)], op) if is_root else None, work

    def all_gather(self, group, members, n, me, root, op, part, registered, asynchronous):
        wanted = torch.cat([part(r) for r in range(n)])
        out = self.place(wanted, registered)
        return out, wanted, dist.all_gather_into_tensor(out, part(me), group=group, async_op=asynchronous)

    def reduce_scatter(self, group, members, n, me, root, op, part, registered, asynchronous):
        sent = torch.cat([part(me, k) for k in range(n)])
        data = self.place(sent, registered)
        data.copy_(sent)
        out = torch.empty_like(part(me))
        work = dist.reduce_scatter_tensor(out, data, op=op, group=group, async_op=asynchronous)
        return out, reduced([part(r, me) for r in range(n)], op), work

    def broadcast(self, group, members, n, me, root, op, part, registered, asynchronous):
        mine = part(me)
        out = self.place(mine, registered)
        out.copy_(mine)
        return out, part(members.index(root)), dist.broadcast(out, src=root, group=group, async_op=asynchronous)

    def all_to_all(self, group, members, n, me, root, op, part, registered, asynchronous):
        wanted = torch.cat([part(r, me) for r in range(n)])
        out = self.place(wanted, registered)
        sent = torch.cat([part(me, k) for k in range(n)])
        return out, wanted, dist.all_to_all_single(out, sent, group=group, async_op=asynchronous)

    def uneven(self, group, members, n, me, root, op, part, registered, asynchronous):
        """All-to-all with other sizes for each pair, some of them nothing."""
        count = lambda r, k: len(part(r)) * ((r + 2 * k) % 3) // 2
        wanted = torch.cat([part(r, me)[: count(r, me)] for r in range(n)])
        out = torch.empty_like(wanted)
        sent = torch.cat([part(me, k)[: count(me, k)] for k in range(n)])
        to, from_ = [count(me, k) for k in range(n)], [count(r, me) for r in range(n)]
        return out, wanted, dist.all_to_all_single(out, sent, from_, to, group=group, async_op=asynchronous)

    def gather(self, group, members, n, me, root, op, part, registered, asynchronous):
        is_root = members[me] == root
        lists = [torch.empty_like(part(0)) for _ in range(n)] if is_root else None
        work = dist.gather(part(me), lists, dst=root, group=group, async_op=asynchronous)
        if work is not None:
            work.wait()
        return (torch.cat(lists), torch.cat([part(r) for r in range(n)]), None) if is_root else (None, None, None)

    def scatter(self, group, members, n, me, root, op, part, registered, asynchronous):
        out = torch.empty_like(part(me))
        at = members.index(root)
        parts = [part(at, k) for k in range(n)] if members[me] == root else None
        work = dist.scatter(out, parts, src=root, group=group, async_op=asynchronous)
        return out, part(at, me), work

    def send(self, group, members, n, me, root, op, part, registered, asynchronous):
        """Round a ring."""
        out = torch.empty_like(part(me))
        last = (me - 1) % n
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, part(me), members[(me + 1) % n], group),
                dist.P2POp(dist.irecv, out, members[last], group),
            ]
        )
        for work in works:
            work.wait()
        return out, part(last), None

    def sends(self, group, members, n, me, root, op, part, registered, asynchronous):
        """Between most pairs at once, of other sizes for each pair and both ways, issued in another order by every
        rank."""
        count = lambda r, k: len(part(r)) * ((2 * r + k + len(part(r))) % 4) // 3
        peers = [(me + step) % n for step in range(1, n)]
        lists = {k: torch.empty_like(part(k)[: count(k, me)]) for k in peers if count(k, me)}
        calls = [dist.P2POp(dist.isend, part(me, k)[: count(me, k)], members[k], group) for k in peers if count(me, k)]
        calls += [dist.P2POp(dist.irecv, data, members[k], group) for k, data in lists.items()]
        self.own.shuffle(calls)
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()
        empty = part(me)[:0]
        wanted = [part(k, me)[: count(k, me)] for k in lists]
        return torch.cat([empty, *lists.values()]), torch.cat([empty, *wanted]), None

    def barrier(self, group, members, n, me, root, op, part, registered, asynchronous):
        dist.barrier(group=group)
        return None, None, None

    def settle(self, i: int) -> None:
        if self.device == "cuda":
            import ark_torch.distributed as ark

            torch.cuda.synchronize()
            ark.check()
        assert self.wrong.item() == 0, f"{self.wrong.item()} wrong results before round {i}"


def stress(rank: int, world: int, device: str, rounds: int, largest: int) -> str:
    stress = Stress(rank, world, device, largest)
    begin = time.monotonic()
    for i in range(rounds):
        stress.round(i)
        if stress.graph is not None and i % 37 == 0:
            stress.replay(i % 100, world)
        if i % CHECK_EVERY == CHECK_EVERY - 1:
            stress.settle(i)
    stress.settle(rounds)
    for (group, members), digest in zip(stress.groups, stress.digests):
        if rank in members:
            digests = [torch.zeros_like(digest) for _ in members]
            dist.all_gather(digests, digest, group=group)
            assert all(d.item() == digests[0].item() for d in digests), "ranks got different bits"
    return f"{rounds} rounds in {time.monotonic() - begin:.1f} s"


def stress_on_host(rank: int, world: int, rounds: int = 300) -> str:
    """Shortened for CI; ARK_STRESS_ROUNDS=10000 for all of it."""
    return stress(rank, world, "cpu", int(os.environ.get("ARK_STRESS_ROUNDS", rounds)), 1 << 20)


def stress_on_gpus(rank: int, world: int) -> str:
    return stress(rank, world, "cuda", ROUNDS, 1 << 25)
