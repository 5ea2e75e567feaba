"""Whole transformers models with random weights: as close to fp64 as eager is, in one graph, with the fallbacks that
are known."""

from __future__ import annotations

import copy

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.records import recording
from tests.conftest import EXECUTORS

transformers = pytest.importorskip("transformers")


def relative_error(actual, exact) -> float:
    actual, exact = (torch.cat([t.detach().double().flatten() for t in ts]) for ts in (actual, exact))
    return float((actual - exact).norm() / exact.norm())


def assert_as_good_as_eager(mine, eager, exact, slack=1.5, floor=1e-6) -> None:
    """Error against fp64, measured against eager's own in the same dtype."""
    error, limit = relative_error(mine, exact), slack * relative_error(eager, exact) + floor
    assert error <= limit, f"relative error {error:.3e}, eager's {limit / slack:.3e}"


def llama(dtype, **changes):
    sizes = dict(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        head_dim=16,
        max_position_embeddings=256,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes | changes)
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def decode(model, call, tokens, prompt=6, length=64):
    """Logits of a prefill and of one step per remaining token."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    logits = [call(tokens[:, :prompt], past_key_values=cache).logits]
    for i in range(prompt, tokens.shape[1]):
        logits.append(call(tokens[:, i : i + 1], past_key_values=cache).logits)
    return [x.clone() for x in logits]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3])
def test_llama_decode(executor, dtype, batch):
    model = llama(dtype)
    tokens = torch.randint(0, 128, (batch, 11))
    with torch.no_grad(), recording() as records:
        eager, exact = (
            decode(model, model, tokens),
            decode(copy.deepcopy(model).double(), copy.deepcopy(model).double(), tokens),
        )
        mine = decode(model, torch.compile(model, backend=ark, dynamic=False), tokens)
    assert_as_good_as_eager(mine, eager, exact)
    assert all(not r.fallbacks and not r.internal_errors for r in records)


def test_llama_cache_is_written_in_place(executor):
    """The decode graph writes its appended rows through copy_to of the whole cache, which the planner turns into a
    store in place."""
    model = llama(torch.float32)
    tokens = torch.randint(0, 128, (1, 8))
    with torch.no_grad(), recording() as records:
        decode(model, torch.compile(model, backend=ark, dynamic=False), tokens)
    graph = records[-1].segments[0].lowered.graph
    writes = [n for n in graph["nodes"] if n["op"] == "copy_to"]
    made_by = {n["outputs"][0]: n for n in graph["nodes"]}
    caches = [w for w in writes if len(graph["values"][w["inputs"][0]]["sizes"]) == 4]
    assert len(caches) == 4
    for write in caches:
        store = made_by[write["inputs"][1]]
        assert store["op"] == "index_store" and store["inputs"][0] == write["inputs"][0]
    attention = [n for n in graph["nodes"] if n["op"] == "attention"]
    assert [graph["values"][n["inputs"][1]]["sizes"][1] for n in attention] == [2, 2]  # kv heads, not repeated


def test_llama_generate(executor):
    model = llama(torch.float32)
    prompt = torch.randint(1, 128, (2, 5))
    options = dict(max_new_tokens=6, do_sample=False, cache_implementation="static", disable_compile=True)
    wanted = model.generate(prompt, **options)
    model.forward = torch.compile(model.forward, backend=ark, dynamic=False)
    assert torch.equal(model.generate(prompt, **options), wanted)


def test_llama_prefill_with_a_cache_that_grows(executor):
    """transformers' default: the first call concatenates with keys and values that are empty. One segment."""
    model = llama(torch.float32)
    tokens = torch.randint(0, 128, (2, 12))
    compiled = torch.compile(model, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad(), recording() as records:
        wanted, actual = model(tokens[:, :11]), compiled(tokens[:, :11])
        (record,) = records
        assert len(record.segments) == 1 and record.num_aten == 0
        pairs = [(wanted, actual)]
        pairs.append(
            [f(tokens[:, 11:], past_key_values=o.past_key_values) for f, o in zip((model, compiled), pairs[0])]
        )
    for want, have in pairs:
        torch.testing.assert_close(have.logits, want.logits, rtol=1e-4, atol=1e-4, check_stride=True)
        for one, other in zip(have.past_key_values.layers, want.past_key_values.layers, strict=True):
            torch.testing.assert_close(one.keys, other.keys, rtol=1e-4, atol=1e-4, check_stride=True)
            torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-4, check_stride=True)


