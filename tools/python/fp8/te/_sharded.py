# SPDX-License-Identifier: Apache-2.0
"""Products of a weight that is sharded over ranks (tensor parallel): each rank's part is a product in fp8. Scales are those of the part,
and with fp8_autocast(fp8_group=...) those of the whole.

    weight [outputs, inputs]      input            result
    rows, Shard(0)                replicated       its columns, Shard(last)
    columns, Shard(1)             Shard(last)      a sum of parts, Partial
    replicated                    any rows         those rows"""

import typing

import torch


def product(name: str, x: typing.Any, weight: typing.Any, bias: typing.Any, state: typing.Any) -> torch.Tensor:
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
    return typing.cast(torch.Tensor, result + bias.to(result.dtype) if summed and bias is not None else result)
