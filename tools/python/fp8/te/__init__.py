# SPDX-License-Identifier: Apache-2.0
"""Training in fp8, with the names of Transformer Engine on Gaudi.

    >>> import torch, fp8
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")
    >>> [module.name for module in fp8.te.convert_modules(model).converted]
    ['0', '2']
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with fp8.te.fp8_autocast(enabled=True, fp8_recipe=fp8.te.recipe.DelayedScaling(fp8_format=fp8.te.recipe.Format.HYBRID)):
    ...     loss = model(torch.randn(16, 64).to("hpu")).square().mean()
    >>> loss.backward()
    >>> optimizer.step()

Recipes are in fp8.te.recipe. What regions and recipes do, and what is refused: tools/pages/fp8_training.md."""

from fp8.te import recipe
from fp8.te._attention import DotProductAttention, FusedAttention, MultiheadAttention, TransformerLayer, rotary_position_embedding
from fp8.te._convert import convert_modules, export_amax, restore
from fp8.te._gathered import gather_in_fp8
from fp8.te._layers import GroupedLinear, LayerNorm, LayerNormLinear, LayerNormMLP, Linear, RMSNorm
from fp8.te._region import checkpoint, checkpoint_contexts, fp8_autocast, is_fp8_enabled, quantized_model_init

fp8_model_init = quantized_model_init  # NVIDIA's older name
__all__ = ["DotProductAttention", "FusedAttention", "GroupedLinear", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear",
           "MultiheadAttention", "RMSNorm", "TransformerLayer", "checkpoint", "checkpoint_contexts", "convert_modules", "export_amax",
           "fp8_autocast", "fp8_model_init", "gather_in_fp8", "is_fp8_enabled", "quantized_model_init", "recipe", "restore",
           "rotary_position_embedding"]
