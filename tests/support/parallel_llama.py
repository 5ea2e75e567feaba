"""A small Llama of transformers, whole and shared among ranks by DTensor's styles: tensor parallel, and sequence
parallel, where norms and residuals have a part of the sequence on each rank."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.support.distributed_worker import own_device

VOCABULARY = 96
ATTENTION, MLP = "model.layers.*.self_attn", "model.layers.*.mlp"


def tensor_styles() -> dict:
    """Heads, inner columns and rows of the vocabulary are shared; sums after each pair of products."""
    columns = [f"{ATTENTION}.{name}_proj" for name in "qkv"] + [f"{MLP}.{name}_proj" for name in ("gate", "up")]
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        **{name: ColwiseParallel() for name in columns},
        f"{ATTENTION}.o_proj": RowwiseParallel(),
        f"{MLP}.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }


def sequence_styles() -> dict:
    """The same products; between them dimension 1 is shared: gathered before, summed and scattered after."""
    scattered = {"output_layouts": Shard(1), "use_local_output": False}
    norms = ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm")
    return {
        **tensor_styles(),
        **{name: SequenceParallel() for name in norms},
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **scattered),
        f"{ATTENTION}.o_proj": RowwiseParallel(**scattered),
        f"{MLP}.down_proj": RowwiseParallel(**scattered),
        ATTENTION: PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        MLP: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def build(layers: int, world: int) -> torch.nn.Module:
    """What is shared divides by the number of ranks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = 6 if world % 3 == 0 else 8
    sizes = {"hidden_size": 8 * heads, "intermediate_size": 16 * heads, "num_attention_heads": heads}
    sizes["num_key_value_heads"] = heads // 2
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=64, **sizes)
    return LlamaForCausalLM(config).to(own_device())


def build_both(styles: dict, world: int, layers: int = 2) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The whole model and the rank's part of an equal one."""
    whole, shared = build(layers, world), build(layers, world)
    parallelize_module(shared, init_device_mesh(own_device(), (world,)), styles)
    return whole, shared


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1)).to(own_device())


def arguments(ids: torch.Tensor) -> dict:
    """Positions are given: where the sequence is shared, Llama would count those of its part."""
    return {"position_ids": torch.arange(ids.shape[1], device=ids.device)[None], "use_cache": False}


def logits(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **arguments(ids)).logits


def continued(model, ids: torch.Tensor, known: int) -> torch.Tensor:
    """`ids` with all tokens from `known` on chosen greedily. One size for all steps: later tokens are not looked at."""
    ids = ids.clone()
    for place in range(known, ids.shape[1]):
        ids[:, place] = logits(model, ids)[:, place - 1].argmax(-1)
    return ids
