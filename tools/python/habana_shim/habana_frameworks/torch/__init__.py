# SPDX-License-Identifier: Apache-2.0
"""Emulation: `habana_frameworks.torch` and its modules. `hpu` is torch.hpu, `transformer_engine` fp8.te, fused optimizers fp8.optim.

The emulated device has no lazy mode: operators compute when they are called, and what `core` has for it is accepted and changes nothing,
but that mark_step ends a graph where they are counted (torch.hpu.metrics)."""

import enum
import os
import typing
import warnings

import torch

import fp8
from fp8 import _alias

__version__ = fp8.__version__
hpu = torch.hpu
_warned = False


def _no_lazy_mode(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{name}: the emulated hpu has no lazy mode: operators have computed when they return", stacklevel=3)


def _accepted(name: str) -> typing.Callable[..., typing.Any]:
    def accept(model: typing.Any = None, *_: typing.Any, **__: typing.Any) -> typing.Any:
        _no_lazy_mode(name)
        if name.endswith("mark_step"):
            torch.hpu.metrics.mark_step()
        return model if isinstance(model, torch.nn.Module) else None
    accept.__name__ = accept.__qualname__ = name
    return accept


def _add_step_closure(closure: typing.Callable[..., typing.Any], args: tuple[typing.Any, ...] = (), **_: typing.Any) -> None:
    """The step is done: the closure runs now."""
    _no_lazy_mode("add_step_closure")
    closure(*args)


class _DeviceType(enum.Enum):
    synDeviceGaudi, synDeviceGaudi2, synDeviceGaudi3 = "GAUDI", "GAUDI2", "GAUDI3"


def _initialize_distributed_hpu(world_size: typing.Optional[int] = None, rank: typing.Optional[int] = None,
                                local_rank: typing.Optional[int] = None) -> tuple[int, int, int]:
    """(world_size, rank, local_rank): as given, else of the environment."""
    return (int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size, int(os.environ.get("RANK", 0)) if rank is None else rank,
            int(os.environ.get("LOCAL_RANK", 0)) if local_rank is None else local_rank)


_CORE = """mark_step iter_mark_step hpu_set_env hpu_reset_env hpu_initialize hpu_set_inference_env hpu_inference_set_env hpu_inference_initialize
    hpu_teardown_inference_env"""
# Module: its names, or the module of fp8 that has them.
_MODULES: dict[str, typing.Union[str, dict[str, typing.Any]]] = {
    "core": {**{name: _accepted(name) for name in _CORE.split()}, "add_step_closure": _add_step_closure},
    "hpex": {},
    "hpex.experimental": {},
    "hpex.experimental.transformer_engine": "fp8.te",
    "hpex.experimental.transformer_engine.recipe": "fp8.te.recipe",
    "hpex.optimizers": "fp8.optim",
    "hpex.normalization": "fp8.optim",
    "utils": {},
    "utils.experimental": {"synDeviceType": _DeviceType, "_get_device_type": lambda: _DeviceType(torch.hpu.get_device_name())},
    "utils.internal": {"is_lazy": lambda: False},
    "distributed": {},
    "distributed.hccl": {"initialize_distributed_hpu": _initialize_distributed_hpu},
}


def _found_in(module: str, names: dict[str, typing.Any]) -> typing.Callable[[str], typing.Any]:
    def of(name: str) -> typing.Any:
        if name not in names:
            raise AttributeError(f"{module} is emulated and has no '{name}', allowed: {', '.join(names)}")
        return names[name]
    return of


for _name, _names in _MODULES.items():
    _path = f"{__name__}.{_name}"
    _alias.alias(_path, _alias.names_of(_names) if isinstance(_names, str) else _found_in(_path, _names), f"Emulation: {_path}.")
_alias.put(f"{__name__}.hpu", torch.hpu)
for _name in ("graphs", "memory", "metrics", "random", "streams"):
    _alias.put(f"{__name__}.hpu.{_name}", getattr(torch.hpu, _name))
