"""`ark::attention`: scaled dot-product attention as one op that AOTAutograd does not take apart, and the pass that
puts it in place.

attention(q [B, H, S, D], k [B, G, T, D], v [B, G, T, Dv], mask [B|1, H|1, S|1, T]?, scale, causal, order)
  -> out [B, H, S, Dv] (its dimensions in memory in that order, eager's; usually [B, S, H, Dv], so that the transpose
     and reshape after it are views),
     logsumexp [B, H, S] f32 (f64 for f64)
G divides H (grouped queries). The mask is bool (True: visible) or additive. A row without a visible key gives 0 and
logsumexp -inf.
"""

from __future__ import annotations

import math
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ark_torch._compat import guard_or_false
from ark_torch.attention_layout import ROWS_FIRST, empty_in_order, in_order, order_of, orders_of_gradients
from ark_torch.attention_layout import same_size as _same
from ark_torch.attention_transforms import attention, register_transforms, with_gradient_in_order

_library = torch.library.Library("ark", "DEF")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal, int[] order=[0, 2, 1, 3]) "
    "-> (Tensor, Tensor)"
)
_library.define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp, Tensor? mask, "
    "float scale, bool causal) -> (Tensor, Tensor, Tensor)"
)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _group(q: Tensor, k: Tensor) -> int:
    """Heads of q that share one of k."""
    return q.shape[1] // k.shape[1] if k.shape[1] else 1


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """[B, H, S, T], masked, in the wide type."""
    wide = _wide(q.dtype)
    scores = torch.matmul(q.to(wide) * scale, k.to(wide).repeat_interleave(_group(q, k), 1).transpose(-1, -2))
    if causal:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.to(wide)
    return scores


def _probabilities(scores: Tensor, logsumexp: Tensor) -> Tensor:
    finite = torch.where(logsumexp == -math.inf, 0.0, logsumexp)
    return torch.exp(scores - finite.unsqueeze(-1))


def attention_math(q, k, v, mask, scale, causal, order=ROWS_FIRST) -> tuple[Tensor, Tensor]:
    """Reference and fallback."""
    scores = _scores(q, k, mask, scale, causal)
    logsumexp = torch.logsumexp(scores, -1)
    wide_v = v.to(scores.dtype).repeat_interleave(_group(q, v), 1)
    out = torch.matmul(_probabilities(scores, logsumexp), wide_v)
    return in_order(out.to(q.dtype), order), logsumexp


def _attention_cpu(q, k, v, mask, scale, causal, order=ROWS_FIRST) -> tuple[Tensor, Tensor]:
    """ATen's flash attention where it takes the shapes, the mathematics otherwise."""
    plain = k.shape[1] == q.shape[1] and v.shape[-1] == q.shape[-1] and (mask is None or mask.dtype == q.dtype)
    if not plain or q.numel() == 0 or k.numel() == 0:
        return attention_math(q, k, v, mask, scale, causal, order)
    out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return in_order(out, order), logsumexp.to(_wide(q.dtype))


def _attention_cuda(q, k, v, mask, scale, causal, order=ROWS_FIRST) -> tuple[Tensor, Tensor]:
    """ATen's own choice of kernel for the output; the logsumexp beside it."""
    bias = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=k.shape[1] != q.shape[1]
    )
    return in_order(out, order), torch.logsumexp(_scores(q, k, mask, scale, causal), -1)


def attention_backward_math(dout, q, k, v, out, logsumexp, mask, scale, causal) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(q, k, mask, scale, causal)
    probs, wide = _probabilities(scores, logsumexp), scores.dtype
    group = _group(q, k)
    wide_k, wide_v = (x.to(wide).repeat_interleave(group, 1) for x in (k, v))
    dout = dout.to(wide)
    delta = (dout * out.to(wide)).sum(-1, keepdim=True)
    dscores = probs * (torch.matmul(dout, wide_v.transpose(-1, -2)) - delta) * scale

    def to_groups(x: Tensor) -> Tensor:
        return x.unflatten(1, (k.shape[1], group)).sum(2)

    dq = torch.matmul(dscores, wide_k)
    dk = to_groups(torch.matmul(dscores.transpose(-1, -2), q.to(wide)))
    dv = to_groups(torch.matmul(probs.transpose(-1, -2), dout))
    return tuple(in_order(x.to(q.dtype), ROWS_FIRST) for x in (dq, dk, dv))