def test_llama_left_padding(executor):
    model = llama(torch.float32)
    tokens = torch.randint(1, 128, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    with torch.no_grad():
        wanted = model(tokens, attention_mask=mask).logits
        actual = torch.compile(model, backend=ark)(tokens, attention_mask=mask).logits
    torch.testing.assert_close(actual[mask.bool()], wanted[mask.bool()], rtol=1e-4, atol=1e-4)


def train(model, call, batch, autocast):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = call(**batch).loss
    loss.backward()
    return [loss.detach()] + [p.grad.clone() for p in model.parameters() if p.grad is not None]


def small_bert(dropout=0.0):
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=120)
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return transformers.BertForPreTraining(config).train()


def bert_batch(masked: bool):
    ids = torch.randint(0, 120, (3, 20))
    batch = {"input_ids": ids, "labels": ids, "next_sentence_label": torch.tensor([0, 1, 0])}
    if masked:
        batch["attention_mask"] = (torch.arange(20) < torch.tensor([[20], [13], [7]])).long()
    return batch


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_bert_training(executor, autocast, masked):
    model, batch = small_bert(), bert_batch(masked)
    eager = train(model, model, batch, autocast)
    exact_model = copy.deepcopy(model).double()
    exact = train(exact_model, exact_model, batch, False)
    with recording() as records:
        mine = train(model, torch.compile(model, backend=ark), batch, autocast)
    assert_as_good_as_eager(mine, eager, exact)
    assert not {cause for r in records for cause in r.fallbacks}
    assert not any(r.internal_errors for r in records)


def test_bert_training_with_dropout(executor):
    """No oracle for the numbers: the loss falls, and the seed reproduces it."""
    model = small_bert(0.1)
    compiled = torch.compile(model, backend=ark)
    batch = bert_batch(True)
    torch.manual_seed(3)
    first = train(model, compiled, batch, False)
    torch.manual_seed(3)
    torch.testing.assert_close(train(model, compiled, batch, False), first, rtol=0, atol=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(8):
        losses.append(float(train(model, compiled, batch, False)[0]))
        optimizer.step()
    assert losses[-1] < losses[0]


def test_gpt2_training(executor):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=48, n_layer=2, n_head=3, vocab_size=100, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(0, 100, (2, 17))
    batch = {"input_ids": ids, "labels": ids}
    eager = train(model, model, batch, False)
    exact_model = copy.deepcopy(model).double()
    exact = train(exact_model, exact_model, batch, False)
    mine = train(model, torch.compile(model, backend=ark), batch, False)
    assert_as_good_as_eager(mine, eager, exact)


def test_vit_inference(executor):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8
    )
    model = transformers.ViTForImageClassification(config).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad(), recording() as records:
        mine, eager = torch.compile(model, backend=ark)(x).logits, model(x).logits
        exact = copy.deepcopy(model).double()(x.double()).logits
    assert_as_good_as_eager([mine], [eager], [exact])
    assert all(not r.fallbacks for r in records)


@pytest.mark.parametrize("name", ["Qwen2", "Mistral", "Gemma2", "OPT", "GPTNeoX"])
def test_decoder_families(executor, name):
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100, pad_token_id=0)
    sizes |= {"ffn_dim": 96, "word_embed_proj_dim": 64} if name == "OPT" else {"intermediate_size": 96}
    if name in ("Qwen2", "Mistral", "Gemma2"):
        sizes |= {"num_key_value_heads": 2, "head_dim": 16}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    tokens = torch.randint(1, 100, (2, 12))
    with torch.no_grad(), recording() as records:
        mine, eager = (call(tokens, use_cache=False).logits for call in (torch.compile(model, backend=ark), model))
        exact = copy.deepcopy(model).double()(tokens, use_cache=False).logits
    assert_as_good_as_eager([mine], [eager], [exact], slack=2)
    assert not any(r.internal_errors for r in records)
    assert sum(sum(r.fallbacks.values()) for r in records) <= 4, [r.fallbacks for r in records]


def t5():
    sizes = dict(d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, dropout_rate=0.0))
    ids = torch.randint(1, 100, (2, 11))
    return model, {"input_ids": ids, "labels": ids[:, :7].contiguous()}


def bart():
    layers = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes = dict(d_model=48, encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=100, max_position_embeddings=64)
    no_dropout = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**layers, **sizes, **no_dropout))
    ids = torch.randint(3, 100, (2, 11))
    return model, {"input_ids": ids, "labels": ids[:, :7].contiguous()}


