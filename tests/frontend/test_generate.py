"""transformers' `generate` with a model that ark runs: the same tokens as eager's, whatever searches for them."""

from __future__ import annotations

import pytest
import torch

from ark_torch.records import recording
from tests.conftest import has_extension

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

SEARCHES = {
    "greedy": {},
    "sampling": dict(do_sample=True, temperature=0.8, top_k=20, top_p=0.9),
    "beams": dict(num_beams=3),
    "sampled beams": dict(num_beams=3, do_sample=True),
    "lookup": dict(prompt_lookup_num_tokens=2),
    "assisted": {},  # by a smaller model
}
CONFIGS = [{}, dict(fullgraph=True), dict(dynamic=True, fullgraph=True), dict(mode=None, options={"strict": True})]


def llama(layers: int = 1):
    torch.manual_seed(layers)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=256,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def prompt(rows: int) -> torch.Tensor:
    return torch.randint(3, 128, (rows, 7), generator=torch.Generator().manual_seed(0))


def tokens(model, ids, **options) -> torch.Tensor:
    """With as many new tokens in every run, drawn from the same numbers."""
    torch.manual_seed(3)
    return model.generate(ids, max_new_tokens=10, eos_token_id=None, **options)


def compile_forward(model) -> None:
    model.forward = torch.compile(model.forward, backend="ark", mode="reduce-overhead")


def check_native(records) -> None:
    assert records and all(not (r.fallbacks or r.runtime_fallbacks or r.internal_errors) for r in records)


@pytest.mark.parametrize("prefill", [None, 4], ids=["prefill eager", "prefill in chunks"])
@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_automatic_compilation(changes, prefill):
    """With a static cache `generate` compiles by itself, with CompileConfig's own mode if none is asked for."""
    config = transformers.CompileConfig(backend="ark", **changes)
    config._compile_all_devices = True  # it leaves models on the CPU alone without
    options = dict(cache_implementation="static", prefill_chunk_size=prefill)
    model, ids = llama(layers=2), prompt(2)
    wanted = tokens(model, ids, disable_compile=True, **options)
    with recording() as records:
        assert torch.equal(tokens(model, ids, compile_config=config, **options), wanted)
    check_native(records)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_compiled_forward(search, cache):
    """What `generate` does not compile by itself: beams, assistants, caches that grow."""
    alone = search in ("lookup", "assisted")
    if alone and cache == "static":
        pytest.skip("transformers refuses it")
    options = dict(SEARCHES[search], **({"cache_implementation": "static"} if cache == "static" else {}))
    model, helper, ids = llama(layers=1 + (search in ("greedy", "assisted"))), llama(), prompt(1 if alone else 3)
    if search == "assisted":
        options["assistant_model"] = helper
    wanted = tokens(model, ids, **options)
    compile_forward(model)
    compile_forward(helper)
    with recording() as records:
        assert torch.equal(tokens(model, ids, **options), wanted)
    check_native(records)


def batched(model, prompts: list[list[int]], **options) -> list[list[int]]:
    """New tokens of each prompt, by continuous batching over a paged cache."""
    settings = transformers.GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    paged = transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64, page_size=16, **options)
    found = model.generate_batch(
        inputs=prompts, generation_config=settings, continuous_batching_config=paged, progress_bar=False
    )
    return [found[name].generated_tokens for name in sorted(found, key=lambda name: found[name].prompt_ids)]


@pytest.mark.skipif(not hasattr(transformers, "ContinuousBatchingConfig"), reason="not in this transformers")
@pytest.mark.parametrize("changes", [{}, dict(mode="max-autotune-no-cudagraphs", dynamic=False)], ids=str)
def test_continuous_batching(changes):
    """Its batches are compiled between the writes to the paged cache, which transformers keeps out."""
    model = llama()
    prompts = [torch.randint(3, 128, (n,)).tolist() for n in (5, 9, 7)]
    wanted = batched(model, prompts)
    assert len(wanted) == 3 and all(len(new) == 8 for new in wanted)
    with recording() as records:
        config = transformers.CompileConfig(backend="ark", **changes)
        assert batched(model, prompts, varlen_compile_config=config) == wanted
    check_native(records)
