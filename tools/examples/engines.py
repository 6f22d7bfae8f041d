# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on several processes with one of Python's engines, its products in fp8.

    FP8_HPU_DEVICES=2 torchrun --nproc-per-node 2 engines.py ddp|fsdp|fsdp_codes|deepspeed|pipeline|tensor_parallel
    FP8_HPU_DEVICES=2 python3 engines.py lightning        (it starts the processes itself)"""

import os
import sys

import torch

import fp8


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")


def begin():
    """The group of all processes, and this one's device."""
    torch.distributed.init_process_group("hccl")
    torch.hpu.set_device(int(os.environ.get("LOCAL_RANK", 0)))


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp(model):
    from torch.distributed.fsdp import fully_shard
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def fsdp_codes(model):
    engine = fsdp(model)
    fp8.te.gather_in_fp8(engine)
    return engine


def tensor_parallel(model):
    from torch.distributed.tensor import parallel
    mesh = torch.distributed.device_mesh.init_device_mesh("hpu", (torch.distributed.get_world_size(),))
    return parallel.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})


def deepspeed(model):
    import fp8.deepspeed  # before deepspeed: it gives it the device
    import deepspeed  # isort: skip
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3},
              "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def pipeline(model):
    import fp8.deepspeed
    import deepspeed  # isort: skip
    deepspeed.init_distributed("hccl", verbose=False)
    stages = deepspeed.PipelineModule(layers=list(model), num_stages=2, partition_method="uniform",
                                      loss_fn=lambda y, expected: (y - expected).square().mean())
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(stages.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=stages, optimizer=optimizer, config=config)
    for _ in range(10):
        parts = [(x, x[:, :32]) for x in torch.randn(2, 4, 64, device="hpu")]
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):  # without a group: the stages have other layers
            loss = engine.train_batch(iter(parts))
    return loss.item()


def train(engine, step, rows):
    """step(loss): backward, and the optimizer's step."""
    for _ in range(10):
        x = torch.randn(rows, 64, device="hpu")
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=torch.distributed.group.WORLD):
            loss = (engine(x) - x[:, :32]).square().mean()
        step(loss)
    return loss.item()


def lightning():
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, x, _): return (self.net(x) - x[:, :32]).square().mean()
        def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr=1e-2)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="hpu", devices=2, strategy="hpu_deepspeed_stage_3", precision="fp8",
                                max_steps=10, **quiet)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(160, 64), batch_size=8))


def main(name):
    if name == "lightning":
        return lightning()
    begin()
    model = net()
    torch.manual_seed(0 if name in ("tensor_parallel", "pipeline") else torch.distributed.get_rank())  # data of its own, or the same
    fp8.te.convert_modules(model)  # before the engine takes the model
    engine = {take.__name__: take for take in (ddp, fsdp, fsdp_codes, tensor_parallel, deepspeed, pipeline)}[name](model)
    if name == "pipeline":
        loss = engine
    elif name == "deepspeed":
        loss = train(engine, lambda loss: (engine.backward(loss), engine.step()), 8)
    else:
        optimizer = torch.optim.AdamW(engine.parameters(), lr=1e-2)
        loss = train(engine, lambda loss: (loss.backward(), optimizer.step(), optimizer.zero_grad()), 8)
    if torch.distributed.get_rank() == 0:
        print(f"{name}: {'the loss falls' if loss < 0.95 else loss}")
    del engine
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
