"""ark_torch.generate: transformers' greedy tokens, all but the first in one launch, compiled once; errors name what it
does not do."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch

from ark_torch.errors import Unsupported
from ark_torch.records import recording
from tests.conftest import has_extension

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
if has_extension():
    import ark_torch

VOCABULARY, PAD = 128, 0
SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=VOCABULARY,
    max_position_embeddings=128,
    pad_token_id=PAD,
    bos_token_id=1,
    eos_token_id=None,
    initializer_range=0.3,  # so that tokens differ from step to step
)
GPT2_SIZES = dict(n_embd=64, n_layer=2, n_head=4, n_positions=128, vocab_size=VOCABULARY, initializer_range=0.3)
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "one layer": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1})),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=32)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**GPT2_SIZES, pad_token_id=PAD, eos_token_id=None, bos_token_id=None)
    ),
}
DEEP = [name for name in MODELS if name != "one layer"]


@functools.cache
def make(name: str = "one layer"):
    """By default what compiles quickly, where a test is not of the model."""
    torch.manual_seed(1)
    return MODELS[name]().eval()


def prompts(rows: int, length: int = 7, padded: bool = False) -> dict:
    """Row r begins with r padding tokens where they are padded."""
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    if padded:
        for row in range(rows):
            mask[row, :row] = 0
    return dict(input_ids=ids.where(mask.bool(), torch.tensor(PAD)), attention_mask=mask)


def plainly(model, inputs: dict, **options) -> torch.Tensor:
    return model.generate(**inputs, **options)


def natively(model, inputs: dict, **options) -> torch.Tensor:
    return ark_torch.generate(model, **inputs, strict=True, **options)


@pytest.mark.parametrize("rows, padded", [(1, False), (3, False), (3, True)], ids=["one", "three", "padded"])
@pytest.mark.parametrize("name", DEEP)
def test_tokens_are_those_of_transformers(name, rows, padded):
    model, inputs = make(name), prompts(rows, padded=padded)
    wanted = plainly(model, inputs, max_new_tokens=12)
    assert len(set(wanted[0, 7:].tolist())) > 4  # a model that says something
    with recording() as records:
        assert torch.equal(natively(model, inputs, max_new_tokens=12), wanted)
    assert sum(len(record.loops) for record in records) == 1
    assert not any(row.cause for record in records for row in record.loops)


def end_tokens(new: torch.Tensor) -> list[int]:
    """One per row, which the row has first at another step than the rows before."""
    return [new[row, 2 + 3 * row].item() for row in range(new.size(0))]


@pytest.mark.parametrize("name, count", [("llama", 1), *((name, 3) for name in DEEP)])
def test_rows_end_at_their_end_tokens(name, count):
    """With all end tokens every row ends before the limit, and so does the launch."""
    model, inputs = make(name), prompts(3, padded=True)
    eos = end_tokens(plainly(model, inputs, max_new_tokens=20)[:, 7:])[:count]
    options = dict(max_new_tokens=20, eos_token_id=eos, pad_token_id=PAD)
    wanted = plainly(model, inputs, **options)
    assert (wanted[:, 7:] == PAD).any() and (count == 1 or wanted.size(1) < 27)
    assert torch.equal(natively(model, inputs, **options), wanted)


@pytest.mark.parametrize("rows", [1, 2])
def test_one_new_token_and_rows_that_end_at_once(rows):
    model, inputs = make(), prompts(rows)
    wanted = plainly(model, inputs, max_new_tokens=1)
    assert torch.equal(natively(model, inputs, max_new_tokens=1), wanted)
    assert torch.equal(natively(model, inputs, max_length=8), wanted)
    options = dict(max_new_tokens=9, eos_token_id=wanted[:, -1].tolist())
    assert torch.equal(natively(model, inputs, **options), wanted)


def test_both_forms_are_one():
    model, inputs = make(), prompts(2)
    options = dict(max_new_tokens=6, cache_implementation="static")
    wanted = plainly(model, inputs, **options)
    assert torch.equal(model.generate(**inputs, custom_generate=ark_torch.generate, strict=True, **options), wanted)
    assert torch.equal(ark_torch.generate(model, inputs["input_ids"], max_new_tokens=6), wanted)


def test_another_call_compiles_nothing():
    """With fewer new tokens, other padding, other weights, a cache of its own."""
    torch.manual_seed(2)
    model, inputs = MODELS["one layer"]().eval(), prompts(3, padded=True)
    natively(model, inputs, max_new_tokens=12)
    changed = dict(inputs, attention_mask=inputs["attention_mask"].flip(0))
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn_like(model.lm_head.weight))
    with recording() as records:
        for new, given in ((12, inputs), (12, changed), (5, changed), (2, inputs)):
            wanted = plainly(model, given, max_new_tokens=new)
            assert torch.equal(natively(model, given, max_new_tokens=new), wanted)
    assert not records


def test_another_prompt_length_compiles_the_prefill_alone():
    model = make()
    run = lambda length: natively(model, prompts(2, length), max_new_tokens=4, max_cache_len=64)
    run(7)
    with recording() as records:
        for length in (9, 12, 20, 5):
            assert torch.equal(run(length), plainly(model, prompts(2, length), max_new_tokens=4))
    assert len(records) == 1 and not records[0].loops


def test_a_reset_and_sizes_that_change():
    model = make()
    for rows in (1, 4):
        for length in (4, 11):
            inputs = prompts(rows, length, padded=rows == 4)
            assert torch.equal(natively(model, inputs, max_new_tokens=6), plainly(model, inputs, max_new_tokens=6))
        torch.compiler.reset()


def test_the_model_is_not_kept():
    model = MODELS["one layer"]().eval()
    natively(model, prompts(1), max_new_tokens=3)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_cache_of_the_users():
    model, inputs = make(), prompts(2)
    cache = transformers.StaticCache(config=model.config, max_cache_len=40)
    wanted = plainly(model, inputs, max_new_tokens=5)
    for _ in range(2):
        assert torch.equal(natively(model, inputs, max_new_tokens=5, past_key_values=cache), wanted)
        assert int(cache.get_seq_length()) == 7 + 4  # the last token is not in it
        with pytest.raises(Unsupported, match=r"no cache that holds tokens already \(11 of them\)"):
            natively(model, inputs, max_new_tokens=5, past_key_values=cache)
        cache.reset()
    with pytest.raises(ValueError, match="the cache holds 40 tokens, expected 41 or more for a length of 42"):
        natively(model, inputs, max_new_tokens=35, past_key_values=cache)


class Streamer:
    def __init__(self):
        self.parts, self.ended = [], False

    def put(self, value):
        self.parts.append(value)

    def end(self):
        self.ended = True


@pytest.mark.parametrize("direct", [True, False])
def test_a_streamer_gets_every_token(direct):
    model, inputs, streamer = make(), prompts(3), Streamer()
    if direct:
        sequences = ark_torch.generate(model, **inputs, max_new_tokens=5, streamer=streamer)
    else:
        function = functools.partial(ark_torch.generate, streamer=streamer)
        options = dict(max_new_tokens=5, cache_implementation="static", custom_generate=function)
        sequences = model.generate(**inputs, streamer=streamer, **options)
    assert streamer.ended and len(streamer.parts) == 6  # the prompt, which transformers puts, and the tokens
    assert torch.equal(streamer.parts[0], inputs["input_ids"])
    assert torch.equal(torch.stack(streamer.parts[1:], 1), sequences[:, 7:])


def test_a_streamer_gets_tokens_while_the_launch_runs(monkeypatch):
    import ark_torch.decode

    model, inputs, streamer, there = make(), prompts(2), Streamer(), []

    def run(*args, **kwargs):
        carry = run_loop(*args, **kwargs)
        there.append(len(streamer.parts))
        return carry

    run_loop = ark_torch.decode.run_loop
    monkeypatch.setattr(ark_torch.decode, "run_loop", run)
    options = dict(max_new_tokens=100, max_cache_len=107)
    wanted = natively(model, inputs, **options)  # compiles
    sequences = natively(model, inputs, streamer=streamer, **options)
    assert torch.equal(sequences, wanted) and torch.equal(torch.stack(streamer.parts[1:], 1), wanted[:, 7:])
    assert there[1] > 2, "all but the first came after the launch"


def test_what_a_streamer_raises_is_raised():
    class Full(Streamer):
        def put(self, value):
            super().put(value)
            if len(self.parts) == 4:
                raise KeyError("full")

    streamer = Full()
    with pytest.raises(KeyError, match="full"):
        natively(make(), prompts(2), max_new_tokens=40, streamer=streamer)
    assert len(streamer.parts) == 4


class Louder(transformers.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores * 2


class Never(transformers.StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(input_ids.size(0), dtype=torch.bool)


REFUSED = {
    "no beam_search": dict(num_beams=2),
    "no assisted_generation": dict(prompt_lookup_num_tokens=2),
    "no assistant_model": dict(assistant_model=make),
    "no logits processor Louder": dict(logits_processor=[Louder()]),
    "no stopping criterion MaxTimeCriteria": dict(max_time=10.0),
    "no stopping criterion Never": dict(stopping_criteria=[Never()]),
    "no return_dict_in_generate=True": dict(return_dict_in_generate=True),
    "no output_scores=True": dict(output_scores=True),
    "no prefill_chunk_size=4": dict(prefill_chunk_size=4),
    "no DynamicCache; expected cache_implementation": dict(cache_implementation="dynamic"),
    "no argument token_type_ids": dict(token_type_ids=torch.zeros(2, 7, dtype=torch.int64)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_does_not_do_is_refused(message):
    options = {k: v() if v is make else v for k, v in REFUSED[message].items()}
    model = make("gpt2" if "token_type_ids" in message else "one layer")
    with pytest.raises(Unsupported) as raised:
        ark_torch.generate(model, prompts(2)["input_ids"], max_new_tokens=4, **options)
    assert message in str(raised.value)


def test_sliding_layers_are_refused():
    config = transformers.MistralConfig(**SIZES, sliding_window=8)
    with pytest.raises(Unsupported, match="no cache layer StaticSlidingWindowLayer"):
        natively(transformers.MistralForCausalLM(config).eval(), prompts(1), max_new_tokens=4)


class Sorted(transformers.LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits + torch.sort(outputs.logits)[0]
        return outputs


@pytest.mark.parametrize("kind", [transformers.LlamaForCausalLM, Sorted], ids=["launch", "calls"])
def test_what_the_cache_holds_at_the_end(kind):
    torch.manual_seed(3)
    model, inputs = kind(transformers.LlamaConfig(**SIZES)).eval(), prompts(3, padded=True)
    caches = [transformers.StaticCache(config=model.config, max_cache_len=20) for _ in range(2)]
    for cache, function in zip(caches, (type(model).generate, ark_torch.generate)):
        function(model, **inputs, max_new_tokens=5, past_key_values=cache)
    for wanted, layer in zip(*(cache.layers for cache in caches)):
        assert int(layer.cumulative_length) == 7 + 4
        torch.testing.assert_close((layer.keys, layer.values), (wanted.keys, wanted.values), rtol=1e-3, atol=1e-4)


class Remembering(transformers.LlamaForCausalLM):
    last = None

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        self.last = outputs.logits
        return outputs


def test_a_model_that_keeps_a_value():
    """It finds the last step's, not one that a trace has left."""
    torch.manual_seed(3)
    model, inputs = Remembering(transformers.LlamaConfig(**SIZES)).eval(), prompts(2)
    wanted = plainly(model, inputs, max_new_tokens=4)
    last, model.last = model.last, None
    assert torch.equal(ark_torch.generate(model, **inputs, max_new_tokens=4), wanted)
    torch.testing.assert_close(model.last, last, rtol=1e-3, atol=1e-4)


def test_a_model_that_is_no_single_plan():
    """Its step is called once per token; under strict that is an error."""
    torch.manual_seed(3)
    model, inputs = Sorted(transformers.LlamaConfig(**SIZES)).eval(), prompts(2)
    with pytest.raises(Unsupported, match="strict: .*aten.sort.default"):
        ark_torch.generate(model, **inputs, strict=True, max_new_tokens=4)
    wanted = plainly(model, inputs, max_new_tokens=4)
    assert torch.equal(ark_torch.generate(model, **inputs, max_new_tokens=4), wanted)
