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

from fp8.te import recipe as recipe
from fp8.te._attention import DotProductAttention as DotProductAttention
from fp8.te._attention import FusedAttention as FusedAttention
from fp8.te._attention import MultiheadAttention as MultiheadAttention
from fp8.te._attention import TransformerLayer as TransformerLayer
from fp8.te._attention import quantized_model_init as quantized_model_init
from fp8.te._attention import rotary_position_embedding as rotary_position_embedding
from fp8.te._convert import convert_modules as convert_modules
from fp8.te._convert import export_amax as export_amax
from fp8.te._convert import restore as restore
from fp8.te._layers import GroupedLinear as GroupedLinear
from fp8.te._layers import LayerNorm as LayerNorm
from fp8.te._layers import LayerNormLinear as LayerNormLinear
from fp8.te._layers import LayerNormMLP as LayerNormMLP
from fp8.te._layers import Linear as Linear
from fp8.te._layers import RMSNorm as RMSNorm
from fp8.te._region import checkpoint as checkpoint
from fp8.te._region import checkpoint_contexts as checkpoint_contexts
from fp8.te._region import fp8_autocast as fp8_autocast
from fp8.te._region import is_fp8_enabled as is_fp8_enabled

__all__ = ["DotProductAttention", "FusedAttention", "GroupedLinear", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear",
           "MultiheadAttention", "RMSNorm", "TransformerLayer", "checkpoint", "checkpoint_contexts", "convert_modules", "export_amax",
           "fp8_autocast", "is_fp8_enabled", "quantized_model_init", "recipe", "restore", "rotary_position_embedding"]
