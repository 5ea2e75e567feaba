"""`ark_torch.generate`: decoding of a transformers model, all new tokens but the first in one launch."""

from __future__ import annotations

import functools

import torch


def generate(
    model,
    input_ids: torch.Tensor | None = None,
    logits_processor=None,
    stopping_criteria=None,
    generation_config=None,
    *,
    streamer=None,
    strict: bool = False,
    **arguments,
) -> torch.Tensor:
    """The tokens of transformers' greedy search, or draws with `do_sample=True`, [batch, length]: prompts, new tokens,
    `pad_token_id` behind a row's end. Either form:

        ark_torch.generate(model, input_ids, attention_mask=mask, max_new_tokens=64)
        model.generate(input_ids, max_new_tokens=64, cache_implementation="static", custom_generate=ark_torch.generate)

    The first takes what `model.generate` takes, and calls it. The prompts run as one compiled call, which makes the
    first new token; the others are the iterations of an `ark_torch.loop`, which ends when all rows have ended or have
    `max_length` tokens. Prompts may be padded on the left. Both parts are compiled once per model, batch, cache length,
    set of end tokens and kinds of logits processors, and kept until `torch.compiler.reset()` or as long as the model;
    another number of new tokens compiles nothing, nor do other values of processors. transformers makes the cache as
    long as the longest that this model has had, so `max_cache_len` (of a GenerationConfig, or as an argument) fixes the
    length ahead.

    These logits processors are known by their classes, and compute what transformers' do: temperature, top-k, top-p,
    min-p, repetition penalty, least lengths. Top-k and top-p keep ties with their last token, and what differs from it
    by less than 2**-22 or the float32 rounding of its distance from the best one; distances over 64 count as equal.
    Draws follow `torch.manual_seed` (Gumbel noise on the scores), and are not those of torch.multinomial.

    A model whose step is no single plan is called once per token, and each call copies the cache; a warning of
    `logging.getLogger("ark")` names the cause. Under `strict` it is an error where the prefill has an op that runs
    through ATen, or the loop is not one launch.

    `streamer` gets every token when it is there, also while the launch runs (after the last one where the loop is no
    single launch): one call of `put` each, [batch] on the CPU, the first and the last ones from this thread, the others
    from another. What `put` raises is raised when the launch has ended, which it does not end. transformers hands no
    streamer to a `custom_generate`: there, write `functools.partial(ark_torch.generate, streamer=streamer)`.

    Raises ark_torch.Unsupported, which names it, for anything else: beams, assistants, other logits processors,
    stopping criteria but lengths and end tokens, outputs besides the tokens, caches of other classes or with sliding
    layers, caches that hold tokens, encoders; ValueError for a cache that is too short; RuntimeError where no token can
    be drawn because scores of a row are inf or NaN, or all -inf.
    """
    if not hasattr(generation_config, "_eos_token_tensor"):  # transformers sets it when it prepares a call
        given = dict(
            logits_processor=logits_processor, stopping_criteria=stopping_criteria, generation_config=generation_config
        )
        return _prepare(model, input_ids, streamer, strict, {**arguments, **given})
    from ark_torch.decode import decode  # they bring Dynamo and transformers with them
    from ark_torch.decode_checks import check_request

    request = check_request(model, input_ids, logits_processor, stopping_criteria, generation_config, arguments)
    return decode(model, request, streamer, strict)


def _prepare(model, ids, streamer, strict: bool, arguments: dict) -> torch.Tensor:
    """By way of `model.generate`, which makes cache, mask and limits, and calls back."""
    from ark_torch.decode_checks import given_cache, refused

    if arguments.get("assistant_model") is not None:
        raise refused("assistant_model")
    if given_cache(arguments) is None:
        arguments.setdefault("cache_implementation", "static")
    back = functools.partial(generate, streamer=streamer, strict=strict)
    return model.generate(ids, streamer=streamer, custom_generate=back, **arguments)


__all__ = ["generate"]
