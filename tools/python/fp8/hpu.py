# SPDX-License-Identifier: Apache-2.0
"""The module `torch.hpu`: emulated devices, in the host's memory, that compute when they are called.

Its names are those of torch's own device modules and of Habana's. Memory is in bytes, as the runtime counts it."""

import contextlib
import os
import sys
import threading
import typing

import torch

from fp8 import _devices as streams
from fp8 import _library
from fp8 import _memory as memory
from fp8 import _random as random
from fp8._devices import *  # noqa: F403: their __all__
from fp8._devices import Device, _exchange_device, _maybe_exchange_device, device_count, get_device_name, is_available  # noqa: F401: torch asks for some
from fp8._devices import index_of as _get_device_index
from fp8._memory import *  # noqa: F403
from fp8._random import *  # noqa: F403

OutOfMemoryError = torch.OutOfMemoryError


def _lazy_init() -> None:
    """What torch calls before the device's first tensor. Raises RuntimeError with the reason of why_unavailable()."""
    _library.require()
    global _initialized
    _initialized = True


init = _lazy_init
_initialized = False


def is_initialized() -> bool:
    return _initialized


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    """Never: the device's memory is the host's, and a child of fork goes on with its own copy, on one thread."""
    return False


def _lazy_call(callable: typing.Callable[[], typing.Any], **_: typing.Any) -> None:  # noqa: A002: torch's name
    callable()


def synchronize(device: Device = None) -> None:
    """Returns at once: an operator has computed when it returns."""
    _get_device_index(device)


def utilization(device: Device = None) -> int:
    """0: nothing computes while Python asks."""
    _get_device_index(device)
    return 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    del including_emulation
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """float16 from the second generation on."""
    return [torch.bfloat16, torch.float32] if is_available() and get_device_name() == "GAUDI" else [torch.bfloat16, torch.float16, torch.float32]


def empty_cache() -> None:
    """Nothing is cached: freed memory is the host's again."""


def ipc_collect() -> None:
    """Nothing is kept for other processes: tensors cross to them as copies in the host's memory."""


def get_arch_list() -> list[str]:
    return [get_device_name()] if is_available() else []


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


_GRAPHS = frozenset("""HPUGraph graph graphs graph_pool_handle make_graphed_callables wrap_in_hpu_graph wrap_in_hpu_graph_func ModuleCacher
    is_current_stream_capturing CachedParams""".split())
_LAZY_MODE = frozenset("""enable_dynamic_shape disable_dynamic_shape get_dynamic_shape_status enable_inference_mode disable_inference_mode
    enable_optim_output_sif disable_optim_output_sif enable_quantization disable_quantization enable_matmul3d_2d_reshape disable_matmul3d_2d_reshape
    enable_const_section_serialization disable_const_section_serialization get_sync_debug_mode set_sync_debug_mode enable_recompute_sdp
    recompute_sdp_enabled""".split())


def __getattr__(name: str) -> typing.Any:
    if name in _GRAPHS:
        raise AttributeError(f"torch.hpu.{name}: the emulated device has no graphs; call the module itself")
    if name in _LAZY_MODE:
        raise AttributeError(f"torch.hpu.{name}: a setting of Habana's lazy mode or graph compiler, and the emulated device has neither; leave it out")
    raise AttributeError(f"module 'torch.hpu' has no attribute '{name}'")


_began = threading.Lock()


def _begin() -> None:
    """What a process that uses the device sets once."""
    for name, module in (("memory", memory), ("random", random), ("streams", streams)):
        sys.modules["torch.hpu." + name] = module
    if not is_available() or not _began.acquire(blocking=False):
        return
    # A thread of backward that is not done when Python ends aborts it, and one that never began is waited for.
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    from fp8 import _compile, _sharing
    _sharing.register()
    _compile.refuse_inductor()
    _register_hccl()


def _register_hccl() -> None:
    """torch.distributed's backend "hccl": Gloo, on hpu and on the CPU, and the default one of hpu."""
    import torch.distributed as dist
    if dist.is_available() and "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _hccl, devices=["cpu", "hpu"])


def _hccl(store: typing.Any, rank: int, size: int, timeout: typing.Any) -> typing.Any:
    from torch.distributed import ProcessGroupGloo
    return ProcessGroupGloo(store, rank, size, timeout=timeout)
