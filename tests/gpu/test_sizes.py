"""Other sizes on the GPU: right, and in the kernel that the first sizes made."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import StaticCache

from ark_torch.records import recording
from tests.gpu.test_models import bert, bert_batch, error, gradients, small_llama

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def mark(tensors, *dims: int) -> None:
    for tensor in tensors:
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


def kernels(records: list) -> tuple[int, int]:
    """Graphs, and kernels that were compiled or read from disk."""
    stats = [segment.executable.stats() for record in records for segment in record.segments]
    return len(records), sum(s["compiles"] + s["disk_hits"] for s in stats)


def check_sizes(steps) -> None:
    """Each step compares; the first compiles."""
    torch._dynamo.reset()
    with recording() as records:
        first = None
        for step in steps:
            step()
            first = first or kernels(records)
            assert kernels(records) == first


def close(ark: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> None:
    assert error(ark, truth) <= 1.5 * error(eager, truth) + 1e-6


@torch.no_grad()
def test_prefill_lengths():
    model = small_llama(torch.bfloat16)
    double, call = copy.deepcopy(model).double(), torch.compile(model, backend="ark")

    def step(length: int) -> None:
        tokens = torch.randint(2048, (1, length), device="cuda", generator=torch.Generator("cuda").manual_seed(length))
        mark([tokens], 1)
        outputs = [
            m(tokens, past_key_values=StaticCache(config=model.config, max_cache_len=1100), logits_to_keep=1).logits
            for m in (call, model, double)
        ]
        close(*outputs)

    check_sizes([lambda length=length: step(length) for length in (512, 37, 64, 129, 200, 333, 1000, 1024, 16)])


@torch.no_grad()
@pytest.mark.parametrize("batches", [(2, 3, 8, 5), (16, 9, 12), (24, 40, 65, 130)])
def test_decode_batches(batches):
    model = small_llama(torch.bfloat16)
    double, call = copy.deepcopy(model).double(), torch.compile(model, backend="ark")

    def step(batch: int) -> None:
        tokens = torch.randint(2048, (batch, 1), device="cuda", generator=torch.Generator("cuda").manual_seed(batch))
        outputs = []
        for m in (call, model, double):
            cache = StaticCache(config=model.config, max_cache_len=256)
            shape = (batch, model.config.num_key_value_heads, 1, model.config.head_dim)
            empty = torch.zeros(shape, device="cuda", dtype=torch.float64 if m is double else torch.bfloat16)
            for layer in cache.layers:
                layer.lazy_initialization(empty, empty)
                layer.keys.copy_(torch.sin(torch.arange(layer.keys.numel(), device="cuda")).view_as(layer.keys))
                layer.values.copy_(torch.cos(torch.arange(layer.values.numel(), device="cuda")).view_as(layer.values))
                layer.cumulative_length.fill_(batch * 3 % 200)
            mark([tokens, *(t for layer in cache.layers for t in (layer.keys, layer.values))], 0)
            outputs.append(m(tokens, past_key_values=cache).logits)
        close(*outputs)

    check_sizes([lambda batch=batch: step(batch) for batch in batches])


def test_training_shapes():
    model = bert(0.0)
    call = torch.compile(model, backend="ark")

    def step(rows: int, length: int) -> None:
        batch = bert_batch(rows, length)
        double = copy.deepcopy(model).double()
        exact, eager = gradients(double, double, batch, autocast=False), gradients(model, model, batch)
        mark(batch.values(), 0)
        mark((batch["input_ids"], batch["labels"]), 1)
        ark = gradients(model, call, batch)
        total = lambda out: sum((o.double() - x.double()).square().sum().item() for o, x in zip(out, exact)) ** 0.5
        assert total(ark) <= 1.5 * total(eager), (rows, length, total(ark), total(eager))

    shapes = ((10, 128), (12, 128), (10, 64), (7, 131), (16, 256), (2, 96), (5, 77), (9, 200))
    check_sizes([lambda shape=shape: step(*shape) for shape in shapes])
