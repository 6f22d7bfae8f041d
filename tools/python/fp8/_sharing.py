# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device in files and in other processes (DataLoader's workers, torch.multiprocessing): they cross as bytes,
converted weights with their scales. What can't cross is refused where somebody hears it."""

import copyreg
import json
import os
import threading
import typing
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing.reductions import reduce_tensor

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def bytes_of(tensor: torch.Tensor) -> tuple[bytes, torch.dtype, tuple[int, ...]]:
    """Memory that the sender may free at once, unlike torch's shared memory."""
    host = tensor.detach().cpu()
    if host.is_conj() or host.is_neg():
        host = host.resolve_conj().resolve_neg()
    return host.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), host.dtype, tuple(host.shape)


def of_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def _to_hpu(memory: tuple[bytes, torch.dtype, tuple[int, ...]], device: str, parameter: bool, requires_grad: bool) -> torch.Tensor:
    tensor = of_bytes(*memory).to(device)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def _raise(message: str) -> typing.NoReturn:
    raise RuntimeError(message)


def _check_pickled(tensor: torch.Tensor) -> None:
    """Raises RuntimeError for a parameter that learns in fp8."""
    tag = json.loads(torch.ops.fp8.tag_of(tensor)) if tensor.device.type == "hpu" and tensor.is_floating_point() else None
    if tag is not None and not tag["holds_codes"] and tag["handler"].startswith("fp8 training"):
        raise RuntimeError(f"weight of {', '.join(map(repr, tag['modules']))}: learns in fp8, and a pickled parameter would go on in high "
                           "precision: save or send the model's state_dict(), and torch.ops.fp8.save_training_state()")


def _pickle_parameter(parameter: torch.nn.Parameter) -> typing.Any:
    """For torch.save and pickle."""
    _check_pickled(parameter)
    return parameter.__reduce_ex__(2)


def send(tensor: torch.Tensor) -> typing.Any:
    """For other processes. Values on the host go torch's own way."""
    if tensor.device.type != "hpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.dtype not in _FLOAT8:
        return reduce_tensor(tensor)
    try:
        return _sent(tensor)
    except Exception as error:
        if threading.current_thread().name != "QueueFeederThread":
            raise
        return _raise, (str(error),)  # in the receiver: nobody waits for the errors of a queue's own thread


def _sent(tensor: torch.Tensor) -> typing.Any:
    on_hpu, parameter = tensor.device.type == "hpu", isinstance(tensor, torch.nn.Parameter)
    if torch.ops.fp8.describe(tensor):
        from fp8 import parameter as coded
        return coded._rebuild, coded.parts(tensor)
    if not on_hpu:
        return reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("found a tensor of a graph, and autograd ends at the process: send tensor.detach()")
    if tensor.layout is not torch.strided:
        raise RuntimeError(f"found a tensor of layout {tensor.layout}, allowed: torch.strided: send tensor.cpu()")
    if parameter:
        _check_pickled(tensor)
    return _to_hpu, (bytes_of(tensor), str(tensor.device), parameter, tensor.requires_grad)


def _go_on_after_fork() -> None:
    """A child of fork has none of the threads that the parent's products ran on, and would wait for them."""
    if torch.get_device_module("hpu").is_initialized():
        torch.set_num_threads(1)


def register() -> None:
    os.register_at_fork(after_in_child=_go_on_after_fork)
    ForkingPickler.register(torch.Tensor, send)
    ForkingPickler.register(torch.nn.Parameter, send)
    copyreg.pickle(torch.nn.Parameter, _pickle_parameter)  # type: ignore[arg-type]
