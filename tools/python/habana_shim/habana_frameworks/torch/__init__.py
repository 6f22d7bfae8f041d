# SPDX-License-Identifier: Apache-2.0
"""Emulation: `habana_frameworks.torch` and its modules. `hpu` is torch.hpu, `transformer_engine` fp8.te, fused optimizers fp8.optim.

With PT_HPU_LAZY_MODE=1 the thread that imports torch is in lazy mode: mark_step lets what is queued run, add_step_closure waits for the next
one. Without it operators compute when they are called, and what `core` has for lazy mode is accepted and changes nothing, but that mark_step
ends a graph where they are counted (torch.hpu.metrics)."""

import enum
import functools
import os
import typing
import warnings

import torch

import fp8
from fp8 import _trainers

__version__ = fp8.__version__
hpu = torch.hpu
_warned, _closures = False, list[typing.Callable[[], typing.Any]]()


def _is_lazy() -> bool: return bool(torch.classes.fp8_graphs.Metrics.is_lazy())  # of this thread


def _no_lazy_mode(name: str) -> None:
    global _warned
    if not _warned and not _is_lazy():
        _warned = True
        warnings.warn(f"{name}: without PT_HPU_LAZY_MODE=1 there is no lazy mode: operators have computed when they return", stacklevel=3)


def _accept(name: str, model: typing.Any = None, *_: typing.Any, **__: typing.Any) -> typing.Any:
    _no_lazy_mode(name)
    return model if isinstance(model, torch.nn.Module) else None


def _mark_step(device_str: str = "", sync: bool = False) -> None:
    """What is queued runs; with sync, or where closures wait, it has run."""
    _no_lazy_mode("mark_step")
    closures = list(_closures)
    _closures.clear()
    torch.hpu.metrics.mark_step(device_str, sync or bool(closures))
    for closure in closures:
        closure()


def _add_step_closure(closure: typing.Callable[..., typing.Any], args: tuple[typing.Any, ...] = (), **_: typing.Any) -> None:
    """In lazy mode the closure runs at the next mark_step, else now: the step is done."""
    _no_lazy_mode("add_step_closure")
    if _is_lazy():
        _closures.append(lambda: closure(*args))
    else:
        closure(*args)


class _DeviceType(enum.Enum):
    synDeviceGaudi, synDeviceGaudi2, synDeviceGaudi3 = "GAUDI", "GAUDI2", "GAUDI3"


def _initialize_distributed_hpu(world_size: typing.Optional[int] = None, rank: typing.Optional[int] = None,
                                local_rank: typing.Optional[int] = None) -> tuple[int, int, int]:
    """(world_size, rank, local_rank): as given, else of the environment."""
    return (int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size, int(os.environ.get("RANK", 0)) if rank is None else rank,
            int(os.environ.get("LOCAL_RANK", 0)) if local_rank is None else local_rank)


_NAMES = _trainers.NAMES["habana_frameworks"]
# Module: its names, or the module of fp8 that has them.
_MODULES: dict[str, typing.Union[str, dict[str, typing.Any]]] = {
    **{name: {} for name in _NAMES["empty"]}, **_NAMES["modules"],
    "core": {"mark_step": _mark_step, "iter_mark_step": _mark_step, "add_step_closure": _add_step_closure,
             **{name: functools.partial(_accept, name) for name in _NAMES["accepted"]}},
    "utils.experimental": {"synDeviceType": _DeviceType, "_get_device_type": lambda: _DeviceType(torch.hpu.get_device_name())},
    "utils.internal": {"is_lazy": _is_lazy},
    "distributed.hccl": {"initialize_distributed_hpu": _initialize_distributed_hpu}}


for _name, _names in _MODULES.items():
    _trainers.alias(f"{__name__}.{_name}", _names, f"Emulation: {__name__}.{_name}.")
_trainers.put(f"{__name__}.hpu", torch.hpu)
for _name in ("graphs", "memory", "metrics", "random", "streams"):
    _trainers.put(f"{__name__}.hpu.{_name}", getattr(torch.hpu, _name))
