# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py in which GaudiTrainer(fp8=True) trains: gaudi:ddp, gaudi:fast_ddp, gaudi:deepspeed, gaudi:fsdp."""

import os
import pathlib
import sys

import engine_cells

sys.path += [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[1] / "training")]
ZERO3 = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True,
         "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
# DeepSpeed comes last: transformers then leaves a variable in the environment that refuses the others.
ARGUMENTS = {"ddp": {}, "fast_ddp": {"distribution_strategy": "fast_ddp"}, "fsdp": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
             "deepspeed": {"deepspeed": ZERO3}}


def run(cell, rank):
    """The losses that the trainer logs, and the steps of each weight in fp8."""
    import test_optimum
    import torch
    torch.hpu.set_device(rank)
    given = ARGUMENTS[cell.split(":")[1]]
    made = test_optimum.trainer(os.path.abspath(cell), test_optimum.GaudiConfig(), fp8=True, bf16=True, max_steps=3,
                                per_device_train_batch_size=1, **given)
    made.train()
    steps = [state[0] for state in engine_cells.states(made.model)]
    return {"losses": test_optimum.losses(made), "steps": steps, "kind": type(made.model_wrapped).__name__}
