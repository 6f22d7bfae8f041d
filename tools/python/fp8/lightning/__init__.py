# SPDX-License-Identifier: Apache-2.0
"""Lightning on hpu, with the names of lightning-habana: `lightning_habana` -> `fp8.lightning` is the whole change of a script.

Lightning itself knows accelerator="hpu" as soon as it is imported beside this package (_connector.py). The classes here are made on
those of `lightning`, of `pytorch_lightning` or of `lightning_fabric`: of the one that is imported, else the first that is installed."""

import typing

from fp8 import _trainers
from fp8.lightning import _stack

__all__ = list(_stack.NAMES)

# The modules of lightning_habana; each has all names of its half.
_MODULES = {"pytorch": """accelerator strategies strategies.single strategies.parallel strategies.ddp strategies.fsdp strategies.deepspeed plugins
                plugins.precision plugins.fsdp_precision plugins.deepspeed_precision plugins.io_plugin profiler profiler.profiler datamodule
                datamodule.datamodule""", "fabric": "accelerator strategies strategies.single plugins plugins.precision"}

def refused(name: str) -> typing.Callable[..., typing.NoReturn]:
    """What stands where Fabric has no class for several processes."""
    def refuse(*_: typing.Any, **__: typing.Any) -> typing.NoReturn:
        raise NotImplementedError(f"{name}: found a request for several processes, allowed with Fabric on hpu: one device, with "
                                  "SingleHPUStrategy (strategy='hpu_single' or 'auto'); lightning.pytorch has several")
    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def _named(name: str, half: str = "pytorch") -> typing.Any:
    name = {"HPUPrecision": "HPUPrecisionPlugin"}.get(name, name)
    if name in _stack.NAMES:
        home = _stack.home(half)
        return _stack.made(home, name) if _stack.has(home, name) else refused(name)
    raise AttributeError(f"fp8.lightning has no '{name}', allowed: {', '.join(_stack.NAMES)}")


__getattr__ = _named


def aliases(root: str) -> None:
    """The modules of lightning_habana below `root`."""
    for half, modules in _MODULES.items():
        def of(name: str, half: str = half) -> typing.Any:
            return _named(name, half)
        for module in ("", *modules.split()):
            _trainers.alias(f"{root}.{half}.{module}".rstrip("."), of, f"lightning_habana's names for Lightning's half `{half}`, on the emulated hpu")


aliases(__name__)
