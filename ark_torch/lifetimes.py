"""When each value of a callable is read for the last time."""

from __future__ import annotations

from torch import fx

from ark_torch.partition import Step, is_constant
from ark_torch.segment import NativeSegment
from ark_torch.symbols import SymbolTable


def last_uses(
    made: set[fx.Node], steps: list[Step], segments: dict[int, NativeSegment], result, symbols: SymbolTable
) -> dict:
    """Place of a step (of an ATen step: and of its node) -> values that no later step reads and nobody returns."""
    place_of: dict[fx.Node, object] = {}
    for node in made:
        place_of[node] = None

    def use(node, place):
        place_of[node] = place

    for i, step in enumerate(steps):
        if step.native:
            for node in [*segments[i].lowered.inputs, *segments[i].lowered.outputs]:
                use(node, i)
            continue
        for j, node in enumerate(step.nodes):
            for source in node.all_input_nodes:
                if not is_constant(source) and not symbols.knows(source):
                    use(source, (i, j))
            use(node, (i, j))
    returned = set()
    fx.map_arg(result, returned.add)
    found: dict = {}
    for node, place in place_of.items():
        if place is not None and node not in returned:
            found.setdefault(place, []).append(node)
    return found
