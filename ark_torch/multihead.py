"""Keeps attention whole inside torch.nn's multi-head layers, which reach the backend as one call each: Dynamo takes
`F.multi_head_attention_forward` and the encoder layer's inference path for single functions, and AOTAutograd would take
the attention inside them apart."""

from __future__ import annotations

import operator
import types

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ark_torch.attention import scaled_dot_product_attention

_FUSED_LAYER = torch._transformer_encoder_layer_fwd


def _with_globals(function: types.FunctionType, **changes) -> types.FunctionType:
    """A copy of the function that sees other globals; the original and its module stay as they are. Under its own name
    it sees itself: that is what a torch function mode (AOTAutograd has one) calls."""
    scope = dict(function.__globals__) | changes
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    scope[function.__name__] = copy
    return copy


multi_head_attention_forward = _with_globals(
    F.multi_head_attention_forward, scaled_dot_product_attention=scaled_dot_product_attention
)


def _visible(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """True where attention may look, as [B|1, H|1, S|1, T]. The layer's mask hides what is not 0: [S, T] (type 0),
    [B, T] (type 1) or [B, H, S, T] (type 2)."""
    if mask is None:
        return None
    visible = mask == 0 if mask.dtype != torch.bool else ~mask
    return {0: lambda m: m[None, None], 1: lambda m: m[:, None, None], 2: lambda m: m}[mask_type](visible)


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """nn.TransformerEncoderLayer in inference, on src [B, S, E]. A row that sees no key gives what the layer gives in
    training (attention 0) and not the NaN of ATen's fused form."""

    def attend(x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        heads = F.linear(x, qkv_weight, qkv_bias).view(batch, rows, 3, num_heads, embed_dim // num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        out = scaled_dot_product_attention(q, k, v, attn_mask=_visible(mask, mask_type))
        return F.linear(out.transpose(1, 2).reshape(batch, rows, embed_dim), proj_weight, proj_bias)

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


def _takes_layer(node: fx.Node) -> bool:
    src = node.args[0].meta.get("example_value") if node.args and isinstance(node.args[0], fx.Node) else None
    mask_type = node.args[19] if len(node.args) > 19 else node.kwargs.get("mask_type")
    plain = isinstance(src, Tensor) and not src.is_nested and src.dim() == 3
    return plain and mask_type in (None, 0, 1, 2)


def _drop_unused_weights(node: fx.Node) -> None:
    """Attention weights that nobody reads are not asked for: then attention need not be taken apart to have them. With
    masks it is left alone, as a row that sees nothing is NaN in the one form and 0 in the other."""
    if not node.kwargs.get("need_weights", True) or "need_weights" not in node.kwargs:
        return
    if node.kwargs.get("attn_mask") is not None or node.kwargs.get("key_padding_mask") is not None:
        return
    parts = [user for user in node.users if user.op == "call_function" and user.target is operator.getitem]
    if len(parts) == len(node.users) and all(part.args[1] == 0 or not part.users for part in parts):
        node.kwargs = dict(node.kwargs) | {"need_weights": False}


def replace_multihead(gm: fx.GraphModule) -> int:
    """Swaps torch.nn's multi-head functions in a Dynamo graph for forms that keep attention whole."""
    count = 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is F.multi_head_attention_forward:
            _drop_unused_weights(node)
            node.target = multi_head_attention_forward
        elif node.target is _FUSED_LAYER and _takes_layer(node):
            node.target = transformer_encoder_layer
        else:
            continue
        count += 1
    if count:
        gm.recompile()
    return count
