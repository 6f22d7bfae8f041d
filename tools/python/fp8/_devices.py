# SPDX-License-Identifier: Apache-2.0
"""Which device is meant: indices, guards, properties, streams and events of the hpus that the runtime emulates ($FP8_HPU_DEVICES, 1)."""

import os
import typing

import torch

from fp8 import _library

__all__ = ["HpuDeviceProperties", "why_unavailable", "is_available", "device_count", "current_device", "set_device", "device", "device_of",
           "get_device_name", "get_device_capability", "get_device_properties", "can_device_access_peer",
           "Stream", "Event", "current_stream", "default_stream", "set_stream", "StreamContext", "stream"]

Device = typing.Union[torch.device, str, int, None]


class HpuDeviceProperties(typing.NamedTuple):
    """name: of the generation that is emulated; total_memory: bytes; multi_processor_count: cores of the host."""
    name: str
    total_memory: int
    multi_processor_count: int


def index_of(device: Device) -> int:
    """Of "hpu:1", 1, torch.device("hpu"), None (the current one). Raises AssertionError for any other, as Habana's module
    does, RuntimeError where the library is not available."""
    count = device_count()
    if not count:
        raise RuntimeError(f"the hpu device is not available: {why_unavailable()}")
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
    reason = _library.load()
    if not reason:
        try:
            torch._C._accelerator_hooks_device_count()
        except RuntimeError as error:  # FP8_HPU_DEVICES
            reason = str(error).strip().splitlines()[0]
    return reason


def is_available() -> bool:
    """True where the library fits this process's torch; `why_unavailable()` says why it does not."""
    return not why_unavailable()


def device_count() -> int:
    """How many hpus the runtime emulates; 0 where the device is not available."""
    return int(torch._C._accelerator_hooks_device_count()) if is_available() else 0


def current_device() -> int:
    return index_of(None)


def set_device(device: Device) -> None:
    """Of this thread."""
    torch._C._accelerator_hooks_set_current_device(index_of(device))


def _exchange_device(device: int) -> int:
    """Returns the device that was the current one; -1: nothing changes."""
    return -1 if device < 0 else int(torch._C._accelerator_hooks_exchange_device(index_of(device)))


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801: torch's name
    """A context in which that device is this thread's current one; None or -1: nothing happens."""

    def __init__(self, device: Device) -> None:
        self.idx: int = -1 if device is None or device == -1 else index_of(device)
        self.prev_idx: int = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> typing.Literal[False]:
        _exchange_device(self.prev_idx)
        return False


class device_of(device):  # noqa: N801
    """The device of a tensor; nothing for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "hpu" else None)


def get_device_name(device: Device = None) -> str:
    """"GAUDI", "GAUDI2" or "GAUDI3": as the runtime casts. 448 is 448 in E4M3 of the third generation, 240 in that of the
    second, and the first has no fp8. Raises RuntimeError for another value of FP8_HPU_DEVICE."""
    number = torch.full((1,), 448.0, device=torch.device("hpu", index_of(device)))
    try:
        largest = torch.ops.hpu.cast_to_fp8_v2(number, None, False, False, torch.float8_e4m3fn)[0]
    except RuntimeError as error:
        if "not supported on GAUDI," not in str(error):
            raise
        return "GAUDI"
    return "GAUDI3" if largest.cpu().float().item() == 448 else "GAUDI2"


def get_device_capability(device: Device = None) -> str:
    return get_device_name(device)


def get_device_properties(device: Device = None) -> HpuDeviceProperties:
    from fp8._memory import mem_get_info
    return HpuDeviceProperties(get_device_name(device), mem_get_info(device)[1], os.cpu_count() or 1)


def can_device_access_peer(device: Device, peer: Device) -> bool:
    """Their memory is the host's."""
    return index_of(device) >= 0 and index_of(peer) >= 0


# Operators have computed when they return, so nothing waits: streams and events are torch's own.


class _OfHpu(type):
    """The type of torch.hpu.Stream and Event: what they make are torch's own objects, which torch's methods ask for."""

    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, cls.__mro__[1]) and typing.cast(torch.Stream, found).device.type == "hpu"


class Stream(torch.Stream, metaclass=_OfHpu):
    """device, priority: as of torch.cuda.Stream; work on all streams is done in the order of the calls."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: typing.Any) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream(**kwargs) if kwargs else torch.Stream(device=torch.device("hpu", index_of(device)), priority=priority)


class Event(torch.Event, metaclass=_OfHpu):
    """enable_timing: elapsed_time() is in milliseconds. Raises ValueError for interprocess."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        if interprocess:
            raise ValueError("interprocess: found True, allowed: False: events of this device stay in their process")
        return torch.Event(device=torch.device("hpu", index_of(None)), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that current_stream() gives where none is set: each device has one."""
    return torch.Stream(device=torch.device("hpu", index_of(device)))


def set_stream(stream: torch.Stream) -> None:
    """Its device becomes the current one, too."""
    torch.accelerator.set_stream(stream)


class StreamContext:
    """The stream, and its device, are the current ones inside; None: nothing happens."""

    def __init__(self, stream: typing.Optional[torch.Stream]) -> None:
        self.stream: typing.Optional[torch.Stream] = stream

    def __enter__(self) -> typing.Optional[torch.Stream]:
        self.before: torch.Stream = current_stream()
        if self.stream is not None:
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        set_stream(self.before)


def stream(stream: typing.Optional[torch.Stream]) -> StreamContext:
    return StreamContext(stream)
