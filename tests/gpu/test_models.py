"""Whole models on the GPU: decode, prefill and training against eager, judged by fp64 and eager's own error."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("transformers")
from transformers import BertConfig, BertForPreTraining, LlamaConfig, LlamaForCausalLM, StaticCache

from tests.support.dropout_noise import check_gradients_scatter_as_in_eager

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    return ((value.double() - reference.double()).norm() / reference.double().norm()).item()


def small_llama(dtype: torch.dtype, head_dim: int = 64, heads: int = 8, kv_heads: int = 2, hidden: int = 512):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=1536,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=2048,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(dtype).eval()


@torch.no_grad()
def run_decode(model, call, prompt: torch.Tensor, steps: int, cache_len: int) -> list[torch.Tensor]:
    """Logits of a prefill and of `steps` decode steps fed with fixed tokens."""
    cache = StaticCache(config=model.config, max_cache_len=cache_len)
    logits = [call(prompt, past_key_values=cache).logits[:, -1].clone()]
    for step in range(steps):
        token = (prompt[:, :1] * 7 + step * 13) % model.config.vocab_size
        logits.append(call(token, past_key_values=cache).logits[:, -1].clone())
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode_follows_fp64(dtype, batch, head_dim):
    torch._dynamo.reset()
    model = small_llama(dtype, head_dim=head_dim)
    prompt = torch.randint(2048, (batch, 37), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    exact = run_decode(copy.deepcopy(model).double(), copy.deepcopy(model).double(), prompt, 5, 256)
    eager = run_decode(model, model, prompt, 5, 256)
    ark = run_decode(model, torch.compile(model, backend="ark"), prompt, 5, 256)
    for mine, theirs, truth in zip(ark, eager, exact):
        assert error(mine, truth) <= 1.5 * error(theirs, truth) + 1e-6


def test_generate_tokens_equal_eager_fp32():
    torch._dynamo.reset()
    model = small_llama(torch.float32)
    prompt = torch.arange(1, 20, device="cuda").unsqueeze(0)
    options = dict(do_sample=False, max_new_tokens=40, disable_compile=True, cache_implementation="static")
    expected = model.generate(prompt, **options)
    compiled = copy.copy(model)
    compiled.forward = torch.compile(model.forward, backend="ark")
    assert torch.equal(compiled.generate(prompt, **options), expected)


def bert(dropout: float, layers: int = 3, attention_dropout: float | None = None):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        intermediate_size=2048,
        vocab_size=3000,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout if attention_dropout is None else attention_dropout,
    )
    with torch.device("cuda"):
        return BertForPreTraining(config).train()


def bert_batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(rows * 1000 + length)
    make = lambda high, *shape: torch.randint(high, shape, device="cuda", generator=generator)
    labels = dict(labels=make(3000, rows, length), next_sentence_label=make(2, rows))
    return dict(input_ids=make(3000, rows, length), **labels)


def gradients(model, call, batch, autocast: bool = True) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        loss = call(**batch).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("shape", [(4, 128), (3, 129), (1, 17)])
def test_bert_training_gradients(shape):
    torch._dynamo.reset()
    model, batch = bert(0.0), bert_batch(*shape)
    double = copy.deepcopy(model).double()
    exact = gradients(double, double, batch, autocast=False)
    eager = gradients(model, model, batch)
    ark = gradients(model, torch.compile(model, backend="ark"), batch)
    assert len(ark) == len(eager) == len(exact)
    worst = max(error(a, x) / (error(e, x) + 1e-7) for a, e, x in zip(ark, eager, exact))
    total = lambda out: sum((o.double() - x.double()).square().sum().item() for o, x in zip(out, exact)) ** 0.5
    assert total(ark) <= 1.5 * total(eager), (total(ark), total(eager))
    assert worst <= 4, worst


@pytest.mark.parametrize("hidden, attention", [(1e-9, 0.0), (0.0, 1e-9), (1e-9, 1e-9)])
def test_dropout_of_next_to_nothing_is_none(hidden, attention):
    """All that dropout adds to the graphs (masks, attention as products of its own), and no element dropped."""
    torch._dynamo.reset()
    model, batch = bert(hidden, attention_dropout=attention), bert_batch(4, 128)
    ark = gradients(model, torch.compile(model, backend="ark"), batch)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    double = copy.deepcopy(model).double()
    exact = gradients(double, double, batch, autocast=False)
    eager = gradients(model, model, batch)
    worst = max(error(a, x) / (error(e, x) + 1e-7) for a, e, x in zip(ark, eager, exact))
    total = lambda out: sum((o.double() - x.double()).square().sum().item() for o, x in zip(out, exact)) ** 0.5
    assert total(ark) <= 1.5 * total(eager), (total(ark), total(eager))
    assert worst <= 4, worst


def test_two_forwards_then_two_backwards():
    torch._dynamo.reset()
    model = bert(0.0, layers=2)
    call = torch.compile(model, backend="ark")
    first, second = bert_batch(2, 64), bert_batch(2, 64)
    second["input_ids"] = second["input_ids"].flip(1).contiguous()
    separate = [gradients(model, call, batch) for batch in (first, second)]
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        losses = [call(**batch).loss for batch in (first, second)]
    for loss in losses:
        loss.backward()
    together = [p.grad for p in model.parameters() if p.grad is not None]
    for both, a, b in zip(together, separate[0][1:], separate[1][1:]):
        torch.testing.assert_close(both, a + b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [[1], [37, 129], [513, 1024]])
def test_rand_is_philox_over_the_linear_index(sizes):
    from ark_torch import _C
    from tests.support.graph_builder import GraphBuilder
    from tests.support.reference_eval import philox_uniform

    g = GraphBuilder("noise")
    inputs = [g.input(name, [], torch.int64) for name in ("seed", "stream")]
    graph = _C.CompiledGraph(g.returns(g.node("rand", inputs, g.value("noise", sizes))), "cuda", 0, {})
    for seed, stream in ((0, 0), (2**62 + 123, 5), (-7, 2**40)):
        (noise,) = graph([torch.tensor(seed, device="cuda"), torch.tensor(stream, device="cuda")])
        assert torch.equal(noise.flatten().cpu(), philox_uniform(seed, stream, noise.numel()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_has_one_mask_for_both_passes(dtype, p):
    torch._dynamo.reset()
    x = torch.full((1000, 333), 2.0, device="cuda", dtype=dtype, requires_grad=True)
    call = torch.compile(lambda x: torch.nn.functional.dropout(x, p), backend="ark")
    torch.manual_seed(4)
    out = call(x)
    kept = out != 0
    assert abs(kept.double().mean() - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 2 / (1 - p)), rtol=1e-2, atol=0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient != 0, kept)
    torch.testing.assert_close(gradient[kept], torch.full_like(out[kept], 1 / (1 - p)), rtol=1e-2, atol=0)
    torch.manual_seed(4)
    assert torch.equal(call(x), out) and not torch.equal(call(x), out)


def test_gradients_scatter_over_masks_as_in_eager():
    torch._dynamo.reset()
    check_gradients_scatter_as_in_eager("cuda", layers=2, hidden=1024, batch=10, sequence=384)


def test_bert_with_dropout_trains():
    """The seed reproduces the step, and the loss falls."""
    torch._dynamo.reset()
    model, batch = bert(0.1, layers=2), bert_batch(4, 128)
    call = torch.compile(model, backend="ark")
    torch.manual_seed(2)
    first = gradients(model, call, batch)
    torch.manual_seed(2)
    for mine, again in zip(first, gradients(model, call, batch)):
        torch.testing.assert_close(mine, again, rtol=2e-2, atol=1e-4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    losses = []
    for _ in range(10):
        losses.append(gradients(model, call, batch)[0].item())
        optimizer.step()
    assert losses[-1] < losses[0] and all(torch.isfinite(p).all() for p in model.parameters())


def test_multihead_layers_keep_attention_whole():
    from ark_torch.records import recording

    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True).to("cuda", torch.bfloat16)
    x = torch.randn(3, 129, 256, device="cuda", dtype=torch.bfloat16)
    exact = copy.deepcopy(layer).double()(x.double())
    for train in (True, False):
        layer.train(train)
        with torch.set_grad_enabled(train), recording() as records:
            mine, eager = torch.compile(layer, backend="ark")(x), layer(x)
        assert error(mine, exact) <= 1.5 * error(eager, exact)
        ops = [str(n.target) for r in records for s in r.segments for n in s.nodes]
        assert "ark.attention.default" in ops and not any(r.fallbacks for r in records)
