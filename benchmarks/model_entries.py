"""The models of models_table.py: real classes, random weights, configurations written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import transformers as tf
from torch import nn

from model_configs import (
    BERT,
    CONVNEXT,
    DISTILBERT,
    GEMMA2,
    GEMMA3,
    GPT2,
    LLAMA_8B,
    MAMBA2,
    MIXTRAL,
    PHI3,
    QWEN3,
    RESNET,
    T5,
    TINY,
    TINY_BERT,
    TINY_GPT2,
    TINY_PHI3,
    VIT,
    WHISPER,
)
from models import LLAMA_1B

BF16 = torch.bfloat16
Inputs = Callable[[nn.Module, str, bool], dict]


@dataclasses.dataclass
class Entry:
    """One row. `make(**config)` builds the model (`small` overrides the configuration where the table itself is tried),
    `inputs` its arguments.

    mode: "inference" (weights of `dtype`), "training" (forward and backward of fp32 weights under autocast to `dtype`)
    or "cached" (tokens behind `position` in a StaticCache of `cache` positions: a decode step or a prefill).
    factor: how many times eager's error ark's may be; more than 1.5 where choices jump (routing to experts).
    """

    name: str
    mode: str
    make: Callable[..., nn.Module]
    config: dict
    small: dict
    inputs: Inputs
    dtype: torch.dtype = BF16
    cache: int = 1024
    position: int = 96
    factor: float = 1.5

    def model(self, small: bool) -> nn.Module:
        return self.make(**(self.config | self.small if small else self.config))


def of(model: type, config: type) -> Callable[..., nn.Module]:
    return lambda **numbers: model(config(**numbers))


def tokens(batch: int, length: int, labels: bool = False) -> Inputs:
    def make(model: nn.Module, device: str, small: bool) -> dict:
        size = (min(batch, 2), min(length, 32)) if small else (batch, length)
        draw = lambda: torch.randint(model.config.vocab_size, size, device=device)
        return {"input_ids": draw()} | ({"labels": draw()} if labels else {})

    return make


def image(name: str, batch: int, size: int = 224, small_size: int = 32) -> Inputs:
    """Pixels, as the argument `name`."""
    side = lambda small: (1, 3, small_size, small_size) if small else (batch, 3, size, size)
    return lambda model, device, small: {name: torch.randn(side(small), device=device)}


def numbers(name: str, *sizes: int, small: tuple[int, ...]) -> Inputs:
    return lambda model, device, tiny: {name: torch.randn(small if tiny else sizes, device=device)}


def bert_inputs(model: nn.Module, device: str, small: bool) -> dict:
    found = tokens(10, 384, labels=True)(model, device, small)
    return found | {"next_sentence_label": torch.randint(2, (len(found["labels"]),), device=device)}


class Recurrent(nn.Module):
    """A stack of LSTM or GRU layers."""

    def __init__(self, kind: str, **sizes: int):
        super().__init__()
        self.layers = getattr(nn, kind)(**sizes, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


def of_timm(name: str) -> Callable[..., nn.Module]:
    def make(**arguments) -> nn.Module:
        import timm

        return timm.create_model(name, **arguments)

    return make


def of_torchvision(name: str) -> Callable[..., nn.Module]:
    def make(**arguments) -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(**arguments)

    return make


LLAMA = of(tf.LlamaForCausalLM, tf.LlamaConfig)
GPT = of(tf.GPT2LMHeadModel, tf.GPT2Config)
TOKEN = tokens(1, 1)


def llama_decode(name: str, config: dict, batch: int) -> Entry:
    return Entry(f"{name} decode b{batch}", "cached", LLAMA, config, TINY, tokens(batch, 1))


def far(entry: Entry, position: int) -> Entry:
    """The same step with `position` tokens in the cache."""
    return dataclasses.replace(entry, name=f"{entry.name} at {position}", position=position)


ENTRIES = [
    *(llama_decode("Llama-3.2-1B", LLAMA_1B, batch) for batch in (1, 2, 4, 8, 16, 32, 64)),
    far(llama_decode("Llama-3.2-1B", LLAMA_1B, 1), 1000),
    llama_decode("Llama-3.1-8B", LLAMA_8B, 1),
    Entry("Qwen3-0.6B decode b1", "cached", of(tf.Qwen3ForCausalLM, tf.Qwen3Config), QWEN3, TINY, TOKEN),
    Entry("GPT-2 small decode b1", "cached", GPT, GPT2, TINY_GPT2, TOKEN),
    Entry(
        "BERT-Large inference 1 x 128", "inference", of(tf.BertModel, tf.BertConfig), BERT, TINY_BERT, tokens(1, 128)
    ),
    Entry(
        "BERT-Large training 10 x 384",
        "training",
        of(tf.BertForPreTraining, tf.BertConfig),
        BERT,
        TINY_BERT,
        bert_inputs,
    ),
    Entry("Llama-3.2-1B prefill 2048", "cached", LLAMA, LLAMA_1B, TINY, tokens(1, 2048), cache=2048, position=0),
    llama_decode("Llama-3.1-8B", LLAMA_8B, 8),
    Entry("GPT-2 training 4 x 512", "training", GPT, GPT2, TINY_GPT2, tokens(4, 512, labels=True)),
    Entry("Phi-3-mini (2 layers) decode b1", "cached", of(tf.Phi3ForCausalLM, tf.Phi3Config), PHI3, TINY_PHI3, TOKEN),
    *(
        Entry(
            f"Qwen3-0.6B decode b{batch}",
            "cached",
            of(tf.Qwen3ForCausalLM, tf.Qwen3Config),
            QWEN3,
            TINY,
            tokens(batch, 1),
        )
        for batch in (2, 8)
    ),
    Entry("Gemma-2-2B (4 layers) decode b1", "cached", of(tf.Gemma2ForCausalLM, tf.Gemma2Config), GEMMA2, TINY, TOKEN),
    Entry("Gemma-3-270M decode b1", "cached", of(tf.Gemma3ForCausalLM, tf.Gemma3TextConfig), GEMMA3, TINY, TOKEN),
    Entry(
        "Mixtral-like (2 layers) 1 x 128",
        "inference",
        of(tf.MixtralForCausalLM, tf.MixtralConfig),
        MIXTRAL,
        TINY,
        tokens(1, 128),
        factor=4.0,
    ),
    Entry(
        "DistilBERT 8 x 128",
        "inference",
        of(tf.DistilBertModel, tf.DistilBertConfig),
        DISTILBERT,
        dict(dim=128, n_layers=2, n_heads=4, hidden_dim=256, vocab_size=512),
        tokens(8, 128),
    ),
    Entry(
        "T5-small encoder 8 x 128",
        "inference",
        of(tf.T5EncoderModel, tf.T5Config),
        T5,
        dict(d_model=128, d_ff=256, num_layers=2, num_heads=2, vocab_size=512),
        tokens(8, 128),
    ),
    Entry(
        "ViT-B/16 b8",
        "inference",
        of(tf.ViTModel, tf.ViTConfig),
        VIT,
        TINY_BERT | dict(image_size=32),
        image("pixel_values", 8),
    ),
    Entry(
        "ResNet-50 b8",
        "inference",
        of(tf.ResNetForImageClassification, tf.ResNetConfig),
        RESNET,
        dict(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1]),
        image("pixel_values", 8),
    ),
    Entry(
        "ConvNeXt-T b8",
        "inference",
        of(tf.ConvNextForImageClassification, tf.ConvNextConfig),
        CONVNEXT,
        dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
        image("pixel_values", 8),
    ),
    Entry(
        "Whisper-tiny encoder b1",
        "inference",
        of(tf.models.whisper.modeling_whisper.WhisperEncoder, tf.WhisperConfig),
        WHISPER,
        dict(d_model=96, encoder_layers=1, encoder_ffn_dim=192, max_source_positions=64),
        numbers("input_features", 1, 80, 3000, small=(1, 80, 128)),
    ),
    Entry(
        "MLP-Mixer-B/16 b8 (timm)",
        "inference",
        of_timm("mixer_b16_224"),
        {},
        dict(img_size=32),
        image("x", 8),
    ),
    Entry("EfficientNet-B0 b8 (torchvision)", "inference", of_torchvision("efficientnet_b0"), {}, {}, image("x", 8)),
    Entry(
        "LSTM 2 x 512 on 16 x 64",
        "inference",
        Recurrent,
        dict(kind="LSTM", input_size=512, hidden_size=512, num_layers=2),
        dict(input_size=32, hidden_size=32),
        numbers("x", 16, 64, 512, small=(2, 4, 32)),
    ),
    Entry(
        "GRU 1 x 512 on 16 x 64",
        "inference",
        Recurrent,
        dict(kind="GRU", input_size=512, hidden_size=512, num_layers=1),
        dict(input_size=32, hidden_size=32),
        numbers("x", 16, 64, 512, small=(2, 4, 32)),
    ),
    Entry(
        "Mamba-2 (6 layers) 1 x 256",
        "inference",
        of(tf.Mamba2ForCausalLM, tf.Mamba2Config),
        MAMBA2,
        dict(hidden_size=64, num_hidden_layers=1, num_heads=2, state_size=16, vocab_size=512, chunk_size=16),
        tokens(1, 256),
    ),
]


def entry(name: str) -> Entry:
    return next(e for e in ENTRIES if e.name == name)


def names_like(parts: str) -> list[str]:
    """Names that contain any of the comma-separated parts, in the table's order."""
    wanted = [part.strip().lower() for part in parts.split(",")]
    for part in wanted:
        if not any(part in e.name.lower() for e in ENTRIES):
            raise SystemExit(f"no model {part!r}; there are: {[e.name for e in ENTRIES]}")
    return [e.name for e in ENTRIES if any(part in e.name.lower() for part in wanted)]
