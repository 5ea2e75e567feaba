"""Whole models with their sizes marked dynamic, as graphs over launch symbols; nothing is executed and no GPU is
needed. python -m tests.support.sized_graphs DIRECTORY writes them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import ark_torch.segment
from ark_torch.graph_json import DTYPE_NAMES
from ark_torch.records import recording
from tests.support.dump_graphs import _empty

LLAMA = dict(
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    head_dim=64,
)
BERT = dict(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, vocab_size=30522)


@dataclass
class SizedGraph:
    """The text of a graph, and the symbols' values at each call."""

    text: str
    calls: list[list[int]]


def evaluated(exprs: list[dict], symbols: list[int]) -> list[int]:
    known: list[int] = []
    for e in exprs:
        args = [known[i] for i in e.get("args", [])]
        match e["op"]:
            case "const":
                value = e["value"]
            case "sym":
                value = symbols[e.get("value", 0)]
            case "neg":
                value = -args[0]
            case "floordiv":
                value = args[0] // args[1]
            case "mod":
                value = args[0] % args[1]
            case "add":
                value = sum(args)
            case "mul":
                value = 1
                for arg in args:
                    value *= arg
            case other:
                value = {"min": min, "max": max}[other](args)
        known.append(value)
    return known


def static_text(graph: SizedGraph, symbols: list[int]) -> str:
    """The graph with these sizes as numbers."""
    text = json.loads(graph.text)
    known = evaluated(text.pop("exprs", []), symbols)
    text.pop("symbols", None)

    def number(item):
        if isinstance(item, dict):
            return known[item["expr"]] if item.keys() == {"expr"} else {k: number(v) for k, v in item.items()}
        return [number(i) for i in item] if isinstance(item, list) else item

    return json.dumps(number(text))


class Captured:
    """Stands in for CompiledGraph: notes the symbols and returns tensors of the right shapes."""

    def __init__(self, text: str):
        self.graph, self.sized = json.loads(text), SizedGraph(text, [])

    def prepare(self, symbols) -> None:
        pass

    def __call__(self, inputs: list) -> list:
        graph = self.graph
        count = len(graph.get("symbols", []))
        symbols = [int(x) for x in inputs[len(inputs) - count :]]
        self.sized.calls.append(symbols)
        known = evaluated(graph.get("exprs", []), symbols)
        dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}

        def tensor(value: dict) -> torch.Tensor:
            sizes, strides = (
                [known[s["expr"]] if isinstance(s, dict) else s for s in value.get(key, [])]
                for key in ("sizes", "strides")
            )
            result = torch.empty_strided(sizes, strides, dtype=dtypes[value.get("dtype", "f32")])
            return result if result.is_floating_point() else result.zero_()  # indices of an ATen step

        return [tensor(graph["values"][i]) for i in graph["outputs"]]


def capture(steps, before=lambda: None) -> list[SizedGraph]:
    """The graphs of all `steps` (functions); the first step compiles them, the others must fit them. `before` is run
    first, for attributes that Dynamo takes as fixed until they have changed once."""
    original = ark_torch.segment.make_executable
    ark_torch.segment.make_executable = lambda text, *rest: Captured(text)
    torch._dynamo.reset()
    try:
        before()
        with recording() as records:
            count = 0
            for i, step in enumerate(steps):
                step()
                count = count or len(records)
                assert len(records) == count, f"step {i} was compiled again"
            return [segment.executable.sized for record in records for segment in record.segments]
    finally:
        ark_torch.segment.make_executable = original


def _mark(tensors, *dims: int) -> None:
    for tensor in tensors:
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


def _llama(layers: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**LLAMA, num_hidden_layers=layers, max_position_embeddings=131072, tie_word_embeddings=True)
    model = _empty(lambda: LlamaForCausalLM(config), torch.bfloat16).eval()
    return config, torch.no_grad()(torch.compile(model, backend="ark"))


def _cache(config, batch: int, positions: int):
    from transformers import StaticCache

    cache = StaticCache(config=config, max_cache_len=positions)
    for layer in cache.layers:
        kv = torch.empty(batch, config.num_key_value_heads, 1, config.head_dim, dtype=torch.bfloat16)
        layer.lazy_initialization(kv, kv)
    return cache


def llama_decode(layers: int, batches) -> list[SizedGraph]:
    config, call = _llama(layers)

    def step(batch: int) -> None:
        cache = _cache(config, batch, 1024)
        tokens = torch.zeros(batch, 1, dtype=torch.long)
        _mark([tokens, *(t for layer in cache.layers for t in (layer.keys, layer.values))], 0)
        call(tokens, past_key_values=cache)

    return capture([lambda batch=batch: step(batch) for batch in batches])


def llama_caches(layers: int, batch: int, lengths) -> list[SizedGraph]:
    """Decode steps whose caches differ in length, as those of requests of other lengths do."""
    config, call = _llama(layers)

    def step(length: int) -> None:
        cache = _cache(config, batch, length)
        _mark([t for layer in cache.layers for t in (layer.keys, layer.values)], 2)
        call(torch.zeros(batch, 1, dtype=torch.long), past_key_values=cache)

    return capture([lambda length=length: step(length) for length in lengths], lambda: step(lengths[0] + 1))


def llama_prefill(layers: int, lengths) -> list[SizedGraph]:
    config, call = _llama(layers)

    def step(length: int) -> None:
        cache = _cache(config, 1, max(lengths))
        tokens = torch.zeros(1, length, dtype=torch.long)
        _mark([tokens], 1)
        call(tokens, past_key_values=cache, logits_to_keep=1)

    return capture([lambda length=length: step(length) for length in lengths])


def bert_training(layers: int, shapes, dropout: float = 0.0) -> list[SizedGraph]:
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        **BERT, num_hidden_layers=layers, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    model = _empty(lambda: BertForPreTraining(config), torch.float32).train()
    call = torch.compile(model, backend="ark")

    def step(batch: int, length: int) -> None:
        ids = torch.zeros(batch, length, dtype=torch.long)
        labels = torch.zeros(batch, length, dtype=torch.long)
        target = torch.zeros(batch, dtype=torch.long)
        _mark([ids, labels, target], 0)
        _mark([ids, labels], 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(input_ids=ids, labels=labels, next_sentence_label=target).loss
        loss.backward()

    return capture([lambda shape=shape: step(*shape) for shape in shapes])


FAMILIES = {
    "few": lambda layers: llama_decode(layers, (2, 3, 5, 8)),
    "decode": lambda layers: llama_decode(layers, (16, 24, 40, 64)),
    "prefill": lambda layers: llama_prefill(layers, (2048, 1920, 1000, 517, 2049, 200, 128)),
    "bert": lambda layers: bert_training(layers, ((10, 384), (12, 384), (10, 256), (7, 131), (16, 512), (2, 128))),
}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for family in sys.argv[2:] or FAMILIES:
        for i, graph in enumerate(FAMILIES[family](24 if family == "bert" else 16)):
            path = directory / f"{family}{i}.json"
            path.write_text(json.dumps({"graph": json.loads(graph.text), "calls": graph.calls}))
            print(path, len(json.loads(graph.text)["nodes"]), "nodes", graph.calls)


if __name__ == "__main__":
    main()
