# SPDX-License-Identifier: Apache-2.0
"""Attention of transformers' models with names that can be measured and run in fp8, and key-value caches that keep codes.

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).to("hpu")
    fp8.attention.use(model)                 before fp8.quant.prepare()
    ...                                      prepare, data, convert
    model.generate(ids, past_key_values=fp8.Cache(model))

The names below an attention A are those of the program's models: A.k_cache, A.v_cache, and A.matmul_qk, A.softmax,
A.matmul_av or, fused, A.fused_scaled_dot_product_attention."""

import functools
import typing

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import AttentionInterface

from fp8 import nn

FUSED = "fused_scaled_dot_product_attention"


def modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of a model that call transformers' attention interface: they say whether they are causal, and hold no
    other such module."""
    def calls(module: torch.nn.Module) -> bool:
        return hasattr(module, "is_causal") and hasattr(module, "config")
    return {name: module for name, module in model.named_modules()
            if calls(module) and not any(calls(child) for child in module.modules() if child is not module)}


def use(model: torch.nn.Module, fused: bool = True) -> torch.nn.Module:
    """Gives each attention its operations, and the model the attention implementation "fp8". Returns the model. Raises
    ValueError for a model that is no model of transformers, or whose attention takes no implementation."""
    if not isinstance(model, transformers.PreTrainedModel):
        raise ValueError(f"attention.use: found {type(model).__name__}, expected a model of transformers")
    found = modules(model)
    if not found:
        raise ValueError(f"attention.use: {type(model).__name__}: found no attention that takes an implementation")
    for attention in found.values():
        if hasattr(attention, "k_cache"):
            continue
        attention.k_cache, attention.v_cache = nn.KVCache(), nn.KVCache()
        if fused:
            attention.add_module(FUSED, nn.ModuleFusedSDPA())
        else:
            attention.matmul_qk, attention.softmax, attention.matmul_av = nn.Matmul(), nn.Softmax(), nn.Matmul()
    model.set_attn_implementation("fp8")
    return model


def forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: typing.Optional[torch.Tensor],
            scaling: typing.Optional[float] = None, dropout: float = 0.0, is_causal: typing.Optional[bool] = None,
            **kwargs: typing.Any) -> tuple[torch.Tensor, typing.Optional[torch.Tensor]]:
    """query: [batch, heads, L, E]; key, value: [batch, key heads, S, E]. Returns [batch, L, heads, E], and the
    probabilities where they are not fused. Raises RuntimeError naming what it can't compute."""
    for name in ("softcap", "s_aux", "position_bias", "cache"):
        if kwargs.get(name) is not None:
            raise RuntimeError(f"attention 'fp8': {type(module).__name__} passes '{name}', which it has no operation for; use 'eager'")
    if not hasattr(module, "k_cache"):
        raise RuntimeError(f"attention 'fp8': {type(module).__name__} has no operations: fp8.attention.use(model)")
    key, value = typing.cast(nn.KVCache, module.k_cache)(key), typing.cast(nn.KVCache, module.v_cache)(value)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and attention_mask is None and query.shape[2] > 1
    dropout *= module.training
    if hasattr(module, FUSED):
        fused = typing.cast(nn.ModuleFusedSDPA, getattr(module, FUSED))
        return fused(query, key, value, attention_mask, dropout, causal, scaling, key.size(1) != query.size(1)).transpose(1, 2).contiguous(), None
    parts = [typing.cast(nn.Operation, part) for part in (module.matmul_qk, module.softmax, module.matmul_av)]
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):  # the three are one call of the runtime
        raise RuntimeError(f"attention 'fp8': {type(module).__name__}: found hooks on its operations, allowed: on the attention itself")
    output, weights = parts[0].node.attend(parts[1].node, parts[2].node, query, key, value, attention_mask, dropout, causal, scaling)
    return output.transpose(1, 2).contiguous(), weights


class CodesLayer(CacheLayerMixin):
    """What one of transformers' layers, of whatever kind, becomes besides: it keeps bytes of codes, or values, and gives back values."""

    _layer_type: typing.Any = None  # its kind's stays the one that transformers knows by this name
    of_keys: nn.KVCache
    of_values: nn.KVCache

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: typing.Any,
               **kwargs: typing.Any) -> tuple[torch.Tensor, torch.Tensor]:
        stored = [cache.store(states) for cache, states in ((self.of_keys, key_states), (self.of_values, value_states))]
        kept = super().update(*(t.view(torch.uint8) if t.itemsize == 1 else t for t in stored), *args, **kwargs)  # type: ignore[safe-super]
        keys, values = (k.view(s.dtype) if s.itemsize == 1 else k for k, s in zip(kept, stored))
        return self.of_keys.fetch(keys, key_states), self.of_values.fetch(values, value_states)


@functools.lru_cache(maxsize=None)
def _keeping_codes(kind: type) -> type:
    return type(f"Codes{kind.__name__}", (CodesLayer, kind), {"__module__": __name__})


class Cache(transformers.DynamicCache):
    """For generate(past_key_values=fp8.Cache(model)): keys and values in fp8, one byte each.

    Raises ValueError for a model without fp8.attention.use(), and for layers that keep other things than keys and values."""

    layers: list[typing.Any]

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(config=model.config)
        found = {}
        for name, module in modules(model).items():
            if not hasattr(module, "k_cache") or getattr(module, "layer_idx", None) is None:
                raise ValueError(f"Cache: {name}: has no operations of a cache: fp8.attention.use(model)")
            found[module.layer_idx] = module
        missing = [index for index in range(len(self.layers)) if index not in found]
        if missing or not found:
            raise ValueError(f"Cache: layer {missing[0] if missing else 0} of {type(model).__name__} keeps no keys and values of attention")
        for index, layer in enumerate(self.layers):
            layer.__class__, layer.of_keys, layer.of_values = _keeping_codes(type(layer)), found[index].k_cache, found[index].v_cache

    def nbytes(self) -> int:
        """What keys and values take."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values) if t is not None)


AttentionInterface.register("fp8", forward)
ALL_MASK_ATTENTION_FUNCTIONS.register("fp8", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
