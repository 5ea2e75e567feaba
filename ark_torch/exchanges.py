"""The exchanges between ranks of a model's plans, as `explain` prints them: which op sends what, who reads it, what can
run meanwhile, and the memory of the boxes."""

from __future__ import annotations

from dataclasses import dataclass

MOST_LINES = 12  # of exchanges, printed


@dataclass(frozen=True)
class Exchange:
    """One exchange of a plan, seen from any of its ranks: all run the same."""

    graph: str
    ranks: int  # of the group
    group: str  # the name of the process group
    op: str  # the op that sends, named by the nodes that it computes
    bytes: int  # that a rank sends to each other one
    parts: bool  # each rank gets another part; else all get the same
    background: bool  # on a GPU it is copied beside what the workers compute, by none of them
    from_ranks: tuple[int, ...]  # whose values are read
    readers: tuple[str, ...]  # ops, in the order of the plan
    meanwhile: tuple[str, ...]  # ops between the one that sends and the first reader that do not depend on it
    box_bytes: int  # of its boxes, for even and for odd launches; several exchanges may have the same memory

    def __str__(self) -> str:
        what = "another part" if self.parts else "the same"
        sent = f"{self.graph}: '{self.op}' sends {self.bytes} bytes, {what} to each of {self.ranks} ranks"
        sent += ", in the background" if self.background else ""
        if not self.readers:
            return f"{sent}; nothing reads it"
        all_read = len(self.from_ranks) == self.ranks
        source = "" if all_read else f" from rank {', '.join(map(str, self.from_ranks))}"
        return f"{sent}; read{source} by {_names(self.readers)}; meanwhile {_names(self.meanwhile)}"


def _names(ops: tuple[str, ...], most: int = 3) -> str:
    if not ops:
        return "nothing"
    more = f" and {len(ops) - most} more" if len(ops) > most else ""
    return ", ".join(f"'{op}'" for op in ops[:most]) + more


def exchanges_of(stats: dict) -> list[Exchange]:
    """Of one executable, in the order in which they are sent."""
    return [
        Exchange(
            graph=stats["name"],
            **{key: tuple(value) if isinstance(value, list) else value for key, value in exchange.items()},
        )
        for exchange in stats.get("exchanges", ())
    ]


def lines(exchanges: list[Exchange], box_bytes: int) -> list[str]:
    """`box_bytes`: of the boxes of all plans, in which exchanges may take turns."""
    if not exchanges:
        return []
    sent = sum(e.bytes * (e.ranks - 1) for e in exchanges)
    overlapped = sum(bool(e.meanwhile) for e in exchanges)
    head = (
        f"exchanges between ranks: {len(exchanges)}, each rank sends {sent / 1e6:.3f} MB to others; "
        f"boxes of {box_bytes / 1e6:.3f} MB; {overlapped} with ops that run meanwhile"
    )
    more = len(exchanges) - MOST_LINES
    left_out = [f"  and {more} more (Explanation.exchanges)"] if more > 0 else []
    return [head, *(f"  {e}" for e in exchanges[:MOST_LINES]), *left_out]
