"""Decoding as two compiled things: the prefill, one call, and a step for `ark_torch.loop`."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable

import torch

from ark_torch._compat import BackendCompilerFailed
from ark_torch.decode_cache import CarriedCache, carried, store
from ark_torch.decode_checks import Request
from ark_torch.decode_collector import traceable_collector
from ark_torch.decode_stream import Follower
from ark_torch.errors import Unsupported
from ark_torch.looped import run_loop
from ark_torch.sampling import draw, most_likely, seen_tokens, unread_tokens

_numbers = itertools.count()
_decoders: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # model -> key -> Decoder


def _scores(model, ids: torch.Tensor, cache, arguments: dict) -> torch.Tensor:
    """float32 [batch, vocabulary], of what follows ids [batch, length]; the cache gets their rows."""
    return model(input_ids=ids, past_key_values=cache, use_cache=True, **arguments).logits[:, -1].float()


def _choose(scores: torch.Tensor, processors, sample: bool, length: torch.Tensor, memory: dict):
    """The next token of every row, [batch], and what is remembered behind it: `seen`, the tokens so far, where a
    processor asks for them; `drawn` [batch], whether all tokens of a row so far could be drawn, where they are."""
    seen = memory.get("seen")
    if sample:
        token, drawn = draw(scores, processors, length, seen)
        memory = {**memory, "drawn": memory["drawn"] & drawn}
    else:
        token = most_likely(scores, processors, length, seen)
    if seen is not None:
        memory = {**memory, "seen": seen.scatter(1, token[:, None], True)}
    return token, memory


def _first_token(model, ids: torch.Tensor, cache, arguments: dict, processors, sample: bool, length, memory: dict):
    return _choose(_scores(model, ids, cache, arguments), processors, sample, length, memory)


def _start_of_memory(model, request: Request) -> dict[str, torch.Tensor]:
    ids, unread = request.ids, unread_tokens(request.processors)
    memory = {"drawn": torch.ones_like(ids[:, 0], dtype=torch.bool)} if request.sample else {}
    if unread is not None:
        head = getattr(model.get_output_embeddings(), "weight", None)
        vocabulary = model.config.get_text_config().vocab_size if head is None else head.size(0)
        memory["seen"] = seen_tokens(ids, vocabulary, unread)
    return memory


def _own_code(function: Callable) -> Callable:
    """The function with a code object of its own: Dynamo counts compilations by it."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__, code.co_name)


class Lent:
    """What a step has while a loop runs. Not the step's own attributes: torch.compile copies those, and keeps them."""

    model = mask = processors = None


class Step:
    """One token for every row; `slot` is the column of `table` [batch, columns] that it goes to. What an iteration
    reads besides its carry are attributes."""

    def __init__(self, eos: torch.Tensor, pad: torch.Tensor, to_keep: dict, sample: bool):
        self.eos, self.pad, self.to_keep, self.sample, self.lent = eos, pad, to_keep, sample, Lent()

    def __call__(self, slot, token, positions, done, table, layers, memory):
        lent, cache = self.lent, CarriedCache(layers)
        arguments = {"attention_mask": lent.mask, **self.to_keep, **positions}
        scores = _scores(lent.model, token[:, None], cache, arguments)
        token, memory = _choose(scores, lent.processors, self.sample, slot, memory)
        if self.eos.numel():
            token = torch.where(done, self.pad, token)
            done = done | (token[:, None] == self.eos).any(-1)
        positions = {name: value + 1 for name, value in positions.items()}
        table = table.index_copy(1, slot.reshape(1), token[:, None])
        return slot + 1, token, positions, done, table, carried(cache), memory


def _all_done(slot, token, positions, done, table, layers, memory):
    return done.all()


def _not_drawn(slot, token, positions, done, table, layers, memory):
    """Of all rows at once here, where the loop asks: the draw itself does not wait for other rows."""
    drawn = memory["drawn"]
    return ~(drawn[0] if drawn.size(0) == 1 else drawn.all())


def _all_done_or_not_drawn(slot, token, positions, done, table, layers, memory):
    return done.all() | _not_drawn(slot, token, positions, done, table, layers, memory)


_UNTIL = {  # whether rows may end, whether tokens are drawn
    (False, False): None,
    (True, False): _all_done,
    (False, True): _not_drawn,
    (True, True): _all_done_or_not_drawn,
}


