# SPDX-License-Identifier: Apache-2.0
"""What scripts for Optimum Habana call, with the names of optimum.habana.utils and optimum.habana.distributed."""

import os
import random
import time
from typing import ClassVar, Optional

import torch

Device = torch.device | str | int | None
Number = float | None
_ACTIVE = "_fp8_active_gradients"


def adapt_transformers_to_gaudi() -> None: """Nothing has to be adapted: models of transformers run on hpu as they are."""
def check_optimum_habana_min_version(min_version: str) -> None: """Nothing is checked: a name that is not there is an error by itself."""
def get_device_name() -> str: return torch.hpu.get_device_name().lower()  # "gaudi", "gaudi2", "gaudi3"


def set_seed(seed: int) -> None:
    """Of Python, numpy and torch. Random numbers of hpu are the CPU's."""
    import numpy
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def get_hpu_memory_stats(device: Device = None) -> dict[str, float]:
    """Memory in use, the most so far, and the limit, in 1024^3 bytes with two decimals."""
    rows = {"memory_allocated (GB)": "InUse", "max_memory_allocated (GB)": "MaxInUse", "total_memory_available (GB)": "Limit"}
    stats = torch.hpu.memory_stats(device)
    return {name: round(stats[key] / 1024**3, 2) for name, key in rows.items()}


def speed_metrics(split: str, start_time: float, num_samples: Number = None, num_steps: Number = None, num_tokens: Number = None,
                  start_time_after_warmup: Number = None, log_evaluate_save_time: Number = None) -> dict[str, float]:
    """SPLIT_runtime since start_time, in seconds, and what was done in a second since start_time_after_warmup, without
    log_evaluate_save_time."""
    from transformers import trainer_utils
    begin = (start_time if start_time_after_warmup is None else start_time_after_warmup) + (log_evaluate_save_time or 0.0)
    rates = trainer_utils.speed_metrics(split, begin, num_samples, num_steps, num_tokens)
    return {**rates, f"{split}_runtime": round(time.time() - start_time, 4)}


class HabanaProfile(torch.profiler.profile):
    """A trace of `active` steps, after `wait` and `warmup` ones, as a file in output_dir/name; active=0: none. Operators of hpu stand in it
    as the CPU's do. One runs at a time: start() stops another."""
    _running: ClassVar[Optional["HabanaProfile"]] = None

    def __init__(self, warmup: int = 0, active: int = 0, record_shapes: bool = True, with_stack: bool = False, name: str = "",
                 output_dir: str = "./hpu_profile", wait: int = 0) -> None:
        made, self._records = torch.profiler, active > 0
        super().__init__(activities=[made.ProfilerActivity.CPU], record_shapes=record_shapes, with_stack=with_stack,
                         schedule=made.schedule(wait=wait, warmup=warmup, active=active, repeat=1) if self._records else None,
                         on_trace_ready=made.tensorboard_trace_handler(os.path.join(output_dir, name)))

    def start(self) -> None:
        if self._records and HabanaProfile._running is not self:
            if HabanaProfile._running is not None:
                HabanaProfile._running.stop()
            HabanaProfile._running = self
            super().start()

    def step(self) -> None:
        if HabanaProfile._running is self:
            super().step()

    def stop(self) -> None:
        if HabanaProfile._running is self:
            HabanaProfile._running = None
            super().stop()


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
