"""Configurations of models_table.py's models, as their publishers have them but for what names say (layers), and what
overrides them where the table itself is tried."""

from __future__ import annotations

from models import LLAMA_1B, SMALL_BERT, SMALL_LLAMA

LLAMA_8B = LLAMA_1B | dict(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, head_dim=128, tie_word_embeddings=False
)
QWEN3 = dict(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
PHI3 = dict(
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=2,
    num_attention_heads=32,
    num_key_value_heads=32,
    vocab_size=32064,
    max_position_embeddings=4096,
    pad_token_id=0,
)
GEMMA2 = dict(
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    vocab_size=256000,
    sliding_window=4096,
    query_pre_attn_scalar=256,
)
GEMMA3 = dict(
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    vocab_size=262144,
    sliding_window=512,
    query_pre_attn_scalar=256,
)
MIXTRAL = dict(
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
    num_local_experts=8,
    num_experts_per_tok=2,
)
GPT2 = dict(
    n_embd=768,
    n_layer=12,
    n_head=12,
    vocab_size=50257,
    n_positions=1024,
    attn_pdrop=0.0,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
)
BERT = dict(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    vocab_size=30522,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
DISTILBERT = dict(dim=768, n_layers=6, n_heads=12, hidden_dim=3072, vocab_size=30522)
T5 = dict(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128)
VIT = dict(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, image_size=224, patch_size=16
)
RESNET = dict(
    embedding_size=64,
    hidden_sizes=[256, 512, 1024, 2048],
    depths=[3, 4, 6, 3],
    layer_type="bottleneck",
    num_labels=1000,
)
CONVNEXT = dict(hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3], num_labels=1000)
WHISPER = dict(
    d_model=384,
    encoder_layers=4,
    encoder_attention_heads=6,
    encoder_ffn_dim=1536,
    num_mel_bins=80,
    max_source_positions=1500,
)
MAMBA2 = dict(
    hidden_size=768,
    num_hidden_layers=6,
    num_heads=24,
    head_dim=64,
    state_size=128,
    n_groups=1,
    expand=2,
    vocab_size=50288,
    chunk_size=256,
)

FEW = dict(num_hidden_layers=2)
TINY = SMALL_LLAMA | FEW | dict(head_dim=64)
TINY_GPT2 = dict(n_embd=128, n_layer=2, n_head=4, vocab_size=512)
TINY_BERT = SMALL_BERT | FEW
TINY_PHI3 = SMALL_LLAMA
