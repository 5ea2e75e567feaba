"""Writes the ir graphs of whole models as JSON: python -m tests.support.dump_graphs DIRECTORY [NAME...]. Nothing is
executed.

Those of tests/data/graphs: python -m tests.support.dump_graphs tests/data/graphs llama_decode_small bert_small
bert_dropout_small
The deep ones have the layers of Llama-3.2-1B and BERT-Large, but are narrow: for test_saved_plans --scale 0.05.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import ark_torch.segment
from ark_torch.graph_json import DTYPE_NAMES
from ark_torch.records import recording


class Captured:
    """Stands in for CompiledGraph: returns uninitialised tensors."""

    def __init__(self, text: str):
        self.text = text

    def prepare(self, symbols) -> None:
        pass

    def __call__(self, inputs):
        graph = json.loads(self.text)
        dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
        values = [graph["values"][i] for i in graph["outputs"]]
        return [torch.empty_strided(v["sizes"], v["strides"], dtype=dtypes[v["dtype"]]) for v in values]


def capture(body) -> list:
    """The records of the graphs that `body` compiles."""
    original = ark_torch.segment.make_executable
    ark_torch.segment.make_executable = lambda text, *rest: Captured(text)
    torch._dynamo.reset()
    try:
        with recording() as records:
            body()
        return records
    finally:
        ark_torch.segment.make_executable = original


def _empty(build, dtype):
    with torch.device("meta"):
        model = build()
    model = model.to(dtype).to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.zero_()
    return model


LLAMA_SIZES = {
    "small": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4, vocab_size=300),
    "tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, vocab_size=1000),
    "deep": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=16, num_attention_heads=4, vocab_size=300),
    "full": dict(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, vocab_size=128256
    ),
}
LLAMA_KEYS = {
    "small": (2, 600),
    "tiny": (2, 1024),
    "deep": (2, 1024),
    "full": (8, 1024),
}  # heads of keys, positions of the cache
BERT_SIZES = {
    "small": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=300),
    "tiny": dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000),
    "deep": dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=24, num_attention_heads=4, vocab_size=300),
    "full": dict(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, vocab_size=30522
    ),
}
BERT_SIZES["wide"] = BERT_SIZES["full"] | dict(num_hidden_layers=2)
BERT_ROWS = {
    "small": (4, 81),
    "tiny": (4, 128),
    "deep": (2, 129),
    "full": (10, 384),
    "wide": (10, 384),
}  # batch, length


def llama(size: str, rows: int):
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    kv_heads, positions = LLAMA_KEYS[size]
    config = LlamaConfig(
        **LLAMA_SIZES[size],
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = _empty(lambda: LlamaForCausalLM(config), torch.bfloat16).eval()
    cache = StaticCache(config=config, max_cache_len=positions)
    for layer in cache.layers:
        layer.lazy_initialization(*[torch.empty(1, kv_heads, 1, config.head_dim, dtype=torch.bfloat16)] * 2)

    def body():
        with torch.no_grad():
            torch.compile(model, backend="ark")(torch.zeros(1, rows, dtype=torch.long), past_key_values=cache)

    return capture(body)


def bert(size: str, dropout: float = 0.0):
    from transformers import BertConfig, BertForPreTraining

    batch, length = BERT_ROWS[size]
    config = BertConfig(**BERT_SIZES[size], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = _empty(lambda: BertForPreTraining(config), torch.float32).train()
    ids = torch.zeros(batch, length, dtype=torch.long)

    def body():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            target = torch.zeros(batch, dtype=torch.long)
            loss = torch.compile(model, backend="ark")(input_ids=ids, labels=ids, next_sentence_label=target).loss
        loss.backward()

    return capture(body)


def write(directory: Path, stem: str, records: list) -> None:
    for record in records:
        print(
            f"{stem} {record.name}: {record.num_nodes} nodes, {len(record.segments)} segments, "
            f"{record.seconds:.2f} s, fallbacks {dict(record.fallbacks)}"
        )
        for i, segment in enumerate(record.segments):
            suffix = "" if len(record.segments) == 1 else f".{i}"
            kind = {"inference": "", "forward": "_fw", "backward": "_bw"}[record.kind]
            name, size = stem.rsplit("_", 1)
            (directory / f"{name}{kind}_{size}{suffix}.json").write_text(segment.executable.text)


def main() -> None:
    directory, wanted = Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    jobs = {
        f"{name}_{size}": (lambda build=build, size=size: build(size))
        for size in ("small", "tiny", "deep", "full")
        for name, build in {
            "llama_decode": lambda size: llama(size, 1),
            "llama_prefill": lambda size: llama(size, 128),
            "bert": bert,
            "bert_dropout": lambda size: bert(size, 0.1),
        }.items()
    }
    for stem, job in jobs.items():
        if not wanted or stem in wanted:
            write(directory, stem, job())


if __name__ == "__main__":
    main()
