"""What became of a model: graphs, tasks, fallbacks with their causes, bytes, flops, floor and predicted time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from ark_torch import exchanges
from ark_torch.errors import StrictRefusal
from ark_torch.records import REGISTRY, GraphRecord, recording, told

NOTHING = "nothing was captured: no graph reached ark, everything ran eagerly"

TIMES = ("floor ms", "predicted ms")  # of a GPU
COLUMNS = ("graph", "nodes", "plans", "plan ops", "ATen steps", "MB", "GFLOP", *TIMES, "compile s")


@dataclass
class Explanation:
    """The sum over the graphs of a model. Prints as a table."""

    graphs: list[GraphRecord] = field(default_factory=list)
    tasks: Counter = field(default_factory=Counter)  # task kind -> number of ops in the plans, each of many tiles
    fallbacks: Counter = field(default_factory=Counter)  # op or cause -> number of ATen steps
    internal_errors: list[str] = field(default_factory=list)
    breaks: Counter = field(default_factory=Counter)  # reason and place of a graph break -> number
    exchanges: list[exchanges.Exchange] = field(default_factory=list)  # between ranks, as the plans have them
    box_bytes: int = 0  # of these
    bytes: int = 0
    flops: int = 0
    floor_ms: float = 0.0  # these two are of the GPU that plans are made for, whatever runs them; printed for CUDA only
    predicted_ms: float = 0.0

    @property
    def num_native(self) -> int:
        return sum(len(s.nodes) for g in self.graphs for s in g.segments)

    def __str__(self) -> str:
        lines = self._graph_lines() if self.graphs else [NOTHING]
        if self.breaks:
            lines.append("graph breaks, the code there runs eagerly:")
            lines += [f"  {n:4d}  {reason}" for reason, n in self.breaks.most_common()]
        lines += [f"internal error: {text}" for text in self.internal_errors]
        return "\n".join(lines)

    def _place(self, cause: str) -> str:
        """The user's line that a cause was first met at, where the cause does not have it."""
        place = next((graph.places[cause] for graph in self.graphs if cause in graph.places), "")
        return "" if place in cause else place

    def _graph_lines(self) -> list[str]:
        timed = any(_on_gpu(stats) for graph in self.graphs for stats in _stats(graph))
        columns = COLUMNS if timed else tuple(name for name in COLUMNS if name not in TIMES)
        rows = [_row(graph) for graph in self.graphs]
        lines = _table([columns, *(tuple(row[name] for name in columns) for row in rows)])
        lines.append("tasks: " + (", ".join(f"{kind} {n}" for kind, n in self.tasks.most_common()) or "none"))
        lines += exchanges.lines(self.exchanges, self.box_bytes)
        lines += self._loop_lines()
        if self.fallbacks:
            lines.append("through ATen:")
            lines += [f"  {n:4d}  {told(cause)}{self._place(cause)}" for cause, n in self.fallbacks.most_common()]
        else:
            lines.append("through ATen: nothing" + (" of these graphs" if self.breaks else ""))
        return lines

    def _loop_lines(self) -> list[str]:
        rows = [row for graph in self.graphs for row in graph.loops]
        lines = [f"  {row.name}: {f'a call per iteration: {row.cause}' if row.cause else 'one launch'}" for row in rows]
        return ["loops:", *lines] if lines else []

    __repr__ = __str__


def _stats(record: GraphRecord) -> list[dict]:
    return [segment.executable.stats() for segment in record.segments]


def _on_gpu(stats: dict) -> bool:
    return stats.get("target") == "cuda"


def _row(record: GraphRecord) -> dict[str, str]:
    """A cell per name of COLUMNS; the times of a graph that no GPU runs are left out."""
    stats = _stats(record)
    on_gpu = any(map(_on_gpu, stats))

    def total(key: str) -> float:
        return sum(s.get(key, 0) for s in stats)

    return {
        "graph": record.name,
        "nodes": str(record.num_nodes),
        "plans": str(len(stats)),
        "plan ops": str(total("num_ops")),
        "ATen steps": str(record.num_aten),
        "MB": f"{total('bytes') / 1e6:.2f}",
        "GFLOP": f"{total('flops') / 1e9:.2f}",
        "floor ms": f"{total('floor_ms'):.4f}" if on_gpu else "",
        "predicted ms": f"{total('predicted_ms'):.4f}" if on_gpu else "",
        "compile s": f"{record.seconds:.2f}",
    }