def decoder(name: str, **changes):
    sizes = dict(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        pad_token_id=0,
    )
    config = getattr(transformers, f"{name}Config")(**sizes | changes)
    ids = torch.randint(1, 100, (2, 12))
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": ids, "labels": ids}


def mixtral():
    return decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2)


def mamba():
    config = transformers.MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=2, vocab_size=100)
    ids = torch.randint(1, 100, (2, 12))
    return transformers.MambaForCausalLM(config), {"input_ids": ids, "labels": ids}


def recurrent_gemma():
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=100)
    config = transformers.RecurrentGemmaConfig(**sizes, lru_width=32, attention_window_size=8)
    ids = torch.randint(1, 100, (2, 12))
    return transformers.RecurrentGemmaForCausalLM(config), {"input_ids": ids, "labels": ids}


def vit():
    sizes = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3)
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = transformers.ViTConfig(**sizes, **no_dropout, image_size=32, patch_size=8, num_labels=5)
    batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 4])}
    return transformers.ViTForImageClassification(config), batch


class Bottleneck(torch.nn.Module):
    """The residual block of ResNet-50."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int):
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class ResNet(torch.nn.Module):
    """ResNet in small; returns an object with `loss` and `logits` as the classes of transformers do."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.Sequential(Bottleneck(8, 8, 16, 1), Bottleneck(16, 8, 32, 2))
        self.head = nn.Linear(32, 5)

    def forward(self, pixel_values, labels):
        features = torch.nn.functional.adaptive_avg_pool2d(self.stages(self.stem(pixel_values)), 1).flatten(1)
        logits = self.head(features)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return transformers.modeling_outputs.ImageClassifierOutput(loss=loss, logits=logits)


def resnet():
    return ResNet(), {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([1, 4, 0, 2])}


# Model and the ops that are known to run through ATen, forward and backward.
CONVOLUTIONS = {"convolution", "convolution_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward"}
ZOO = {
    "T5": (t5, set()),
    "BART": (bart, set()),
    "Qwen2": (lambda: decoder("Qwen2"), set()),
    "Mistral": (lambda: decoder("Mistral", head_dim=16), set()),
    "Llama": (lambda: decoder("Llama", head_dim=16), set()),
    "Mixtral": (mixtral, {"topk", "sort", "histc", "grouped_mm_fallback", "scatter of several"}),
    "Mamba": (mamba, CONVOLUTIONS),
    "RecurrentGemma": (recurrent_gemma, CONVOLUTIONS),
    "ViT": (vit, CONVOLUTIONS),
    "ResNet": (resnet, CONVOLUTIONS),
}


def to_double(batch: dict) -> dict:
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


@pytest.mark.parametrize("each_executor", EXECUTORS[1:], indirect=True)
@pytest.mark.parametrize("name", ZOO)
def test_training_step(each_executor, name):
    """Loss and gradients; buffers that the step writes (running statistics) are eager's."""
    make, known = ZOO[name]
    torch.manual_seed(0)
    model, batch = make()
    model.train()
    theirs, exact_model = copy.deepcopy(model), copy.deepcopy(model).double()
    if name == "Mixtral":
        exact_model.set_experts_implementation("eager")  # ATen's grouped products know no fp64
    eager = train(theirs, theirs, batch, False)
    exact = train(exact_model, exact_model, to_double(batch), False)
    with recording() as records:
        mine = train(model, torch.compile(model, backend=ark), batch, False)
    assert_as_good_as_eager(mine, eager, exact, slack=2)
    for mine_buffer, their_buffer in zip(model.buffers(), theirs.buffers()):
        torch.testing.assert_close(mine_buffer, their_buffer)
    causes = {cause for r in records for cause in r.fallbacks}
    assert not any(r.internal_errors for r in records)
    assert all(any(part in cause for part in known) for cause in causes), causes


@pytest.mark.parametrize("each_executor", EXECUTORS[1:], indirect=True)
@pytest.mark.parametrize("name", ["GPT2", "T5"])
def test_generate(each_executor, name):
    torch.manual_seed(0)
    if name == "GPT2":
        config = transformers.GPT2Config(
            n_embd=48, n_layer=2, n_head=3, vocab_size=100, n_positions=64, eos_token_id=99
        )
        model = transformers.GPT2LMHeadModel(config).eval()
    else:
        model = t5()[0].eval()
    prompt = torch.randint(1, 99, (2, 5))
    options = dict(max_new_tokens=5, do_sample=False, pad_token_id=0)
    wanted = model.generate(prompt, **options)
    model.forward = torch.compile(model.forward, backend=ark)
    assert torch.equal(model.generate(prompt, **options), wanted)
