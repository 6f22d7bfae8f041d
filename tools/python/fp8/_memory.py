# SPDX-License-Identifier: Apache-2.0
"""Memory of the device in bytes: what torch.hpu has of it. Each raises RuntimeError where the device is not available."""

import json
import typing
import warnings

import torch

from fp8._devices import Device
from fp8._devices import index_of as _index

__all__ = ["memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
           "max_memory_cached", "memory_usage", "mem_get_info", "memory_summary", "memory_snapshot", "reset_peak_memory_stats",
           "reset_max_memory_allocated", "reset_accumulated_memory_stats"]


def memory_stats(device: Device = None) -> dict[str, int]:
    """Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs, MaxAllocSize, TotalSystemAllocs, TotalSystemFrees and
    TotalActiveAllocs."""
    return dict(torch.ops.fp8.memory_stats(_index(device)))


def memory_allocated(device: Device = None) -> int:
    return memory_stats(device)["InUse"]


def max_memory_allocated(device: Device = None) -> int:
    return memory_stats(device)["MaxInUse"]


def memory_reserved(device: Device = None) -> int:
    """The limit: memory is not set aside."""
    return memory_stats(device)["Limit"]


max_memory_reserved = memory_reserved


def memory_cached(device: Device = None) -> int:
    """The old name of memory_reserved()."""
    warnings.warn("torch.hpu.memory_cached has been renamed to torch.hpu.memory_reserved", FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """The old name of max_memory_reserved()."""
    warnings.warn("torch.hpu.max_memory_cached has been renamed to torch.hpu.max_memory_reserved", FutureWarning, stacklevel=2)
    return max_memory_reserved(device)


def memory_usage(device: Device = None) -> float:
    """The share of the limit that is in use, in percent."""
    stats = memory_stats(device)
    return 100 * stats["InUse"] / max(stats["Limit"], 1)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total)"""
    stats = memory_stats(device)
    return stats["Limit"] - stats["InUse"], stats["Limit"]


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    del abbreviated
    return str(torch.ops.fp8.memory_summary(_index(device)))


def memory_snapshot(device: Device = None) -> dict[str, typing.Any]:
    """Blocks in use, and who made them: {"in_use": bytes, "blocks": [{"address", "bytes", "op", "module", "phase"}, ...]}."""
    return typing.cast(dict[str, typing.Any], json.loads(torch.ops.fp8.memory_snapshot(_index(device))))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.ops.fp8.reset_peak_memory_stats(_index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.ops.fp8.reset_accumulated_memory_stats(_index(device))