def _table(rows: list[tuple]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    ]


def summarize(records: list[GraphRecord]) -> Explanation:
    result = Explanation(list(records))
    for record in records:
        result.fallbacks.update(record.fallbacks)
        result.fallbacks.update(record.runtime_fallbacks)
        result.internal_errors += record.internal_errors
        for stats in _stats(record):
            result.tasks.update(stats.get("tasks", {}))
            result.exchanges += exchanges.exchanges_of(stats)
            result.box_bytes += stats.get("box_bytes", 0)
            result.bytes += stats.get("bytes", 0)
            result.flops += stats.get("flops", 0)
            result.floor_ms += stats.get("floor_ms", 0.0)
            result.predicted_ms += stats.get("predicted_ms", 0.0)
    return result


def explain(model, *inputs, ark_options: dict | None = None, **kwargs) -> Explanation:
    """Compiles `model` for the arguments, runs it once (and the backward pass, where the result requires gradients)
    and says what became of it, what Dynamo did not capture included. Under the option `strict` it raises where nothing
    was captured. A model that `torch.compile` has made with ark keeps its options; `ark_options` come before these.

    Gradients are computed with respect to the inputs and parameters without being accumulated in `.grad`. Dynamo is
    reset before, so that the model is traced anew: what was compiled earlier is compiled again at its next call.
    """
    from ark_torch._compat import options_compiled_with
    from ark_torch.backend import ark  # brings Dynamo with it, as breaks does
    from ark_torch.breaks import breaks_since, now

    torch._dynamo.reset()
    options = {**options_compiled_with(model, ark), **(ark_options or {})}
    begin = now()
    with recording() as records:
        result = torch.compile(model, backend=ark, options=options)(*inputs, **kwargs)
        _run_backward(result, model, inputs, kwargs)
    found = summarize(records)
    found.breaks = breaks_since(begin)
    if not found.graphs and options.get("strict"):
        raise StrictRefusal(str(found))
    return found


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _run_backward(result, model, inputs, kwargs) -> None:
    outputs = [t for t in _tensors(result) if t.requires_grad]
    leaves = [t for t in _tensors([list(inputs), kwargs]) if t.requires_grad and t.is_leaf]
    if isinstance(model, torch.nn.Module):
        leaves += [p for p in model.parameters() if p.requires_grad]
    if outputs and leaves:
        torch.autograd.grad(sum(t.float().sum() for t in outputs), leaves, allow_unused=True)


def report() -> Explanation:
    """The same over every graph compiled in this process since the last `torch.compiler.reset()`; includes what graphs
    that are gone let fall back at run time, and the graph breaks, of other backends too: Dynamo does not say whose."""
    from ark_torch.breaks import breaks_since

    graphs = REGISTRY.graphs
    result = summarize(graphs)
    alive = sum((record.runtime_fallbacks for record in graphs), Counter())
    result.fallbacks.update(REGISTRY.runtime_fallbacks - alive)
    result.breaks = breaks_since(REGISTRY.since_us)
    return result


def compile_times() -> dict[str, float]:
    """Seconds of compilation. Since the last reset: `ark` in all, and the extension's stages (parse, bind, plan,
    source, compile, load). Since the process began: `dynamo`, and `backend`, which is AOTAutograd and ark's part inside
    of it (backward graphs that are compiled at the first backward pass are not)."""
    from ark_torch._compat import calculate_time_spent

    times: Counter = Counter()
    for record in REGISTRY.graphs:
        times["ark"] += record.seconds
        for stats in _stats(record):
            times.update(stats.get("seconds", {}))
    spent = calculate_time_spent()
    times["backend"] = spent.get("backend_compile", 0.0)
    times["dynamo"] = spent.get("entire_frame_compile", 0.0) - times["backend"]
    return dict(times)
