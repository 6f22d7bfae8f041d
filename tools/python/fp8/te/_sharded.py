# SPDX-License-Identifier: Apache-2.0
"""Weights that an engine has (FSDP, ZeRO-3, tensor parallel): what tells them, and their products. Of one that is sharded over ranks each
rank's part is a product in fp8. Scales are those of the part, and with fp8_autocast(fp8_group=...) those of the whole.

    weight [outputs, inputs]      input            result
    rows, Shard(0)                replicated       its columns, Shard(last)
    columns, Shard(1)             Shard(last)      a sum of parts, Partial
    replicated                    any rows         those rows"""

from typing import Any, cast

import torch
from torch.nn import functional as F  # noqa: N812

from fp8.te import _region

_LINEAR = torch._C._nn.linear


def is_sharded(weight: torch.Tensor) -> bool:
    """A DTensor (FSDP2, tensor parallel), a parameter of ZeRO-3, or one of FSDP's flat one."""
    return hasattr(weight, "placements") or hasattr(weight, "ds_id") or weight.dim() < 2 or not weight.is_leaf


def is_taken(weight: torch.Tensor, attached: Any) -> bool:
    """Whether an engine has put another tensor in the place of the one that the library knows, or gathers it for each product."""
    return weight is not attached.known() or F.linear is not _LINEAR or hasattr(weight, "ds_id")


def check(weight: torch.Tensor, attached: Any, module: str) -> None:
    """Raises RuntimeError for a weight that an engine has on the host, or that a class multiplies with by itself."""
    if weight.is_cpu:
        refuse_on_host(weight, attached)
    if not attached.multiplies and _region.inside() and is_taken(weight, attached):
        raise RuntimeError(f"{attached.name}: an engine that shards parameters has its weight, and {module} multiplies with it by itself, in "
                           "high precision: have the engine leave it out, or convert_modules() (a rule of the recipe)")


@_region.unseen
def refuse_on_host(weight: torch.Tensor, attached: Any) -> None:
    """An engine that computes on the host would train in high precision."""
    if _region.is_fp8_enabled() and not is_taken(weight, attached):
        raise RuntimeError(f"{attached.name}: found its weight on cpu inside of fp8_autocast, expected hpu (DeepSpeed takes the CPU unless "
                           "fp8.deepspeed is imported before it)")


@_region.unseen
def own_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, attached: Any) -> torch.Tensor:
    """With the weight that an engine gives, which the library does not know: not in a graph of torch.compile."""
    if not hasattr(weight, "placements"):
        return cast(torch.Tensor, torch.ops.fp8.linear(x, weight, bias, attached.state))
    return _of_parts(attached.name, x, weight, bias, attached.state) if _region.inside() else F.linear(x, weight, bias)


def _of_parts(name: str, x: Any, weight: Any, bias: Any, state: Any) -> torch.Tensor:
    """x . weight^T + bias as a DTensor. Raises RuntimeError naming the module for layouts that are none of these."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    last, mesh, by_rows, by_columns = x.dim() - 1, weight.device_mesh, (Shard(0),), (Shard(1),)
    found = tuple(getattr(x, "placements", ("a tensor of one rank",)))
    asked = {by_rows: (Replicate(),), by_columns: (Shard(last),), (Replicate(),): found}.get(weight.placements)
    whole = mesh.ndim == 1 and all(weight.shape[p.dim] % mesh.size() == 0 for p in weight.placements if isinstance(p, Shard))
    if found != asked or not whole or getattr(x, "device_mesh", None) != mesh or found in ((Partial(),), ) or (
            weight.placements == (Replicate(),) and found == (Shard(last),)):
        raise RuntimeError(f"{name}: found a weight {list(weight.shape)} of placements {weight.placements} on {mesh} and an input of {found}, "
                           "expected in fp8 one of ColwiseParallel or RowwiseParallel on one dimension of ranks, whose number divides its size")
    summed = weight.placements == by_columns
    over_rows = weight.placements == (Replicate(),) and found != (Replicate(),)
    gradients = {"grad_placements": (Partial(),)} if over_rows else {}
    inner = x.to_local(grad_placements=(Partial(),) if weight.placements == by_rows else found)
    inner_bias = None if bias is None or summed else bias.to_local(**gradients)
    y = torch.ops.fp8.linear(inner, weight.to_local(**gradients), inner_bias, state)
    result = DTensor.from_local(y, mesh, (Partial(),) if summed else (Shard(last),) if weight.placements == by_rows else found, run_check=False)
    return cast(torch.Tensor, result + bias.to(result.dtype) if summed and bias is not None else result)
