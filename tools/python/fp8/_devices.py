# SPDX-License-Identifier: Apache-2.0
"""Which device is meant: indices, guards, properties, streams and events of the hpus that the runtime emulates ($FP8_HPU_DEVICES, 1)."""

import contextlib
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


def index_of(device: Device = None) -> int:
    """Of "hpu:1", 1, torch.device("hpu"), None (the current one). Raises AssertionError for any other, as Habana's module does."""
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
    return _library.load()


def is_available() -> bool: return not why_unavailable()
def device_count() -> int: return int(torch._C._accelerator_hooks_device_count()) if is_available() else 0
def current_device() -> int: return index_of()
def set_device(device: Device) -> None: torch._C._accelerator_hooks_set_current_device(index_of(device))  # of this thread


class device(torch.accelerator.device_index):  # noqa: N801: torch's name
    """A context in which that device is this thread's current one; None or -1: nothing happens."""

    def __init__(self, device: Device) -> None:
        super().__init__(None if device is None or device == -1 else index_of(device))


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


def get_device_capability(device: Device = None) -> str: return get_device_name(device)
def can_device_access_peer(device: Device, peer: Device) -> bool: return min(index_of(device), index_of(peer)) >= 0  # the host's memory


def get_device_properties(device: Device = None) -> HpuDeviceProperties:
    return HpuDeviceProperties(get_device_name(device), torch.ops.fp8.memory_stats(index_of(device))["Limit"], os.cpu_count() or 1)


class _OfHpu(type):
    """The type of torch.hpu.Stream and Event: what they make are torch's own objects, which torch's methods ask for. Nothing waits, for
    operators have computed when they return."""

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
        return torch.Event(device=torch.device("hpu", index_of()), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream: return torch.accelerator.current_stream(index_of(device))
def default_stream(device: Device = None) -> torch.Stream: return torch.Stream(device=torch.device("hpu", index_of(device)))
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
