# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py with Lightning: lightning:STRATEGY:PRECISION, and blocks of the documents, document:FILE:NUMBER. A rank is a process that
a launcher started, as torchrun does."""

import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "training"))
STRATEGIES, PRECISIONS = ("hpu_parallel", "hpu_ddp", "hpu_fsdp", "hpu_deepspeed_stage_1", "hpu_deepspeed_stage_3"), ("32-true", "bf16-mixed", "fp8")
CELLS = [f"lightning:{strategy}:{precision}" for strategy in STRATEGIES for precision in PRECISIONS]


def model():
    import lightning
    import engine_cells
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses, self.dtypes = engine_cells.net().cpu(), [], set()
            self.net[0].register_forward_hook(lambda module, given, y: self.dtypes.add(f"{y.device.type} {y.dtype}"))

        def training_step(self, x, _):
            loss = engine_cells.loss_of(self.net(x), x)
            self.losses.append(self.trainer.strategy.reduce(loss.detach().float().clone()).item())
            return loss

        def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr=1e-2)
    return Model()


def train(strategy, precision):
    """5 steps; each rank has its half of each batch."""
    import lightning
    import engine_cells
    import torch
    made = model()
    trainer = lightning.Trainer(accelerator="hpu", devices=engine_cells.RANKS, strategy=strategy, precision=precision, max_epochs=1, logger=False,
                                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
                                use_distributed_sampler=False)
    if precision == "fp8":
        trainer.precision_plugin.recipe = "nvidia"
    mine = torch.cat([x.chunk(engine_cells.RANKS)[trainer.global_rank] for x in engine_cells.batches()])
    trainer.fit(made, torch.utils.data.DataLoader(mine, batch_size=8 // engine_cells.RANKS))
    import fp8
    steps = [attached.saved()["state"]["step"] for _, attached in fp8.te._attached.within(made)]
    return {"losses": made.losses, "dtypes": sorted(made.dtypes), "states": steps, "strategy": type(trainer.strategy).__name__}


def document(name, rank):
    import documents

    import fp8
    os.environ.update(documents.ENVIRONMENT, HABANA_LOGS=os.getcwd())
    if name == "hpu_basics.rst:2":
        os.environ.update(NODE_RANK=str(rank), LOCAL_RANK="0")
    import lightning
    names = {key: getattr(fp8.lightning, key) for key in ("HPUAccelerator", "HPUDeepSpeedStrategy")}
    names.update(Tuple=tuple, List=list, _TORCH_LRSCHEDULER=object, TestCB=lightning.Callback,
                 DeepSpeedPrecisionPlugin=lightning.pytorch.plugins.DeepSpeedPrecision)
    try:
        done = documents.run(documents.completed(name), names)
    finally:
        os.environ.update(NODE_RANK="0", LOCAL_RANK=str(rank))
    trainer, made = done["trainer"], done["model"]
    optimizer = getattr(trainer.strategy.optimizers[0], "optimizer", trainer.strategy.optimizers[0])
    return {"losses": [], "states": [], "seen": sorted({f"{kind} {dtype}" for kind, dtype in made.seen}), "steps": trainer.global_step,
            "strategy": type(trainer.strategy).__name__, "world": trainer.world_size, "optimizer": type(optimizer).__name__}


def run(cell, rank):
    kind, name = cell.split(":", 1)
    return document(name, rank) if kind == "document" else train(*name.split(":"))
