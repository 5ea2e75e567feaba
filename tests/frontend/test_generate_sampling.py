"""ark_torch.generate that draws, and processors: one launch, tokens that transformers' processors keep, errors."""

from __future__ import annotations

import pytest
import torch

from ark_torch.errors import Unsupported
from ark_torch.records import recording
from tests.conftest import has_extension
from tests.frontend.test_generate_function import PAD, Streamer, make, natively, plainly, prompts

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")
LENGTH = 7  # of prompts
DRAWS = {
    "plain": dict(top_k=0),
    "warm": dict(temperature=1.7, top_k=12),
    "nucleus": dict(top_k=0, top_p=0.8, temperature=0.8),
    "all": dict(temperature=1.5, top_k=30, top_p=0.9, min_p=0.02, repetition_penalty=1.3),
}
# Whose tokens are the same wherever they are computed.
DETERMINED = {
    "one of one": dict(do_sample=True, top_k=1),
    "repetition": dict(repetition_penalty=1.6),
    "least new tokens": dict(eos_token_id=[5, 9, 77, 100, 3], pad_token_id=PAD, min_new_tokens=6),
    "least length": dict(eos_token_id=[5, 9, 77, 100, 3], pad_token_id=PAD, min_length=10, repetition_penalty=1.2),
}


@pytest.mark.parametrize("rows, padded", [(1, False), (3, True)], ids=["one", "padded"])
@pytest.mark.parametrize("name", DETERMINED)
def test_tokens_are_those_of_transformers(name, rows, padded):
    model, inputs = make(), prompts(rows, padded=padded)
    wanted = plainly(model, inputs, max_new_tokens=12, **DETERMINED[name])
    with recording() as records:
        assert torch.equal(natively(model, inputs, max_new_tokens=12, **DETERMINED[name]), wanted)
    assert sum(len(record.loops) for record in records) == 1
    assert not any(row.cause for record in records for row in record.loops)


def kept_by_transformers(model, inputs: dict, tokens: torch.Tensor, **options) -> torch.Tensor:
    """bool [rows, new]: whether its processors keep each token, behind those before it."""
    kept = []
    for length in range(LENGTH, tokens.size(1)):
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(tokens[:, LENGTH:length])], 1)
        given = dict(input_ids=tokens[:, :length], attention_mask=mask)
        found = model.generate(
            **given, max_new_tokens=1, do_sample=True, output_scores=True, return_dict_in_generate=True, **options
        )
        kept.append(found.scores[0].gather(1, tokens[:, length, None]) > -torch.inf)
    return torch.cat(kept, 1)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_among_what_transformers_keeps(name):
    model, inputs = make("qwen2" if name == "warm" else "one layer"), prompts(3, padded=True)
    torch.manual_seed(3)
    with recording() as records:
        tokens = natively(model, inputs, max_new_tokens=10, do_sample=True, **DRAWS[name])
    assert sum(len(record.loops) for record in records) == 1 and tokens.shape == (3, LENGTH + 10)
    assert not any(row.cause for record in records for row in record.loops)
    assert kept_by_transformers(model, inputs, tokens, **DRAWS[name]).all()
    assert not torch.equal(tokens, plainly(model, inputs, max_new_tokens=10)), "drawn, not the most likely ones"


def test_draws_follow_the_seed_and_rows_differ():
    model, inputs = make(), prompts(1)
    inputs = {name: x.repeat(4, 1) for name, x in inputs.items()}

    def run(seed: int, new: int = 12) -> torch.Tensor:
        torch.manual_seed(seed)
        return natively(model, inputs, max_new_tokens=new, do_sample=True, top_k=0, temperature=2.0)

    first = run(1)
    assert torch.equal(run(1), first) and not torch.equal(run(2), first)
    assert torch.equal(run(1, 8), first[:, : LENGTH + 8])
    assert len({tuple(row) for row in first.tolist()}) == 4


def test_other_settings_compile_nothing():
    model, inputs = make(), prompts(2)
    run = lambda **options: natively(model, inputs, max_new_tokens=6, do_sample=True, **options)
    run(temperature=0.7, top_k=9, top_p=0.9)
    with recording() as records:
        run(temperature=1.3, top_k=4, top_p=0.5)
        run(temperature=0.1, top_k=100, top_p=0.99)
    assert not records


def test_rows_end_and_are_padded():
    model, inputs = make(), prompts(3)
    torch.manual_seed(11)
    tokens = natively(
        model, inputs, max_new_tokens=40, do_sample=True, top_k=0, temperature=3.0, eos_token_id=list(range(2, 30))
    )
    for row in tokens[:, LENGTH:].tolist():
        ends = [k for k, token in enumerate(row) if 2 <= token < 30]
        assert ends and all(token == PAD for token in row[ends[0] + 1 :])


@pytest.mark.parametrize("eos", [None, 3])
@pytest.mark.parametrize("at_once", [True, False], ids=["in the prefill", "in the loop"])
def test_nothing_to_draw_from_raises(at_once, eos):
    """In the loop: whatever is drawn first has an embedding of NaN. It ends there."""
    torch.manual_seed(1)
    inputs, streamer = prompts(2), Streamer()
    model = transformers.LlamaForCausalLM(make().config).eval()
    with torch.no_grad():
        if at_once:
            model.lm_head.weight[5] = torch.nan
        else:
            others = sorted({*range(3, 128)} - {*inputs["input_ids"].flatten().tolist()})
            model.model.embed_tokens.weight[others] = torch.nan
            model.lm_head.weight[sorted({*range(128)} - {*others})] = 0
            model.lm_head.weight[others] *= 50
    options = dict(max_new_tokens=40, do_sample=True, top_k=0, eos_token_id=eos, pad_token_id=PAD)
    with pytest.raises(RuntimeError, match="no token can be drawn"):
        natively(model, inputs, streamer=streamer, **options)
    assert len(streamer.parts) <= 3, "of the prompt, the first token and the one that could not be drawn"


def test_heads_of_another_width():
    """Tokens that the scores do not have are not penalised; `do_sample=None` is greedy."""
    torch.manual_seed(1)
    model, inputs = transformers.LlamaForCausalLM(make().config).eval(), prompts(2)
    model.lm_head = torch.nn.Linear(64, 100, bias=False)
    options = dict(max_new_tokens=8, repetition_penalty=1.5, do_sample=None)
    assert torch.equal(natively(model, inputs, **options), plainly(model, inputs, **options))


REFUSED = {
    "no logits processor TypicalLogitsWarper": dict(do_sample=True, typical_p=0.5),
    "no logits processor EpsilonLogitsWarper": dict(do_sample=True, epsilon_cutoff=0.01),
    "no logits processor NoRepeatNGramLogitsProcessor": dict(no_repeat_ngram_size=2),
    "no beam_sample": dict(do_sample=True, num_beams=2),
    "no logits processor TopKLogitsWarper with filter_value=-5.0": dict(
        do_sample=True, top_k=0, logits_processor=[transformers.TopKLogitsWarper(3, filter_value=-5.0)]
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_processors_are_refused(message):
    with pytest.raises(Unsupported) as raised:
        natively(make(), prompts(2), max_new_tokens=4, **REFUSED[message])
    assert message in str(raised.value)
