"""Sizes are data: one kernel serves all of them. A new size that changes the generated source would be an NVRTC call
of seconds in the middle of somebody's run."""

from __future__ import annotations

import difflib
import json

import pytest

pytest.importorskip("transformers")

from ark_torch import _C
from tests.support import sized_graphs

LAYERS = 2
BATCHES = (32, 17, 20, 24, 40, 63, 64, 100, 128, 200)
FEW_BATCHES = ((2, 3, 4, 5, 7, 8), (16, 9, 10, 13))
CACHES = (1024, 48, 20, 64, 100, 129, 333, 777, 2048, 4096, 8192)
LENGTHS = (2048, 1920, 1000, 517, 2049, 100, 129, 200, 256, 300, 777, 1024, 1500, 4096)
SHORT_LENGTHS = (64, 16, 33, 50)  # products of 2048 columns are split there, into small tiles: other code
SHAPES = ((10, 384), (12, 384), (10, 256), (7, 131), (16, 512), (2, 128), (16, 128), (3, 333), (5, 77), (15, 511))


def kernels_differ(text: str, sizes: list[list[int]]) -> str | None:
    """The first size that does not run in the first size's kernel, and what it changed."""
    sources = _C.kernel_sources(text, sizes)
    for symbols, source in zip(sizes, sources):
        if source != sources[0]:
            lines = difflib.unified_diff(sources[0].split("\n"), source.split("\n"), lineterm="", n=0)
            return f"{symbols} after {sizes[0]}:\n" + "\n".join(list(lines)[:40])
    return None


def check(graphs: list[sized_graphs.SizedGraph], rotations=(0,)) -> None:
    """`rotations`: places of the sizes that come first, for which the kernel is made."""
    for number, graph in enumerate(graphs):
        for first in rotations:
            sizes = graph.calls[first:] + graph.calls[:first]
            difference = kernels_differ(graph.text, sizes)
            assert difference is None, f"graph {number}: {difference}"


def test_decode_batches():
    check(sized_graphs.llama_decode(LAYERS, BATCHES), (0, 6))


@pytest.mark.parametrize("batches", FEW_BATCHES)
def test_decode_batches_of_few_rows(batches: tuple[int, ...]):
    check(sized_graphs.llama_decode(LAYERS, batches), (0, 3))


@pytest.mark.parametrize("batch", [1, 3, 24])
def test_decode_caches(batch: int):
    check(sized_graphs.llama_caches(LAYERS, batch, CACHES), (0, 1, 7))


def test_prefill_lengths():
    check(sized_graphs.llama_prefill(LAYERS, LENGTHS), (0, 2, 5, 7))
    check(sized_graphs.llama_prefill(LAYERS, SHORT_LENGTHS), (0, 2))


def test_training_batches_and_sequences():
    check(sized_graphs.bert_training(LAYERS, SHAPES), (0, 3, 6))


def test_training_batches_with_dropout():
    """Attention with dropout is done in products whose stores divide by the sequence's length, which is code."""
    check(sized_graphs.bert_training(LAYERS, [(batch, 384) for batch in (10, 12, 4, 7, 16, 9)], 0.1), (0, 3))


def test_a_kernel_of_one_size_differs():
    """That the tests above see something: without the sizes beside the first, each would have another kernel."""
    graph = sized_graphs.llama_prefill(LAYERS, (2048, 200))[0]
    static = [json.loads(sized_graphs.static_text(graph, symbols)) for symbols in graph.calls]
    sources = [_C.kernel_sources(json.dumps(text), [[]])[0] for text in static]
    assert sources[0] != sources[1]
