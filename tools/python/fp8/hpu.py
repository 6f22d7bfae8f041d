# SPDX-License-Identifier: Apache-2.0
"""The module `torch.hpu`: emulated devices ($FP8_HPU_DEVICES, 1), in the host's memory, that compute when they are called.

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

from fp8 import _library
from fp8 import graphs as graphs
from fp8 import metrics as metrics
from fp8.graphs import *  # noqa: F403

Device = typing.Union[torch.device, str, int, None]
OutOfMemoryError = torch.OutOfMemoryError
setDeterministic: typing.Callable[[bool], None] = torch.use_deterministic_algorithms  # noqa: N816: Habana's names
getDeterministic: typing.Callable[[], bool] = torch.are_deterministic_algorithms_enabled  # noqa: N816
_exchange_device, _maybe_exchange_device = torch._C._accelerator_exchangeDevice, torch._C._accelerator_maybeExchangeDevice
memory: typing.Any = sys.modules[__name__]
random: typing.Any = memory
streams: typing.Any = memory
_initialized = False
_began = threading.Lock()


def _begin() -> None:
    """What a process that uses the device sets once."""
    sys.modules.update({"torch.hpu.memory": memory, "torch.hpu.random": random, "torch.hpu.streams": streams, "torch.hpu.graphs": graphs,
                        "torch.hpu.metrics": metrics})
    if not is_available() or not _began.acquire(blocking=False):
        return
    # A thread of backward that is not done when Python ends aborts it, and one that never began is waited for.
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    from fp8 import _autoload, parameter
    parameter.register()
    _autoload.refuse_inductor()
    import torch.distributed as dist
    if dist.is_available() and dist.is_gloo_available() and "hccl" not in dist.Backend.backend_list:  # and the default of hpu
        dist.Backend.register_backend("hccl", dist.ProcessGroupGloo, devices=["cpu", "hpu"])


def _lazy_init() -> None:
    """What torch calls before the device's first tensor. Raises RuntimeError with the reason of why_unavailable()."""
    _library.require()
    global _initialized
    _initialized = True


class HpuDeviceProperties(typing.NamedTuple):
    """name: of the generation that is emulated; total_memory: bytes; multi_processor_count: cores of the host."""
    name: str
    total_memory: int
    multi_processor_count: int


def _get_device_index(device: Device = None) -> int:
    """Of "hpu:1", 1, torch.device("hpu"), None (the current one). Raises AssertionError for any other, as Habana's module does."""
    _library.require()
    count = device_count()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type != "hpu":
        raise AssertionError(f"Invalid device: found {device}, allowed: hpu")
    index = device.index if isinstance(device, torch.device) else device
    if index is None or (index == -1 and not isinstance(index, bool)):
        return int(torch._C._accelerator_hooks_get_current_device())
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise AssertionError(f"Invalid device id: found {index!r}, allowed: 0 to {count - 1}")
    return index


def why_unavailable() -> str:
    """The reason in a sentence, with the line that mends it; "" where the device is available."""
    return _library.load()


def is_available() -> bool: return not why_unavailable()
def device_count() -> int: return int(torch._C._accelerator_hooks_device_count()) if is_available() else 0
def current_device() -> int: return _get_device_index()
def set_device(device: Device) -> None: torch._C._accelerator_hooks_set_current_device(_get_device_index(device))  # of this thread


class device(torch.accelerator.device_index):  # noqa: N801: torch's name
    """A context in which that device is this thread's current one; None or -1: nothing happens."""

    def __init__(self, device: Device) -> None:
        super().__init__(None if device is None or device == -1 else _get_device_index(device))


class device_of(device):  # noqa: N801
    """The device of a tensor; nothing for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "hpu" else None)


def get_device_name(device: Device = None) -> str:
    """"GAUDI", "GAUDI2" or "GAUDI3": 448 is 448 in E4M3 of the third generation, 240 in that of the second, and the first has no
    fp8. Raises RuntimeError for another value of FP8_HPU_DEVICE."""
    _get_device_index(device)
    return str(torch.ops.fp8.device_name())


def get_device_capability(device: Device = None) -> str: return get_device_name(device)
def can_device_access_peer(device: Device, peer: Device) -> bool: return min(map(_get_device_index, (device, peer))) >= 0  # the host's memory


def get_device_properties(device: Device = None) -> HpuDeviceProperties:
    return HpuDeviceProperties(get_device_name(device), torch.ops.fp8.memory_stats(_get_device_index(device))["Limit"], os.cpu_count() or 1)


class _OfHpu(type):
    """The type of torch.hpu.Stream and Event: what they make are torch's own objects, which torch's methods ask for. Nothing waits, for
    operators have computed when they return (in lazy mode, when somebody reads)."""

    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, cls.__mro__[1]) and typing.cast(torch.Stream, found).device.type == "hpu"


class Stream(torch.Stream, metaclass=_OfHpu):
    """device, priority: as of torch.cuda.Stream; work on all streams is done in the order of the calls."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: typing.Any) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream(**kwargs) if kwargs else torch.Stream(device=torch.device("hpu", _get_device_index(device)), priority=priority)


class Event(torch.Event, metaclass=_OfHpu):
    """enable_timing: elapsed_time() is in milliseconds. Raises ValueError for interprocess."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        if interprocess:
            raise ValueError("interprocess: found True, allowed: False: events of this device stay in their process")
        return torch.Event(device=torch.device("hpu", _get_device_index()), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream: return torch.accelerator.current_stream(_get_device_index(device))
def default_stream(device: Device = None) -> torch.Stream: return torch.Stream(device=torch.device("hpu", _get_device_index(device)))
def set_stream(stream: torch.Stream) -> None: torch.accelerator.set_stream(stream)  # and its device


@contextlib.contextmanager
def stream(stream: typing.Optional[torch.Stream]) -> typing.Iterator[typing.Optional[torch.Stream]]:
    """The stream, and its device, are the current ones inside; None: nothing happens."""
    before = current_stream()
    if stream is not None:
        set_stream(stream)
    try:
        yield stream
    finally:
        set_stream(before)


StreamContext = stream


# Memory is the host's, and operators have computed when somebody reads: what torch and Habana's programs ask of such a device.
def is_initialized() -> bool: return _initialized
def _is_compiled() -> bool: return True
def _is_in_bad_fork() -> bool: return False  # a child of fork goes on with its own copy of the memory, on one thread
def _lazy_call(callable: typing.Callable[[], typing.Any], **_: typing.Any) -> None: callable()  # noqa: A002: torch's name
def synchronize(device: Device = None) -> None: _get_device_index(device)
def utilization(device: Device = None) -> int: return 0 * _get_device_index(device)  # nothing computes while Python asks
def empty_cache() -> None: torch.ops.fp8.empty_cache()  # memory of large tensors that is kept for the next of their size
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
