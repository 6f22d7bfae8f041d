# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py with the vendor's own numbers for Lightning and DeepSpeed: golden:train:STAGE:OFFLOAD:CHECKPOINTING, and
golden:predict. What they should be is arithmetic: see test_strategies.py."""

import engine_cells

# Stages, offloading and activation checkpointing: each pair of them at least once.
CELLS = [f"golden:train:{cell}" for cell in ("0::", "1::partition", "1:offload:host", "2:offload:", "2::both", "3::", "3:offload:both", "infinity:offload:plain")]
CHECKPOINTING = {"plain": (False, False), "partition": (True, False), "host": (False, True), "both": (True, True)}


def scaled(width, forward):
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(width))

        def forward(self, x): return forward(x, self.w)
    return Scaled()


def data(rows, width):
    """Ones and zeros: of each row what goes in, and what should come out."""
    import torch
    return torch.utils.data.TensorDataset(torch.ones(rows, width), torch.zeros(rows, width))


def trainer(strategy, **options):
    import lightning
    from lightning.pytorch.plugins import DeepSpeedPrecisionPlugin
    return lightning.Trainer(accelerator="hpu", devices=engine_cells.RANKS, strategy=strategy, plugins=[DeepSpeedPrecisionPlugin(precision="bf16-mixed")],
                             enable_progress_bar=False, use_distributed_sampler=False, logger=False, enable_checkpointing=False,
                             enable_model_summary=False, **options)


def config_of(stage, offload, checkpointing):
    zero = {"stage": 3 if stage == "infinity" else int(stage)}
    if stage == "infinity":
        zero["offload_param"] = {"device": "cpu"}
    if offload:
        zero.update(offload_optimizer={"device": "cpu"}, contiguous_gradients=True, overlap_comm=True)
    config = {"train_batch_size": 4 * engine_cells.RANKS, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": stage != "0"},
              "fp16": {"enabled": False}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero,
              "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0.02, "warmup_max_lr": 0.05, "warmup_num_steps": 4,
                                                               "total_num_steps": 8, "warmup_type": "linear"}}}
    if checkpointing:
        partition, host = CHECKPOINTING[checkpointing]
        config["activation_checkpointing"] = {"partition_activations": partition, "contiguous_memory_optimization": False, "cpu_checkpointing": host}
    return config


def trained(stage, offload, checkpointing):
    """The last loss of 8 batches, two to a step: sum |(1 w)^4| / 1000 of 2 rows of 10."""
    import lightning
    import torch
    from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

    import fp8.lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(scaled(10, lambda x, w: x * w) for _ in range(4))

        def on_train_start(self):
            # The DeepSpeed of that number took the optimizer's own learning rate for the first step; today it is the schedule's.
            for group in self.trainer.strategy.optimizers[0].param_groups:
                group["lr"] = 1e-3

        def training_step(self, batch, _):
            x, y = batch
            self.seen = x.device.type
            x = self.layers[0](x)
            for layer in self.layers[1:]:
                x = checkpoint(layer, x)
            loss = (y - x).abs().sum() / 1000
            self.log("train_loss", loss.detach(), sync_dist=True)
            return loss

        def configure_optimizers(self): return torch.optim.AdamW(self.parameters())
    made = Model()
    runs = trainer(fp8.lightning.HPUDeepSpeedStrategy(config=config_of(stage, offload, checkpointing)), fast_dev_run=8, accumulate_grad_batches=2)
    runs.fit(made, torch.utils.data.DataLoader(data(16, 10), batch_size=2))
    return {"loss": runs.callback_metrics["train_loss"].item(), "device": made.seen, "steps": runs.global_step}


def predicted(way):
    """Four layers of x (x w) over two ones. way: where init_inference's arguments stand."""
    import lightning
    import torch

    import fp8.lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*(scaled(2, lambda x, w: x * torch.matmul(x, w)) for _ in range(4)))

        def predict_step(self, batch, _):
            self.seen = batch[0].device.type
            return self.layers(batch[0])
    arguments = {"dtype": torch.float, "tensor_parallel": {"tp_size": engine_cells.RANKS}, "replace_with_kernel_inject": False,
                 "injection_policy": {Model: ("layers.0",)}}  # which DeepSpeed asks for where there is no Linear
    strategy = fp8.lightning.HPUDeepSpeedStrategy(**({"config": arguments} if way == "config" else arguments))
    made = Model()
    found, = trainer(strategy).predict(made, torch.utils.data.DataLoader(data(1, 2)))
    return {"found": found.float().tolist(), "device": made.seen, "engine": type(strategy.model).__name__}


def run(cell, rank):
    kind, _, rest = cell.partition(":")[2].partition(":")
    return trained(*rest.split(":")) if kind == "train" else predicted(rest)
