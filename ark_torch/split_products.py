"""Products of few rows whose columns are split: query, key and value of one weight.

Each part becomes a product with a slice of the weight. Products that share their activation are one op, and what
follows a part, such as the write of keys into a cache, is done along with it (docs/ARCHITECTURE.md, few-row products).
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from ark_torch.recompute import shows_argument

aten = torch.ops.aten

_MOST_ROWS = 16  # of a few-row product (csrc/device/abi/abi.h)
_MOST_PARTS = 3  # of an op
_MOST_K = 8192  # beyond, some of them are no few-row products
_VECTOR = 8  # elements of 16 bytes


def split_products(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target in (aten.split.Tensor, aten.split_with_sizes.default):
            _split(graph, node)


def _split(graph: fx.Graph, split: fx.Node) -> None:
    product = _product_of(split)
    if product is None:
        return
    parts = [user for user in split.users if user.target is operator.getitem]
    if len(parts) != len(split.users) or any(_escapes(part) for part in parts):
        return
    widths = [val.shape[-1] for val in split.meta["val"]]
    if len(widths) > _MOST_PARTS or any(width % _VECTOR for width in widths):
        return
    for part in parts:
        begin = sum(widths[: part.args[1]])
        _replace(graph, split, product, part, begin, begin + widths[part.args[1]])
    while not split.users and split is not product:
        source = split.args[0]
        graph.erase_node(split)
        split = source
    if not product.users:
        graph.erase_node(product)


def _product_of(split: fx.Node) -> fx.Node | None:
    """The product of few rows whose columns it splits, and which nobody else reads."""
    source, sizes = split.args[0], split.args[0].meta["val"].shape
    dim = split.args[2] if len(split.args) > 2 else 0
    if dim % len(sizes) != len(sizes) - 1:
        return None
    while source.target is aten.view.default and len(source.users) == 1:
        source = source.args[0]
    if source.target not in (aten.mm.default, aten.addmm.default) or len(source.users) != 1 or source.kwargs:
        return None
    val, (x, w) = source.meta["val"], (n.meta["val"] for n in source.args[-2:])
    numbers = (*x.shape, *w.shape, *w.stride(), *sizes)
    if not all(isinstance(n, int) for n in numbers) or val.dtype not in (torch.bfloat16, torch.float16):
        return None
    (m, k), n, (along_k, along_n) = x.shape, sizes[-1], w.stride()
    if val.shape[-1] != n or m > _MOST_ROWS or k > _MOST_K or k % _VECTOR:
        return None
    line = along_k if along_n == 1 else along_n if along_k == 1 else 1
    return None if line % _VECTOR else source


def _escapes(node: fx.Node) -> bool:
    """A view of it leaves the graph, is written, or says by itself how it lies."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if user.op == "output" or user.target is aten.as_strided.default or (schema and schema.is_mutable):
            return True
        if shows_argument(user) and _escapes(user):
            return True
    return False


def _replace(graph: fx.Graph, split: fx.Node, product: fx.Node, part: fx.Node, begin: int, end: int) -> None:
    def make(target, args, like: fx.Node) -> fx.Node:
        with graph.inserting_before(split):
            node = graph.call_function(target, args)
        node.meta = {**like.meta, "val": _value(node)}
        return node

    *bias, x, w = product.args
    w = make(aten.slice.Tensor, (w, 1, begin, end), product)
    if bias:
        shape = bias[0].meta["val"].shape
        whole = not shape or shape[-1] == 1
        bias = bias if whole else [make(aten.slice.Tensor, (bias[0], len(shape) - 1, begin, end), product)]
    own = make(product.target, (*bias, x, w), product)
    own = make(aten.view.default, (own, list(part.meta["val"].shape)), part)
    part.replace_all_uses_with(own)
    graph.erase_node(part)
    _refresh_views(own)


def _value(node: fx.Node) -> Tensor | list[Tensor]:
    args = fx.map_arg(node.args, lambda n: n.meta["val"])
    with node.args[0].meta["val"].fake_mode:
        return node.target(*args, **node.kwargs)


def _refresh_views(node: fx.Node) -> None:
    """Rows of a part lie side by side, those of the product's lay further apart. Several views that one op makes as
    well."""
    for user in node.users:
        if user.target is operator.getitem:
            user.meta["val"] = node.meta["val"][user.args[1]]
        elif shows_argument(user):
            user.meta["val"] = _value(user)
        else:
            continue
        _refresh_views(user)
