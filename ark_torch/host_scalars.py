"""Numbers that Dynamo hands over as rank-0 CPU tensors in a graph of another device.

With `dynamic=True` every float of a model (the epsilon of a norm, the scale of attention) becomes such an argument.
What reads it on the device reads a copy there, and what the graph computes from such numbers alone is computed there
too, so that the graph stays in one piece.
"""

from __future__ import annotations

import torch
from torch import fx

from ark_torch.partition import is_constant

_MOST = 1024
_known: dict[tuple, torch.Tensor] = {}


def on_device(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The number on the device. Numbers of a model hardly ever change: each is copied once.

    A captured graph fills one of its own at every replay: it may outlive what is kept here.
    """
    value = number.item()
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.full((), value, dtype=number.dtype, device=device)
    key = (device, number.dtype, value.hex() if isinstance(value, float) else value)
    found = _known.get(key)
    if found is not None:
        return found
    made = torch.full((), value, dtype=number.dtype, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams find it filled
    if len(_known) >= _MOST:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # kernels of any stream may still read them
        _known.clear()
    _known[key] = made
    return made


def _is_host_scalar(node, device: torch.device) -> bool:
    val = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(val, torch.Tensor) and val.dim() == 0 and val.device.type == "cpu" and device.type != "cpu"


def _can_run_there(node: fx.Node, device: torch.device) -> bool:
    """A pure op on such numbers alone, that names no device."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    pure = not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags
    inputs = node.all_input_nodes
    return pure and "device" not in node.kwargs and bool(inputs) and all(_is_host_scalar(i, device) for i in inputs)


def _val_there(val: torch.Tensor, device: torch.device) -> torch.Tensor:
    with val.fake_mode:
        return torch.empty((), dtype=val.dtype, device=device)


def move_host_scalars(graph: fx.Graph, device: torch.device) -> None:
    """Nodes of the device read numbers of the device."""
    moved: dict[fx.Node, fx.Node] = {}

    def there(node: fx.Node) -> fx.Node:
        if is_constant(node) or not _is_host_scalar(node, device):
            return node
        if node not in moved:
            target, args, kwargs = on_device, (node, device), {}
            if _can_run_there(node, device):
                target, args, kwargs = node.target, fx.map_arg(node.args, there), fx.map_arg(node.kwargs, there)
            with graph.inserting_before(_after(node).next):
                moved[node] = graph.call_function(target, args, kwargs)
            moved[node].meta = {**node.meta, "val": _val_there(node.meta["val"], device)}
        return moved[node]

    for node in list(graph.nodes):
        val = node.meta.get("val")
        vals = val if isinstance(val, (tuple, list)) else (val,)
        here = any(isinstance(v, torch.Tensor) and v.device == device for v in vals)
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not here:
            continue
        if any(_is_host_scalar(i, device) and not is_constant(i) for i in node.all_input_nodes):
            node.args, node.kwargs = fx.map_arg(node.args, there), fx.map_arg(node.kwargs, there)
    for node in reversed(list(graph.nodes)):
        if node in moved and not node.users and node.op == "call_function":
            graph.erase_node(node)


def _after(node: fx.Node) -> fx.Node:
    """Where something that follows the node may stand: behind all placeholders."""
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node
