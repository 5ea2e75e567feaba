"""The models that the benchmarks run: real classes of transformers, random weights."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForPreTraining, LlamaConfig, LlamaForCausalLM, StaticCache

LLAMA_1B = dict(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=128256,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    tie_word_embeddings=True,
)

SMALL_LLAMA = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, vocab_size=512)
SMALL_BERT = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, vocab_size=512)


def llama(device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **overrides) -> LlamaForCausalLM:
    """Llama-3.2-1B's configuration (or `overrides` of it), random weights, inference mode."""
    torch.manual_seed(seed)
    config = LlamaConfig(**(LLAMA_1B | overrides))
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype)
    return model.eval()


def static_cache(model: LlamaForCausalLM, positions: int, batch: int = 1) -> StaticCache:
    """A StaticCache of `positions`, allocated, filled with random keys and values."""
    cache = StaticCache(config=model.config, max_cache_len=positions)
    config, weight = model.config, model.get_input_embeddings().weight
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv = torch.zeros(batch, heads, 1, head_dim, dtype=weight.dtype, device=weight.device)
    for layer in cache.layers:
        layer.lazy_initialization(kv, kv)
        layer.keys.normal_()
        layer.values.normal_()
    return cache


def set_position(cache: StaticCache, position: int) -> None:
    for layer in cache.layers:
        if isinstance(layer.cumulative_length, torch.Tensor):
            layer.cumulative_length.fill_(position)
        for name in ("cumulative_length", "cumulative_length_int"):  # numbers, where layers have a sliding window
            if isinstance(getattr(layer, name, None), int):
                setattr(layer, name, position)


def bert_large(device: str, dropout: float = 0.0, seed: int = 0, **overrides) -> BertForPreTraining:
    """BERT-Large, fp32 weights, training mode."""
    torch.manual_seed(seed)
    shape = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    config = BertConfig(**(shape | overrides), hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    with torch.device(device):
        return BertForPreTraining(config).train()


def bert_batch(model: BertForPreTraining, batch: int, sequence: int, seed: int = 1) -> dict[str, torch.Tensor]:
    device = model.get_input_embeddings().weight.device
    generator = torch.Generator(device).manual_seed(seed)
    ids = torch.randint(model.config.vocab_size, (batch, sequence), device=device, generator=generator)
    labels = torch.randint(model.config.vocab_size, (batch, sequence), device=device, generator=generator)
    next_sentence = torch.randint(2, (batch,), device=device, generator=generator)
    return {"input_ids": ids, "labels": labels, "next_sentence_label": next_sentence}
