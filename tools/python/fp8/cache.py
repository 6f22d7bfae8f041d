# SPDX-License-Identifier: Apache-2.0
"""fp8.Cache: transformers' cache of keys and values, which keeps codes after fp8.quant.convert()."""

import typing

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from fp8 import attention, nn


class CodesLayer(CacheLayerMixin):
    """One of transformers' layers, of whatever kind, that is given codes as bytes and gives back values."""

    inner: CacheLayerMixin
    of_keys: nn.KVCache
    of_values: nn.KVCache

    def __init__(self, inner: CacheLayerMixin, keys: nn.KVCache, values: nn.KVCache) -> None:
        self.inner, self.of_keys, self.of_values = inner, keys, values

    def __getattr__(self, name: str) -> typing.Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def keys(self) -> typing.Optional[torch.Tensor]:  # type: ignore[override]
        """As stored: bytes of codes, or values."""
        return self.inner.keys

    @property
    def values(self) -> typing.Optional[torch.Tensor]:  # type: ignore[override]
        return self.inner.values

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        return self.inner.is_initialized

    @property
    def is_sliding(self) -> bool:
        return bool(getattr(self.inner, "is_sliding", False))

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: typing.Any, **kwargs: typing.Any) -> tuple[torch.Tensor, torch.Tensor]:
        stored = [cache.store(states) for cache, states in ((self.of_keys, key_states), (self.of_values, value_states))]
        given = [t.view(torch.uint8) if t.dtype.itemsize == 1 else t for t in stored]
        kept = self.inner.update(given[0], given[1], *args, **kwargs)
        keys, values = (k.view(s.dtype) if s.dtype.itemsize == 1 else k for k, s in zip(kept, stored))
        return self.of_keys.fetch(keys, key_states), self.of_values.fetch(values, value_states)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.inner.lazy_initialization(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.inner.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        return self.inner.get_seq_length()

    def get_max_length(self) -> int:
        return self.inner.get_max_length()

    def reset(self) -> None:
        self.inner.reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.inner.reorder_cache(beam_idx)


class Cache(transformers.DynamicCache):
    """For generate(past_key_values=fp8.Cache(model)): keys and values in fp8, one byte each.

    Raises ValueError for a model without fp8.attention.use(), and for layers that keep other things than keys and values."""

    layers: list[typing.Any]

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(config=model.config)
        found = {}
        for name, module in attention.modules(model).items():
            if not hasattr(module, "k_cache") or getattr(module, "layer_idx", None) is None:
                raise ValueError(f"Cache: {name}: has no operations of a cache: fp8.attention.use(model)")
            found[module.layer_idx] = module
        missing = [index for index in range(len(self.layers)) if index not in found]
        if missing or not found:
            raise ValueError(f"Cache: layer {missing[0] if missing else 0} of {type(model).__name__} keeps no keys and values of attention")
        self.layers = [CodesLayer(layer, found[index].k_cache, found[index].v_cache) for index, layer in enumerate(self.layers)]

    def nbytes(self) -> int:
        """What keys and values take."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values) if t is not None)