_library.impl("attention", _attention_cpu, "CPU")
_library.impl("attention", _attention_cuda, "CUDA")
for _device in ("CPU", "CUDA"):
    _library.impl("attention_backward", attention_backward_math, _device)


@torch.library.register_fake("ark::attention", lib=_library)
def _attention_fake(q, k, v, mask, scale, causal, order=ROWS_FIRST):
    batch, heads, rows, _ = q.shape
    out = empty_in_order(q, (batch, heads, rows, v.shape[3]), order)
    return out, q.new_empty(batch, heads, rows, dtype=_wide(q.dtype))


@torch.library.register_fake("ark::attention_backward", lib=_library)
def _attention_backward_fake(dout, q, k, v, out, logsumexp, mask, scale, causal):
    return tuple(empty_in_order(x, x.shape, ROWS_FIRST) for x in (q, k, v))


register_transforms(_library)


# ---- the graph pass ----
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool) -> bool:
    """Whether the op covers the call; what it does not cover stays ATen's."""
    if dropout_p != 0 or q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or q.is_nested:
        return False
    if guard_or_false(q.shape[1] == 0) or not guard_or_false(q.shape[3] > 0):  # the scale is a number of the graph
        return False
    if q.dtype not in _FLOATS or k.dtype != q.dtype or v.dtype != q.dtype:
        return False
    if k.shape[0] != q.shape[0] or v.shape[0] != q.shape[0] or k.shape[1] != v.shape[1]:
        return False
    if mask is not None and (is_causal or mask.requires_grad or mask.dim() < 2 or mask.dim() > 4):
        return False
    return mask is None or mask.dtype == torch.bool or mask.dtype in _FLOATS


def _autocast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return x.to(dtype) if x is not None and x.dtype in _FLOATS[:3] else x


def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    order=ROWS_FIRST,
    gradient_orders=None,
):
    """torch's function of the same name, through `ark::attention` where that op covers the call. Traced by
    AOTAutograd. Three dimensions are those of one batch."""
    q, k, v, mask = query, key, value, attn_mask
    one_batch = q.dim() == k.dim() == v.dim() == 3 and not q.is_nested and (mask is None or mask.dim() < 4)
    if one_batch:
        q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v, mask = (_autocast(x, dtype) for x in (q, k, v, mask))
    grouped = k.dim() == 4 and q.dim() == 4 and k.shape[1] != q.shape[1]
    if not _takes(q, k, v, mask, dropout_p, is_causal) or (grouped and not enable_gqa):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())] if mask.dim() < 4 else mask
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    if gradient_orders is not None:
        q, k, v = (with_gradient_in_order(x, its) for x, its in zip((q, k, v), gradient_orders))
    out = attention(q, k, v, mask, scale, bool(is_causal), order)[0]
    return out.squeeze(0) if one_batch else out


_SDPA = {F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default}  # torch.export leaves ops
_SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def replace_attention(gm: fx.GraphModule) -> int:
    """Swaps scaled_dot_product_attention for `ark::attention` in a Dynamo graph, and feeds it the heads that
    repeat_kv repeats."""
    count = 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in _SDPA:
            continue
        kwargs = dict(zip(_SDPA_ARGUMENTS, node.args)) | dict(node.kwargs)
        _undo_repeat(node, kwargs)
        kwargs["order"] = order_of(node)
        kwargs["gradient_orders"] = orders_of_gradients(*[_val(kwargs[name]) for name in _SDPA_ARGUMENTS[:3]])
        node.target, node.args, node.kwargs = scaled_dot_product_attention, (), kwargs
        count += 1
    if count:  # AOTAutograd drops the unused repeats; fx's own clean-up would drop in-place methods with them
        gm.recompile()
    return count


