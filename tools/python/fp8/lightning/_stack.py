# SPDX-License-Identifier: Apache-2.0
"""The classes for each of Lightning's packages: what they do on hpu (_classes.py) on the bases of that package."""

import functools
import importlib
import importlib.util
import sys
from typing import Any, cast

_HALVES = {"pytorch": ("lightning.pytorch", "pytorch_lightning"), "fabric": ("lightning.fabric", "lightning_fabric")}

# Name: what does the work on hpu; Lightning's module and class below it. Both halves have them, fabric as far as it has the base, and
# none of several processes.
_BASES = {
    "HPUAccelerator": ("fp8.lightning._classes", "Accelerator", "accelerators", "Accelerator"),
    "HPUPrecisionPlugin": ("fp8.lightning._classes", "Precision", "plugins", "MixedPrecision"),
    "HPUCheckpointIO": ("fp8.lightning._classes", "CheckpointIO", "plugins", "TorchCheckpointIO"),
    "SingleHPUStrategy": ("fp8.lightning._strategies", "Single", "strategies", "SingleDeviceStrategy"),
    "HPUProfiler": ("fp8.lightning._classes", "Profiler", "profilers", "PyTorchProfiler"),
    "HPUDataModule": ("fp8.lightning._classes", "DataModule", "core", "LightningDataModule"),
}
_SEVERAL = {
    **dict.fromkeys(("HPUParallelStrategy", "HPUDDPStrategy"), ("fp8.lightning._strategies", "Ddp", "strategies", "DDPStrategy")),
    "HPUFSDPStrategy": ("fp8.lightning._strategies", "Fsdp", "strategies", "FSDPStrategy"),
    "HPUDeepSpeedStrategy": ("fp8.lightning._strategies", "DeepSpeed", "strategies", "DeepSpeedStrategy"),
    "HPUFSDPPrecision": ("fp8.lightning._strategies", "FsdpPrecision", "plugins", "FSDPPrecision"),
    "HPUDeepSpeedPrecisionPlugin": ("fp8.lightning._strategies", "DeepSpeedPrecision", "plugins", "DeepSpeedPrecision")}
_BASES.update(_SEVERAL)
NAMES = tuple(_BASES)


def has(package: str, name: str) -> bool:
    """Whether that package has a base for it."""
    return name not in _SEVERAL or package in _HALVES["pytorch"]


def home(half: str) -> str:
    """The package that is imported, else the first that is installed. Raises ImportError where there is none."""
    roots = {package: package.partition(".")[0] for package in _HALVES[half]}
    imported = [package for package, root in roots.items() if root in sys.modules]
    found = imported or [package for package, root in roots.items() if importlib.util.find_spec(root) is not None]
    if not found:
        raise ImportError(f"fp8.lightning: found none of {', '.join(roots.values())}: pip install lightning")
    return found[0]


@functools.cache
def made(package: str, name: str) -> Any:
    """The class of that name for "lightning.pytorch", "lightning.fabric", "pytorch_lightning" or "lightning_fabric"."""
    module, behaviour, below, base = _BASES[name]
    does, on = getattr(importlib.import_module(module), behaviour), getattr(importlib.import_module(f"{package}.{below}"), base)
    half = next(half for half, packages in _HALVES.items() if package in packages)
    return type(name, (does, on), {"__doc__": does.__doc__, "__module__": f"fp8.lightning.{half}", "package": package})


def misconfiguration(package: str) -> type[Exception]:
    """Lightning's error for arguments that do not go together."""
    return cast(type[Exception], importlib.import_module(f"{package}.utilities.exceptions").MisconfigurationException)
