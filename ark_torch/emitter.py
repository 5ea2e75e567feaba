"""The callable of a graph, or of the ATen stand-in of a segment: from steps to Python source."""

from __future__ import annotations

import operator

import torch
from torch import fx

from ark_torch._compat import size_expr
from ark_torch.index_errors import as_eager
from ark_torch.lifetimes import last_uses
from ark_torch.lowering import SEED
from ark_torch.partition import Step, is_constant
from ark_torch.segment import NativeSegment
from ark_torch.size_source import to_python
from ark_torch.source import Source
from ark_torch.symbols import SymbolTable, is_unbacked_source


class Emitter:
    """Writes the callable as Python source: one line per step, `del` after the last use of each value."""

    def __init__(self, gm: fx.GraphModule, symbols: SymbolTable, device: torch.device):
        self.gm, self.symbols, self.device = gm, symbols, device
        self.source = Source()
        self.known_symbols: set[str] = set()
        self.made: set[fx.Node] = set()
        self.data: dict = {}  # size expression -> variable, a rank-0 tensor

    # ---- entry points ----
    def emit(self, name: str, placeholders, steps: list[Step], segments: dict[int, NativeSegment], result):
        self._open(placeholders)
        last = last_uses(self.made, steps, segments, result, self.symbols)
        for i, step in enumerate(steps):
            if step.native:
                self._emit_native(segments[i])
                self._drop(last.get(i, ()))
            else:
                for j, node in enumerate(step.nodes):
                    self._emit_aten(node)
                    self._drop(last.get((i, j), ()))
        returned = self._argument(list(result) if isinstance(result, (tuple, list)) else [result])
        self.source.add(f"return {returned}")
        return self.source.close(name)

    def emit_segment(self, name: str, lowered, nodes: list[fx.Node]):
        """The ATen stand-in of a native segment: inputs, symbols and sizes as data, last to first; same results."""
        keys = [key for _, key in reversed(lowered.extras) if key != SEED]
        self.data = {key: f"data_{i}" for i, key in enumerate(keys)}
        self._open(lowered.inputs, lowered.symbols, list(self.data.values()))
        for node in nodes:
            self._emit_aten(node)
        self.source.add(f"return {self._argument(list(lowered.outputs))}")
        return self.source.close(name)

    def _open(self, arguments, symbols=(), data=()) -> None:
        names = [*(n.name for n in arguments), *(f"s_{s}" for s in symbols), *data]
        if names:
            self.source.add(f"({', '.join(names)},) = args")
        self.source.add("args.clear()")
        self.made.update(arguments)
        self.known_symbols.update(symbols)
        for symbol, node in self.symbols.nodes.items():
            if node in self.made and symbol not in self.known_symbols:
                self._define_symbol(symbol)

    def _define_symbol(self, symbol: str) -> None:
        self.source.add(f"s_{symbol} = {self.symbols.sources[symbol]}")
        self.known_symbols.add(symbol)

    # ---- steps ----
    def _emit_native(self, segment: NativeSegment) -> None:
        lowered = segment.lowered
        items = [node.name for node in lowered.inputs]
        for place, key in lowered.extras:
            items.insert(place, self._extra(key))
        for symbol in lowered.symbols:
            derived = lowered.derived.get(symbol)
            items.append(f"s_{symbol}" if derived is None else to_python(derived, self.symbols.variables))
        call = f"{self.source.constant(segment, segment.name)}([{', '.join(items)}])"
        targets = ", ".join(node.name for node in lowered.outputs)
        self.source.add(f"({targets},) = {call}" if targets else call)
        self.made.update(lowered.outputs)

    def _extra(self, key) -> str:
        """A rank-0 tensor made for this call: the seed from ATen's generator, or a size as data."""
        where = f"dtype=torch.int64, device={self.source.constant(self.device)}"
        if key == SEED:
            return f"torch.empty((), {where}).random_()"
        return f"torch.full((), {to_python(key, self.symbols.variables)}, {where})"

    def _emit_aten(self, node: fx.Node) -> None:
        if node in self.made:
            return
        self.made.add(node)
        if node.op == "get_attr":
            value = self.source.constant(operator.attrgetter(node.target)(self.gm), node.name + "_value")
            self.source.add(f"{node.name} = {value}")
            return
        if node.target is operator.getitem:
            self.source.add(f"{node.name} = {self._argument(node.args[0])}[{self._argument(node.args[1])}]")
            return
        args = [self._argument(a) for a in node.args]
        args += [f"{key}={self._argument(value)}" for key, value in node.kwargs.items()]
        self.source.add(
            f"{node.name} = {self.source.constant(as_eager(node), _short_name(node.target))}({', '.join(args)})"
        )
        for symbol, source in self.symbols.nodes.items():
            if source is node:
                self._define_symbol(symbol)

    def _drop(self, nodes) -> None:
        if nodes:
            self.source.add(f"del {', '.join(n.name for n in nodes)}")

    # ---- arguments ----
    def _argument(self, arg) -> str:
        if isinstance(arg, fx.Node):
            return self._node(arg)
        if isinstance(arg, list):
            return f"[{', '.join(self._argument(a) for a in arg)}]"
        if isinstance(arg, tuple):
            return f"({', '.join(self._argument(a) for a in arg)}{',' if len(arg) == 1 else ''})"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{k!r}: {self._argument(v)}" for k, v in arg.items()) + "}"
        if arg is None or isinstance(arg, (bool, int, str)):
            return repr(arg)
        if isinstance(arg, slice):
            return f"slice({self._argument(arg.start)}, {self._argument(arg.stop)}, {self._argument(arg.step)})"
        return self.source.constant(arg)

    def _node(self, node: fx.Node) -> str:
        """The node's variable; constants and sizes are made at their first use."""
        if node not in self.made:
            if is_constant(node):
                self._emit_aten(node)
            elif self.symbols.knows(node) or self.symbols.carries(node) or self._reads_known(node):
                return self._size(node.meta["val"])
            else:
                raise RuntimeError(f"{node.name} is read before any step makes it")
        return node.name

    def _reads_known(self, node: fx.Node) -> bool:
        """Whether a stand-in got as a symbol what the node reads off a tensor outside."""
        expr = size_expr(node.meta["val"]) if isinstance(node.meta.get("val"), torch.SymInt) else None
        return is_unbacked_source(node) and getattr(expr, "name", None) in self.known_symbols

    def _size(self, val) -> str:
        """From the symbols; in a stand-in that lacks one, from the number that its segment gets as data."""
        expr = size_expr(val)
        known = isinstance(expr, int) or {s.name for s in expr.free_symbols} <= self.known_symbols
        return self.symbols.source_of(val) if known or expr not in self.data else f"int({self.data[expr]})"


def _short_name(target) -> str:
    name = getattr(target, "__name__", type(target).__name__)
    return "".join(c if c.isalnum() else "_" for c in name)
