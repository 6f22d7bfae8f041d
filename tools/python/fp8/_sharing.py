# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device in other processes (DataLoader's workers, torch.multiprocessing): they cross as host memory."""

import typing
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing.reductions import reduce_tensor


def _to_hpu(host: torch.Tensor, kind: type, requires_grad: bool) -> torch.Tensor:
    tensor = host.to("hpu")
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor) -> tuple[typing.Any, ...]:
    """Raises RuntimeError, in the process that sends, for a converted weight: its codes would arrive without a scale."""
    if tensor.device.type != "hpu":
        return reduce_tensor(tensor)
    described = torch.ops.fp8.describe(tensor)
    if described:
        raise RuntimeError(f"{described}: can't be sent to another process, where its codes would have no scale; send the model's state_dict()")
    kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor
    return _to_hpu, (tensor.detach().cpu(), kind, tensor.requires_grad)


def register() -> None:
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)
