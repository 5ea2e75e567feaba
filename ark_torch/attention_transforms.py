"""`ark::attention` under autograd and under torch.func: gradients, and vmap by a longer batch.

torch.func.grad refuses what torch.library.register_autograd makes (it has no setup_context): the graph pass therefore
calls a torch.autograd.Function around the op."""

from __future__ import annotations

import torch
from torch import Tensor

from ark_torch.attention_layout import DENSE, ROWS_FIRST, dense_in_order


def _attention(*args) -> tuple[Tensor, Tensor]:
    return torch.ops.ark.attention(*args)


def _attention_backward(*args) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.ark.attention_backward(*args)


# ---- layouts of gradients ----
class _GradientInOrder(torch.autograd.Function):
    """The tensor itself; its gradient lies in memory in an order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.order = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return dense_in_order(gradient, ctx.order), None


def _is_transformed() -> bool:
    """Whether a transformation of torch.func that needs the op's rules is active. Functionalization, which AOTAutograd
    runs the bodies of loops under, has no rule for a torch.autograd.Function and needs none: the op writes nothing."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(one.key() != torch._C._functorch.TransformType.Functionalize for one in stack)


def _is_differentiated(*tensors: Tensor) -> bool:
    return _is_transformed() or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def with_gradient_in_order(x: Tensor, order) -> Tensor:
    return _GradientInOrder.apply(x, order) if _is_differentiated(x) else x


# ---- vmap ----
def _leading(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _batched(x: Tensor, dim: int | None, size: int) -> Tensor:
    """[B, ...] and vmap's dimension as [size B, ...]."""
    return _leading(x, dim, size).flatten(0, 1)


def _batched_mask(x: Tensor | None, dim: int | None, size: int, batch) -> Tensor | None:
    """The same of a mask; one that is the same for all stays as it is."""
    if x is None or (dim is None and x.shape[0] == 1):
        return x
    x = _leading(x, dim, size)
    return x.expand(-1, batch, *x.shape[2:]).flatten(0, 1)


def _unbatched(x: Tensor, size: int) -> Tensor:
    return x.unflatten(0, (size, x.shape[0] // size))


def _batched_operand(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Where eager has no batching rule (on the CPU) it stacks what it has of each sample, gradients too."""
    batched = _batched(x, dim, size)
    return with_gradient_in_order(batched, DENSE) if dim is not None and x.device.type == "cpu" else batched


def _attention_vmap(info, in_dims, q, k, v, mask, scale, causal, order=ROWS_FIRST):
    size = info.batch_size
    q, k, v = (_batched_operand(x, dim, size) for x, dim in zip((q, k, v), in_dims))
    mask = _batched_mask(mask, in_dims[3], size, q.shape[0] // size)
    results = attention(q, k, v, mask, scale, causal, order)
    return tuple(_unbatched(x, size) for x in results), (0, 0)


def _attention_backward_vmap(info, in_dims, dout, q, k, v, out, logsumexp, mask, scale, causal):
    size, tensors = info.batch_size, (dout, q, k, v, out, logsumexp)
    tensors = [_batched(x, dim, size) for x, dim in zip(tensors, in_dims)]
    mask = _batched_mask(mask, in_dims[6], size, tensors[0].shape[0] // size)
    results = _attention_backward(*tensors, mask, scale, causal)  # eager stacks those of each sample
    return tuple(_unbatched(dense_in_order(x, DENSE), size) for x in results), (0, 0, 0)


# ---- autograd ----
def _setup_context(ctx, inputs, output):
    q, k, v, mask, ctx.scale, ctx.causal, _ = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, _):
    if dout is None:
        return (None,) * 7
    q, k, v, mask, out, logsumexp = ctx.saved_tensors
    gradients = _attention_backward(dout, q, k, v, out, logsumexp, mask, ctx.scale, ctx.causal)
    return *gradients, None, None, None, None


class _Attention(torch.autograd.Function):
    forward = staticmethod(_attention)
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)
    vmap = staticmethod(_attention_vmap)


def attention(q, k, v, mask, scale, causal, order=ROWS_FIRST) -> tuple[Tensor, Tensor]:
    """The op, differentiable under torch.func too."""
    function = _Attention.apply if _is_differentiated(q, k, v) else _attention
    return function(q, k, v, mask, scale, causal, order)


def register_transforms(library: torch.library.Library) -> None:
    torch.library.register_autograd("ark::attention", _backward, setup_context=_setup_context, lib=library)
    torch.library.register_vmap("ark::attention_backward", _attention_backward_vmap, lib=library)
