# SPDX-License-Identifier: Apache-2.0
"""The module `torch.hpu`: emulated devices, in the host's memory, that compute when they are called.

Its names are those of torch's own device modules and of Habana's. Memory is in bytes, as the runtime counts it; random numbers
are the CPU's. What takes a device raises RuntimeError where hpu is not available."""

import contextlib
import json
import os
import sys
import threading
import typing
import warnings

import torch

from fp8 import _devices as streams
from fp8 import _library
from fp8 import graphs as graphs
from fp8._devices import *  # noqa: F403: its __all__
from fp8._devices import Device, device_count, get_device_name, is_available
from fp8._devices import index_of as _get_device_index
from fp8.graphs import *  # noqa: F403

OutOfMemoryError = torch.OutOfMemoryError
setDeterministic: typing.Callable[[bool], None] = torch.use_deterministic_algorithms  # noqa: N816: Habana's names
getDeterministic: typing.Callable[[], bool] = torch.are_deterministic_algorithms_enabled  # noqa: N816
_exchange_device, _maybe_exchange_device = torch._C._accelerator_exchangeDevice, torch._C._accelerator_maybeExchangeDevice
memory: typing.Any = sys.modules[__name__]
random: typing.Any = memory
_initialized = False
_began = threading.Lock()


def _begin() -> None:
    """What a process that uses the device sets once."""
    sys.modules.update({"torch.hpu.memory": memory, "torch.hpu.random": random, "torch.hpu.streams": streams, "torch.hpu.graphs": graphs})
    if not is_available() or not _began.acquire(blocking=False):
        return
    # A thread of backward that is not done when Python ends aborts it, and one that never began is waited for.
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    from fp8 import _autoload, _sharing
    _sharing.register()
    _autoload.refuse_inductor()
    import torch.distributed as dist
    if dist.is_available() and dist.is_gloo_available() and "hccl" not in dist.Backend.backend_list:  # and the default of hpu
        dist.Backend.register_backend("hccl", dist.ProcessGroupGloo, devices=["cpu", "hpu"])


def _lazy_init() -> None:
    """What torch calls before the device's first tensor. Raises RuntimeError with the reason of why_unavailable()."""
    _library.require()
    global _initialized
    _initialized = True


# Memory is the host's, and operators have computed when they return: what torch and Habana's programs ask of such a device.
def is_initialized() -> bool: return _initialized
def _is_compiled() -> bool: return True
def _is_in_bad_fork() -> bool: return False  # a child of fork goes on with its own copy of the memory, on one thread
def _lazy_call(callable: typing.Callable[[], typing.Any], **_: typing.Any) -> None: callable()  # noqa: A002: torch's name
def synchronize(device: Device = None) -> None: _get_device_index(device)
def utilization(device: Device = None) -> int: return 0 * _get_device_index(device)  # nothing computes while Python asks
def empty_cache() -> None: """Nothing is cached: freed memory is the host's again."""
def ipc_collect() -> None: """Nothing is kept for other processes: tensors cross to them as copies."""
def is_bf16_supported(including_emulation: bool = True) -> bool: return True
def get_arch_list() -> list[str]: return [get_device_name()] if is_available() else []
def get_gencode_flags() -> str: return ""
init = _lazy_init


def get_amp_supported_dtype() -> list[torch.dtype]:
    """float16 from the second generation on."""
    return [torch.bfloat16, torch.float32] if get_arch_list() == ["GAUDI"] else [torch.bfloat16, torch.float16, torch.float32]


def sdp_kernel(enable_recompute: bool = True) -> typing.ContextManager[None]:
    """Recomputation of attention is the runtime's own choice; the context changes nothing."""
    return contextlib.nullcontext()


def memory_stats(device: Device = None) -> dict[str, int]:
    """Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs, MaxAllocSize, TotalSystemAllocs, TotalSystemFrees, TotalActiveAllocs."""
    return dict(torch.ops.fp8.memory_stats(_get_device_index(device)))


def memory_allocated(device: Device = None) -> int: return memory_stats(device)["InUse"]
def max_memory_allocated(device: Device = None) -> int: return memory_stats(device)["MaxInUse"]
def memory_reserved(device: Device = None) -> int: return memory_stats(device)["Limit"]  # memory is not set aside
def reset_peak_memory_stats(device: Device = None) -> None: torch.ops.fp8.reset_peak_memory_stats(_get_device_index(device))
def reset_accumulated_memory_stats(device: Device = None) -> None: torch.ops.fp8.reset_accumulated_memory_stats(_get_device_index(device))
def memory_summary(device: Device = None, abbreviated: bool = False) -> str: return str(torch.ops.fp8.memory_summary(_get_device_index(device)))
max_memory_reserved = memory_reserved
reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total)"""
    stats = memory_stats(device)
    return stats["Limit"] - stats["InUse"], stats["Limit"]


def memory_usage(device: Device = None) -> float:
    """The share of the limit that is in use, in percent."""
    free, total = mem_get_info(device)
    return 100 * (total - free) / max(total, 1)


def memory_snapshot(device: Device = None) -> dict[str, typing.Any]:
    """Blocks in use, and who made them: {"in_use": bytes, "blocks": [{"address", "bytes", "op", "module", "phase"}, ...]}."""
    return typing.cast(dict[str, typing.Any], json.loads(torch.ops.fp8.memory_snapshot(_get_device_index(device))))


def memory_cached(device: Device = None) -> int:
    warnings.warn("torch.hpu.memory_cached and max_memory_cached are memory_reserved and max_memory_reserved now", FutureWarning, stacklevel=2)
    return memory_reserved(device)


max_memory_cached = memory_cached


def get_rng_state(device: Device = "hpu") -> torch.Tensor:
    _get_device_index(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "hpu") -> None:
    _get_device_index(device)
    torch.set_rng_state(new_state)


def set_rng_state_all(new_states: typing.Sequence[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def get_rng_state_all() -> list[torch.Tensor]: return [get_rng_state(index) for index in range(device_count())]
def manual_seed(seed: int) -> None: torch.default_generator.manual_seed(int(seed))  # torch.manual_seed() comes here, too
def seed() -> int: return torch.default_generator.seed()
def initial_seed() -> int: return torch.default_generator.initial_seed()
def set_rng_ctx(name: str) -> None: """What DTensor calls around its own random numbers: the state is the one that it is."""
manual_seed_all = manual_seed
seed_all = seed
unset_rng_ctx = set_rng_ctx


_ABSENT = {
    "the emulated device's graphs have no memory of their own; leave it out": "graph_pool_handle CachedParams",
    "a setting of Habana's lazy mode or graph compiler, and the emulated device has neither; leave it out": """get_dynamic_shape_status
        enable_dynamic_shape disable_dynamic_shape enable_inference_mode disable_inference_mode enable_optim_output_sif disable_optim_output_sif
        enable_quantization disable_quantization enable_matmul3d_2d_reshape disable_matmul3d_2d_reshape enable_const_section_serialization
        disable_const_section_serialization get_sync_debug_mode set_sync_debug_mode enable_recompute_sdp recompute_sdp_enabled"""}


def __getattr__(name: str) -> typing.Any:
    why = next((why for why, names in _ABSENT.items() if name in names.split()), "")
    raise AttributeError(f"torch.hpu.{name}: {why}" if why else f"module 'torch.hpu' has no attribute '{name}'")
