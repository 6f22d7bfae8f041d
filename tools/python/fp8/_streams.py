# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the device: torch's own classes. Operators have computed when they return, so nothing waits."""

import typing

import torch

from fp8._devices import Device, index_of

__all__ = ["Stream", "Event", "current_stream", "default_stream", "set_stream", "StreamContext", "stream"]


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
