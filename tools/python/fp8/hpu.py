# SPDX-License-Identifier: Apache-2.0
"""The module `torch.hpu`: one emulated device, in the host's memory, that computes when it is called.

Its names are those of torch's own device modules and of Habana's. Memory is in bytes, as the runtime counts it."""

import contextlib
import os
import threading
import typing

import torch

from fp8 import _library
from fp8._memory import (
    max_memory_allocated as max_memory_allocated,
    max_memory_reserved as max_memory_reserved,
    mem_get_info as mem_get_info,
    memory_allocated as memory_allocated,
    memory_reserved as memory_reserved,
    memory_stats as memory_stats,
    memory_summary as memory_summary,
    memory_usage as memory_usage,
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
    reset_peak_memory_stats as reset_peak_memory_stats,
)
from fp8._random import (
    get_rng_state as get_rng_state,
    get_rng_state_all as get_rng_state_all,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    manual_seed_all as manual_seed_all,
    seed as seed,
    seed_all as seed_all,
    set_rng_state as set_rng_state,
    set_rng_state_all as set_rng_state_all,
)
from fp8._streams import (
    Event as Event,
    Stream as Stream,
    StreamContext as StreamContext,
    current_stream as current_stream,
    default_stream as default_stream,
    set_stream as set_stream,
    stream as stream,
)

Device = typing.Union[torch.device, str, int, None]


class HpuDeviceProperties(typing.NamedTuple):
    """name: of the generation that is emulated; total_memory: bytes; multi_processor_count: cores of the host."""
    name: str
    total_memory: int
    multi_processor_count: int


def is_available() -> bool:
    """True where the library fits this process's torch; `why_unavailable()` says why it does not."""
    return not _library.load()


def why_unavailable() -> str:
    """The reason in a sentence, with the line that mends it; "" where the device is available."""
    return _library.load()


def device_count() -> int:
    return 1 if is_available() else 0


def _lazy_init() -> None:
    """What torch calls before the device's first tensor. Raises RuntimeError with the reason of why_unavailable()."""
    if _is_in_bad_fork():
        raise RuntimeError("the hpu device was used before this process was forked; start processes with the 'spawn' method")
    _library.require()
    global _initialized
    _initialized = True


init = _lazy_init
_initialized = False


def is_initialized() -> bool:
    return _initialized


def _is_in_bad_fork() -> bool:
    """Never: the device's memory is the host's, and a child of fork goes on with its own copy."""
    return False


def _index(device: Device) -> int:
    """Raises AssertionError for another device than hpu and hpu:0, as Habana's module does."""
    if device is None:
        return 0
    index = device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "hpu":
            raise AssertionError(f"Invalid device: found {device}, allowed: hpu, hpu:0")
        index = device.index or 0
    if index not in (0, -1):
        raise AssertionError(f"Invalid device id: found {index}, allowed: 0")
    return 0


def current_device() -> int:
    _lazy_init()
    return 0


def set_device(device: Device) -> None:
    _index(device)


class device:  # noqa: N801: torch's name
    """A context in which that device is the current one: there is one."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> bool:
        return False


class device_of(device):  # noqa: N801
    """The device of a tensor; nothing for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "hpu" else None)


def _exchange_device(device: int) -> int:
    return _index(device)


def _maybe_exchange_device(device: int) -> int:
    return _index(device)


def get_device_name(device: Device = None) -> str:
    """"GAUDI2" or "GAUDI3": of FP8_HPU_DEVICE, else what the runtime emulates by default."""
    _index(device)
    return os.environ.get("FP8_HPU_DEVICE", "gaudi3").upper() if is_available() else ""


def get_device_capability(device: Device = None) -> str:
    return get_device_name(device)


def get_device_properties(device: Device = None) -> HpuDeviceProperties:
    return HpuDeviceProperties(get_device_name(device), mem_get_info(device)[1], os.cpu_count() or 1)


def can_device_access_peer(device: Device, peer: Device) -> bool:
    return _index(device) == _index(peer)


def synchronize(device: Device = None) -> None:
    """Returns at once: an operator has computed when it returns."""
    _index(device)


def utilization(device: Device = None) -> int:
    """0: nothing computes while Python asks."""
    return _index(device)


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16, torch.float32]


def empty_cache() -> None:
    """Nothing is cached: freed memory is the host's again."""


def ipc_collect() -> None:
    """Nothing is kept for other processes: tensors cross to them as copies in the host's memory."""


def get_arch_list() -> list[str]:
    return [get_device_name()]


def get_gencode_flags() -> str:
    return ""


def setDeterministic(val: bool) -> None:  # noqa: N802: Habana's name
    torch.use_deterministic_algorithms(val)


def getDeterministic() -> bool:  # noqa: N802
    return torch.are_deterministic_algorithms_enabled()


@contextlib.contextmanager
def sdp_kernel(enable_recompute: bool = True) -> typing.Iterator[None]:
    """Recomputation of attention is the runtime's own choice; the context changes nothing."""
    del enable_recompute
    yield


_REFUSED = ("HPUGraph", "graph", "graphs", "make_graphed_callables", "wrap_in_hpu_graph", "wrap_in_hpu_graph_func", "ModuleCacher",
            "is_current_stream_capturing", "disable_dynamic_shape", "enable_dynamic_shape", "enable_inference_mode", "disable_inference_mode")


def __getattr__(name: str) -> typing.Any:
    if name in _REFUSED:
        raise AttributeError(f"torch.hpu.{name}: the emulated device has no graphs and no lazy mode; call the module itself")
    raise AttributeError(f"module 'torch.hpu' has no attribute '{name}'")


_began = threading.Lock()


def _begin() -> None:
    """What a process that uses the device sets once."""
    if not is_available() or not _began.acquire(blocking=False):
        return
    # A thread of backward that is not done when Python ends aborts it, and one that never began is waited for.
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    from fp8 import _compile, _sharing
    _sharing.register()
    _compile.refuse_inductor()