def _undo_repeat(node: fx.Node, kwargs: dict) -> None:
    if kwargs.get("enable_gqa", False):
        return
    key, value = _repeated(kwargs["key"]), _repeated(kwargs["value"])
    if key is None or value is None:
        return
    if not _written_since([_first_copy(kwargs["key"]), _first_copy(kwargs["value"])], node):
        kwargs |= {"key": key, "value": value, "enable_gqa": True}


_BINARY = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift concat".split()
_WRITING = {operator.setitem, operator.delitem} | {getattr(operator, f"i{name}") for name in _BINARY}


def _may_write(node: fx.Node) -> bool:
    """In-place operators, methods and functions by their names, torch.ops by their schemas."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(getattr(target, name)._schema.is_mutable for name in target.overloads())
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or target in _WRITING or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _first_copy(repeated: fx.Node) -> fx.Node:
    """Where a repeat stops seeing what is written to its source."""
    while _is(repeated.args[0], "reshape", "view", "flatten", "contiguous", "clone"):
        repeated = repeated.args[0]
    return repeated


def _written_since(nodes: list[fx.Node], last: fx.Node) -> bool:
    """Whether anything may write memory after the first of the nodes and before `last`."""
    node, missing = last.prev, set(nodes)
    while missing and node.op != "root":
        missing.discard(node)
        if missing and node.op != "placeholder" and _may_write(node):
            return True
        node = node.prev
    return False


def _val(node) -> Tensor | None:
    val = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return val if isinstance(val, Tensor) else None


def _is(node, *names: str) -> bool:
    if not isinstance(node, fx.Node):
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.partition(".")[0] in names  # of an op: view.default


def _repeated(node) -> fx.Node | None:
    """x, when node is reshape(expand(x[:, :, None])) or repeat_interleave(x, n, 1)."""
    out = _val(node)
    if out is None or out.dim() != 4:
        return None
    if _is(node, "repeat_interleave"):
        source = node.args[0]
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
        times = node.args[1] if len(node.args) > 1 else node.kwargs.get("repeats")
        return source if dim in (1, -3) and isinstance(times, int) else None
    if not _is(node, "reshape", "view", "contiguous", "flatten"):
        return None
    if _is(node, "contiguous"):
        return _repeated(node.args[0])
    expand = node.args[0]
    while _is(expand, "contiguous", "clone"):
        expand = expand.args[0]
    if not _is(expand, "expand"):
        return None
    unsqueezed = expand.args[0]
    if _is(unsqueezed, "unsqueeze"):
        source = unsqueezed.args[0]
    elif _is_plain_getitem(unsqueezed):
        source = unsqueezed.args[0]
    else:
        return None
    return source if _is_repeat(_val(source), _val(unsqueezed), _val(expand), out) else None


def _is_plain_getitem(node) -> bool:
    if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], tuple):
        return False
    return all(item is None or item is Ellipsis or item == slice(None) for item in node.args[1])


def _is_repeat(source, unsqueezed, expanded, out) -> bool:
    """The shapes of [B, G, T, D] -> [B, G, 1, T, D] -> [B, G, n, T, D] -> [B, G n, T, D]."""
    if any(x is None for x in (source, unsqueezed, expanded)) or (source.dim(), unsqueezed.dim(), expanded.dim()) != (
        4,
        5,
        5,
    ):
        return False
    batch, groups, rows, dim = source.shape
    want = (batch, groups, 1, rows, dim)
    same_source = all(_same(a, b) for a, b in zip(unsqueezed.shape, want))
    times = expanded.shape[2]
    same_expand = all(_same(a, b) for a, b in zip(expanded.shape, (batch, groups, times, rows, dim)))
    same_out = all(_same(a, b) for a, b in zip(out.shape, (batch, groups * times, rows, dim)))
    return same_source and same_expand and same_out
