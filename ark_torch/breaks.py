"""Graph breaks: what Dynamo leaves to Python, where it runs eagerly and ark never sees it, with reasons and places."""

from __future__ import annotations

import re
import time
from collections import Counter

from ark_torch._compat import graph_break_reasons, resumed_at, skipped_frames
from ark_torch.errors import StrictRefusal

# Dynamo's words for breaks that leave no op of the model to eager, or that the user asked for.
ASKED_FOR = (
    "`torch.compiler.disable()`",
    "`torch._dynamo.graph_break()`",
    "Unsupported Tensor.backward() call",
    "`Optimizer.zero_grad`",
)
BRANCH = "a branch on the value of a tensor: `torch.where` or `torch.cond` has none"


def now() -> int:
    """The clock of `breaks_since`, in us."""
    return time.time_ns() // 1000


def breaks_since(begin_us: int) -> Counter:
    """One line per break, with its place -> how often, since Dynamo was reset and `begin_us`: breaks between graphs,
    and functions that Dynamo gave up, which run eagerly as a whole. Whose backend it was Dynamo does not say."""
    found = [(r.reason, _place_of(r.user_stack)) for r in graph_break_reasons]
    given_up = [(reason, _place(file, line)) for reason, file, line in skipped_frames(begin_us)]
    known = set(found)  # of some functions that it gives up Dynamo notes the break too
    found += [skipped for skipped in given_up if skipped not in known]
    return Counter(describe(reason) + place for reason, place in found)


def describe(reason: str) -> str:
    """Dynamo's reason in a line: what it met, the explanation, the first hint."""
    if reason.startswith("generic_jump"):
        return BRANCH
    what = reason.strip().partition("\n")[0].rstrip(":. ")
    parts = [what]
    for word in ("Explanation", "Hint"):
        match = re.search(rf"^\s*{word}: (.+)$", reason, re.M)
        if match:
            parts.append(match[1].strip().rstrip("."))
    return ": ".join(parts[:2]) + (f". {parts[2]}" if len(parts) > 2 else "")


def check_break(gm) -> None:
    """Under strict: raises where this graph ends at a break, or begins after one (before it may be no graph)."""
    ends = getattr(gm, "compile_subgraph_reason", None)
    resumed = resumed_at()
    found = [ends] if ends is not None and ends.graph_break else []
    found += [r for r in graph_break_reasons if any((f.filename, f.lineno) == resumed for f in r.user_stack)]
    for reason in found:
        met = reason.reason.partition("Hint:")[0]
        if not any(words in met for words in ASKED_FOR):
            line = describe(reason.reason) + _place_of(reason.user_stack)
            raise StrictRefusal(f"a graph break, what is there runs eagerly: {line}")


def _place_of(stack: list) -> str:
    return _place(stack[-1].filename, stack[-1].lineno) if stack else ""


def _place(file: str | None, line: int | None) -> str:
    """Empty where Dynamo names a file of its own."""
    return "" if not file or "torch/_dynamo/" in file.replace("\\", "/") else f" (at {file}:{line})"