class Decoder:
    """Both for one batch, cache length and set of end tokens. Another prompt length compiles the prefill again once."""

    def __init__(self, request: Request, strict: bool):
        self.strict = strict
        self.prefill = torch.compile(_own_code(_first_token), backend="ark", options={"strict": strict})
        device = request.ids.device
        eos, pad = torch.tensor(request.eos, device=device, dtype=torch.int64), torch.tensor(request.pad, device=device)
        self.to_keep = {} if request.logits_to_keep is None else {"logits_to_keep": request.logits_to_keep}
        self.step = Step(eos, pad, self.to_keep, request.sample)
        self.until = _UNTIL[bool(request.eos), request.sample]

    def first(self, model, request: Request) -> tuple:
        """The carry of the loop, with one token for every row."""
        ids, named = request.ids, {} if request.positions is None else {"position_ids": request.positions}
        arguments = {"attention_mask": _whole_mask(request), **named, **self.to_keep}
        length = ids.size(1)
        given = request.processors, request.sample, _number(length, ids.device)
        token, memory = self._prefilled(model, ids, request.cache, arguments, *given, _start_of_memory(model, request))
        table = ids.new_zeros(ids.size(0), request.cache.layers[0].max_cache_len + 1)
        table[:, :length], table[:, length] = ids, token
        positions = {name: value[..., -1:] + 1 for name, value in named.items()}
        slot = _number(length + 1, ids.device)
        return slot, token, positions, torch.isin(token, self.step.eos), table, carried(request.cache), memory

    def _prefilled(self, *arguments) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        try:
            return self.prefill(*arguments)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, Unsupported):
                raise Unsupported(str(error.inner_exception)) from None
            raise

    def rest(self, model, request: Request, carry: tuple) -> torch.Tensor:
        """All tokens of all rows, [batch, length]."""
        length, step = request.ids.size(1) + 1, self.step
        if length < request.max_length and not (self.until and bool(self.until(*carry))):
            lent = step.lent
            lent.model, lent.mask, lent.processors = model, _whole_mask(request), request.processors
            try:
                left = request.max_length - length
                with traceable_collector():
                    carry = run_loop(step, left, carry, self.until, self.strict, in_place=True)
            finally:
                lent.model = lent.mask = lent.processors = None
            store(request.cache, carry[5])
        _check_drawn(carry)
        return carry[4][:, : int(carry[0])].contiguous()


def _number(value: int, device: torch.device) -> torch.Tensor:
    """int64 []. Filled there: a copy of a tensor on the CPU would wait for what the device does."""
    return torch.full((), value, dtype=torch.int64, device=device)


def _check_drawn(carry: tuple) -> None:
    if "drawn" in carry[6] and not carry[6]["drawn"].all():
        raise RuntimeError("generate: scores of a row are inf or NaN, or all -inf: no token can be drawn from them")


def _whole_mask(request: Request) -> torch.Tensor | None:
    """The mask over the whole cache, so that no length of a prompt is a size in its padding. What is not written yet is
    behind the newest token, which hides it."""
    if request.mask is None:
        return None
    batch, length = request.mask.shape
    ones = request.mask.new_ones(batch, request.cache.layers[0].max_cache_len - length)
    return torch.cat([request.mask, ones], 1)


def _initialize(model, cache, batch: int) -> None:
    """Makes the cache's tensors, which the compiled prefill is to find."""
    if all(layer.is_initialized for layer in cache.layers):
        return
    shape = model._get_static_cache_init_shape()
    if shape is None:
        raise Unsupported(f"ark_torch.generate: transformers knows no shape for the cache of {type(model).__name__}")
    for layer in cache.layers:  # made there: transformers copies one after the other, and waits for each
        layer.cumulative_length = torch.zeros_like(layer.cumulative_length, device=model.device)
    cache.early_initialization(batch, *shape, dtype=model.dtype, device=model.device)


def decode(model, request: Request, streamer, strict: bool) -> torch.Tensor:
    ids = request.ids
    _initialize(model, request.cache, ids.size(0))
    key = (
        ids.size(0),
        request.cache.layers[0].max_cache_len,
        request.mask is None,
        None if request.positions is None else request.positions.dim(),
        tuple(request.eos),
        request.pad,
        request.logits_to_keep,
        request.sample,
        tuple((processor.kind, *(x.shape for x in processor.values)) for processor in request.processors),
        ids.device,
        strict,
    )
    decoders = _decoders.setdefault(model, {})
    if key not in decoders:
        decoders[key] = Decoder(request, strict)
    carry = decoders[key].first(model, request)
    if streamer is None:
        return decoders[key].rest(model, request, carry)
    _check_drawn(carry)
    streamer.put(carry[1].to("cpu", copy=True))  # the loop writes its own
    with Follower(streamer, carry[0], carry[4]) as follower:
        sequences = decoders[key].rest(model, request, carry)
    follower.finish(sequences)
    return sequences


__all__ = ["decode"]
