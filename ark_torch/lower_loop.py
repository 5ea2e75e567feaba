"""One iteration of a loop as an ir::Graph: the body, the condition on its results, the stores of what is carried.

A carried value is an input that the graph writes; so is a tensor from outside that the body writes. The stop flag is
an input behind them: two bools, the first is for iteration 0, the second is stored by each for the next. Where nothing
is carried, the number of the iteration is, in an input behind the flag. A seed of random numbers is carried too: each
iteration stores the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from ark_torch._compat import WHILE_LOOPS, size_expr
from ark_torch.errors import Unsupported
from ark_torch.graph_json import Value
from ark_torch.lowering import SEED, Lowering
from ark_torch.partition import attribute

_WRITE = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class LoopGraph:
    """A lowered iteration. Called with the arguments at `places` (of the body's), the extras inserted at their places,
    the stop flag, the count if it has one (`has_count`), then one int per symbol."""

    graph: dict
    places: list[int]
    stored: list[int]  # those of the body's arguments that every iteration stores
    symbols: list[str]
    sources: dict[str, tuple[int, int | None]]  # symbol -> an argument that is it, or has it as the size of a dimension
    extras: list[tuple[int, object]]  # (place, SEED or the expression of a size that is data), ascending
    hints: dict[str, int]
    has_count: bool
    nodes: list[fx.Node] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)  # the body's, at `places`


def placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _inner(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _result(gm: fx.GraphModule):
    return next(n for n in gm.graph.nodes if n.op == "output").args[0]


def _copied(node: fx.Node) -> fx.Node:
    """What the node is a copy of: the loop copies what it stores."""
    while node.target is torch.ops.aten.clone.default and node.args[0].meta["val"].dtype == node.meta["val"].dtype:
        node = node.args[0]
    return node


class _Iteration:
    def __init__(self, name: str, cond: fx.GraphModule, body: fx.GraphModule, written: set[int], device: torch.device):
        self.ctx = Lowering(name, device)
        self.cond, self.body, self.written = cond, body, written
        self.arguments = placeholders(body)
        self.places: list[int] = []

    def lower(self) -> LoopGraph:
        ctx = self.ctx
        stores = self._stores()
        results = dict(self._new_values(stores))
        more = self._condition(results)
        self._check()
        seed = ctx.extras.get(SEED)
        ctx.graph.node_name = "next_iteration"
        go = ctx.graph.add_input(torch.bool, (2,), (1,), "go")
        ctx.graph.store(ctx.view(go, (1,), (1,), 1), ctx.view(more, (1,), (1,)))
        for place, value in results.items():
            ctx.graph.store(self._argument(place), value)
        whole = [self._argument(place) for place, value in results.items() if not self._is_partial(value)]
        if seed is not None:
            whole.append(self._plus_one(ctx.view(seed, (1,), (1,))))
        has_count = not whole
        if has_count:
            whole.append(self._plus_one(ctx.graph.add_input(torch.int64, (1,), (1,), "i")))
        at = ctx.graph.inputs.index
        ctx.graph.loop = {"carried": [at(value.owner) for value in whole], "go": at(go.id)}
        symbols = list(ctx.graph.sizes.symbols)
        extras = sorted(((at(value.id), key) for key, value in ctx.extras.items()), key=lambda item: item[0])
        inputs = [self.arguments[p] for p in self.places]
        nodes = [n for n in [*_inner(self.body), *_inner(self.cond)] if n in ctx.env]
        of_data = {s.name for _, key in extras if key != SEED for s in key.free_symbols}
        sources, hints = self._symbols([*symbols, *sorted(of_data - {*symbols})])
        return LoopGraph(
            ctx.graph.finish(),
            self.places,
            list(results),
            symbols,
            sources,
            extras,
            hints,
            has_count,
            nodes,
            inputs,
        )

    def _argument(self, place: int) -> Value:
        """An argument of the body becomes an input where somebody reads or stores it."""
        node = self.arguments[place]
        if node not in self.ctx.env:
            self.ctx.add_input(node)
            self.places.append(place)
        return self.ctx.env[node]

    def _lower(self, nodes: list[fx.Node], known: dict[fx.Node, int]) -> None:
        """`known`: placeholders that have no value yet -> their places."""
        for node in nodes:
            if node.op == "get_attr" and isinstance(attribute(node), fx.GraphModule):
                continue  # of a higher-order op, which has no rule
            for source in node.all_input_nodes:
                if source in known and source not in self.ctx.env and isinstance(source.meta.get("val"), torch.Tensor):
                    self.ctx.env[source] = self._argument(known[source])
            self._lower_one(node)

    def _lower_one(self, node: fx.Node) -> None:
        if node.target in WHILE_LOOPS:
            raise Unsupported("a loop in a loop", node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise Unsupported("a loop that writes its arguments", node)
        try:
            self.ctx.lower(node)
        except Unsupported as error:
            raise Unsupported(str(error), node) from None

    def _stores(self) -> dict[int, fx.Node]:
        """Place of an argument -> the node whose value it has after the iteration."""
        places = {node: place for place, node in enumerate(self.arguments)}
        nodes, result = _inner(self.body), _result(self.body)
        writes = [n for n in nodes if n.target is _WRITE and n.args[0] in places]
        self._lower([n for n in nodes if n not in writes], places)
        stores: dict[int, fx.Node] = dict(enumerate(result))
        for node in writes:
            if places[node.args[0]] not in self.written or node.users:
                raise Unsupported("a loop that writes its arguments", node)
            stores[places[node.args[0]]] = node.args[1]
        return stores

    def _new_values(self, stores: dict[int, fx.Node]):
        """(place, value) of what an iteration changes, in the layout of the argument."""
        for place, node in stores.items():
            val = self.arguments[place].meta.get("val")
            if not isinstance(node, fx.Node) or not isinstance(val, torch.Tensor):
                raise Unsupported("a loop that carries a number")
            if any(stride == 0 and size != 1 for size, stride in zip(val.shape, val.stride())):
                raise Unsupported("a loop that carries an expanded tensor")
            node = _copied(node)
            if node in self.arguments:
                self._argument(self.arguments.index(node))
            value, old = self.ctx.env[node], self._argument(place)
            if (value.owner, value.offset, value.shape, value.strides) != (old.id, 0, old.shape, old.strides):
                yield place, self.ctx.finish_as(value, val)

    def _is_partial(self, value: Value) -> bool:
        """Whether it may be made in place, by a store of some rows only."""
        makers = {out: node for node in self.ctx.graph.nodes for out in node["outputs"]}
        seen, todo = set(), [value.id]
        while todo:
            node = makers.get(todo.pop())
            if node is None or id(node) in seen:
                continue
            if node["op"] == "index_store":
                return True
            seen.add(id(node))
            todo += node["inputs"]
        return False

    def _condition(self, results: dict[int, Value]) -> Value:
        own = placeholders(self.cond)
        for place, node in enumerate(own):
            if place in results:
                self.ctx.env[node] = results[place]
        self._lower(_inner(self.cond), {node: place for place, node in enumerate(own)})
        more = _result(self.cond)
        more = more[0] if isinstance(more, (list, tuple)) else more
        if isinstance(more, fx.Node) and more in own:
            self.ctx.env.setdefault(more, self._argument(own.index(more)))
        value = self.ctx.env.get(more) if isinstance(more, fx.Node) else None
        if not isinstance(value, Value) or value.dtype != torch.bool or any(size != 1 for size in value.shape):
            raise Unsupported("a loop whose condition is no bool tensor of one element")
        return value

    def _plus_one(self, value: Value) -> Value:
        """Every iteration stores the next number, int64 [1]."""
        ctx = self.ctx
        ctx.graph.store(value, ctx.pointwise("add", [value, ctx.full(1, torch.int64, (1,))], torch.int64))
        return value

    def _check(self) -> None:
        if self.ctx.graph.sizes.derived:
            raise Unsupported("a loop that computes with a size")
        if len(self.ctx.graph.inputs) != len(self.places) + len(self.ctx.extras):
            raise Unsupported("a loop that reads what is none of its arguments")
        if any(node["op"] == "exchange" for node in self.ctx.graph.nodes):
            raise Unsupported("a collective in a loop")

    def _symbols(self, wanted: list[str]) -> tuple[dict, dict]:
        sources, hints = {}, {}
        for place, node in enumerate(self.arguments):
            val = node.meta.get("val")
            sizes = enumerate(val.shape) if isinstance(val, torch.Tensor) else [(None, val)]
            for dim, size in sizes:
                expr = size_expr(size) if isinstance(size, torch.SymInt) else None
                if getattr(expr, "is_Symbol", False) and expr.name in wanted:
                    sources.setdefault(expr.name, (place, dim))
                    if isinstance(hint := getattr(size.node, "hint", None), int):
                        hints[expr.name] = hint
        for symbol in wanted:
            if symbol not in sources:
                raise Unsupported(f"size {symbol} follows from no argument of the loop")
        return sources, hints


def lower_loop(
    name: str, cond: fx.GraphModule, body: fx.GraphModule, written: set[int], device: torch.device
) -> LoopGraph:
    """`written`: places of the arguments from outside that the body writes. Raises Unsupported, with the node to blame
    as its second argument where there is one."""
    return _Iteration(name, cond, body, written, device).lower()


__all__ = ["LoopGraph", "lower_loop", "placeholders"]
