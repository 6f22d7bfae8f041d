# SPDX-License-Identifier: Apache-2.0
"""Gradients of several processes, with the names of optimum.habana.distributed."""

import torch

_ACTIVE = "_fp8_active_gradients"


def all_reduce_gradients(model: torch.nn.Module, fusion_buffer_dtype: torch.dtype = torch.bfloat16, use_hpu_graphs: bool = True) -> None:
    """The mean of the ranks' gradients, in place, by one message of that dtype: each is cast to it, divided by the number of ranks, and
    summed. Called between backward and the optimizer's step, in all ranks of the default group.

    Raises NotImplementedError, naming a parameter, where others have gradients than at the first call."""
    del use_hpu_graphs  # how Habana's device packs the buffer
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    changed = set(model.__dict__.setdefault(_ACTIVE, list(grads))) ^ set(grads)
    if changed:
        raise NotImplementedError(f"all_reduce_gradients: {min(changed)}: found a change of the set of active gradients, allowed: the "
                                  "parameters that had one at the first call")
    if not grads:
        return
    buffer = torch.cat([grad.to(fusion_buffer_dtype).flatten() for grad in grads.values()]) * (1.0 / torch.distributed.get_world_size())
    torch.distributed.all_reduce(buffer)
    for grad, part in zip(grads.values(), buffer.split([grad.numel() for grad in grads.values()])):
        grad.copy_(part.view_as(grad))
