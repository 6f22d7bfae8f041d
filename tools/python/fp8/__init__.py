# SPDX-License-Identifier: Apache-2.0
"""fp8: measure, quantize, save and serve models in 8-bit floating point on the ``hpu`` device.

``import torch`` makes the device known, and where it must not (FP8_AUTOLOAD=0) this package does; it has the names.

    >>> import torch, fp8
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32)).to("hpu")
    >>> model = fp8.quant.convert(model, fp8.quant.FP8Config(mode="QUANTIZE", scale_method="unit_scale"))
    >>> [module.name for module in fp8.quant.report(model).converted]
    ['0']
"""

import importlib
import pkgutil
import sys
import typing

if typing.TYPE_CHECKING:
    from fp8 import attention as attention
    from fp8 import hpu as hpu
    from fp8 import lightning as lightning
    from fp8 import nn as nn
    from fp8 import optim as optim
    from fp8 import optimum as optimum
    from fp8 import quant as quant
    from fp8 import te as te
    from fp8.attention import Cache as Cache
    from fp8.evaluation import evaluate as evaluate
    from fp8.parameter import Fp8Parameter as Fp8Parameter

__version__ = "0.1.0"
__all__ = ["Cache", "Fp8Parameter", "__version__", "attention", "evaluate", "hpu", "inc", "lightning", "nn", "optim", "optimum", "quant", "te"]

# They load when they are asked for, by pkgutil.resolve_name().
_LAZY = {name: f"fp8.{name}:" for name in __all__} | {
    "Cache": "fp8.attention:Cache", "Fp8Parameter": "fp8.parameter:Fp8Parameter", "evaluate": "fp8.evaluation:evaluate", "inc": "fp8.quant:"}


def __getattr__(name: str) -> typing.Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fp8' has no attribute '{name}', allowed: {', '.join(__all__)}")
    importlib.import_module("fp8._autoload").register()
    globals()[name] = value = pkgutil.resolve_name(_LAZY[name])
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# A finished torch that did not load this package (FP8_AUTOLOAD=0) knows the device from here on. The command `fp8` has none.
_before_torch = "torch" not in sys.modules
if not _before_torch and not getattr(sys.modules["torch"].__spec__, "_initializing", False):
    importlib.import_module("fp8._autoload").register()
