"""A static cache as values that a loop carries: what a step reads and returns, instead of tensors that it writes."""

from __future__ import annotations

from transformers.cache_utils import StaticCache, StaticLayer


class _Layer(StaticLayer):
    """Holds copies, for `update` writes what a layer has; of a carried value the plan makes none."""

    def __init__(self, keys, values, cumulative_length):
        self.keys, self.values, self.cumulative_length = keys.clone(), values.clone(), cumulative_length.clone()
        self.max_cache_len, self.dtype, self.device = keys.size(2), keys.dtype, keys.device
        self.is_initialized = True


class CarriedCache(StaticCache):
    """What the model gets in a step. `layers` is what `carried` returned, or has returned in the step before."""

    def __init__(self, layers: list[dict]):
        self.layers = [_Layer(**layer) for layer in layers]
        self.layer_class_to_replicate, self.offloading = None, False


def carried(cache: StaticCache) -> list[dict]:
    """Per layer keys and values, [batch, heads, length, head_dim], and the number of tokens in them, int64 []."""
    names = ("keys", "values", "cumulative_length")
    return [{name: getattr(layer, name) for name in names} for layer in cache.layers]


def store(cache: StaticCache, layers: list[dict]) -> None:
    """Makes the cache what was carried last, where the loop has not written it in place."""
    for ours, layer in zip(carried(cache), layers):
        for name, value in layer.items():
            if ours[name].data_ptr() != value.data_ptr():
                ours[name].copy_(value)


__all__ = ["CarriedCache", "carried", "store"]
