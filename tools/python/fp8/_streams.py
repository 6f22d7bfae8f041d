# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the device: torch's own classes. Operators have computed when they return, so nothing waits."""

import typing

import torch

Device = typing.Union[torch.device, str, int, None]


class Stream(torch.Stream):
    """device, priority: as of torch.cuda.Stream; work on all streams is done in the order of the calls."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: typing.Any) -> "Stream":
        from fp8 import hpu
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("hpu", hpu._index(device)), priority=priority)


class Event(torch.Event):
    """enable_timing: elapsed_time() is in milliseconds."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        if interprocess:
            raise ValueError("interprocess: found True, allowed: False: events of this device stay in their process")
        return super().__new__(cls, device="hpu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    from fp8 import hpu
    return torch.accelerator.current_stream(hpu._index(device))


def default_stream(device: Device = None) -> torch.Stream:
    from fp8 import hpu
    return torch.Stream(stream_id=0, device_index=hpu._index(device), device_type=torch.device("hpu").type_index) if False else current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


class StreamContext:
    """The stream is the current one inside; None: nothing happens."""

    def __init__(self, stream: typing.Optional[torch.Stream]) -> None:
        self.stream = stream

    def __enter__(self) -> typing.Optional[torch.Stream]:
        self.before = current_stream()
        if self.stream is not None:
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        set_stream(self.before)


def stream(stream: typing.Optional[torch.Stream]) -> StreamContext:
    return StreamContext(stream)
