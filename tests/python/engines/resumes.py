# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py that save and go on, in fp8: resume:ENGINE, resume:dcp:save|load:FOLDER, resume:llama:FOLDER."""

import os

import engine_cells

STEPS = 3
ENGINES = ("zero1", "zero2", "zero3", "fsdp2")


def made(name, seed):
    """A net of other weights for each seed, as the engine has it, and its optimizer (DeepSpeed's engine has its own)."""
    import torch

    import fp8
    model = engine_cells.net(seed)
    fp8.te.convert_modules(model)
    engine = engine_cells.taken(model, name, "fp8")
    return model, engine, None if hasattr(engine, "backward") else torch.optim.AdamW(engine.parameters(), lr=1e-2)


def steps(engine, optimizer, first):
    """The losses of the whole batch in STEPS steps."""
    import torch

    import fp8
    group, losses = torch.distributed.group.WORLD, []
    generator = torch.Generator().manual_seed(1)
    for x in [torch.randn(12, 4, 64, generator=generator) for _ in range(first + STEPS)][first:]:
        x = x.chunk(group.size())[group.rank()].to("hpu")
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=group):
            loss = engine_cells.loss_of(engine(x), x)
        engine_cells.step(engine, optimizer, loss)
        loss = loss.detach().cpu()
        torch.distributed.all_reduce(loss)
        losses.append(loss.item() / group.size())
    return losses


def save(name, model, engine, optimizer, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    if optimizer is None:
        return engine.save_checkpoint(folder)
    weights, rest = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": rest}, checkpoint_id=folder)


def load(name, model, engine, optimizer, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    if optimizer is None:
        return engine.load_checkpoint(folder)
    weights, rest = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": rest}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=rest)


def resumed(name, save_in, load_from):
    """The losses after the save, or after the load into other weights, and the fp8 states in the end."""
    found = {}
    if save_in:
        engine = made(name, 0)
        steps(*engine[1:], 0)
        save(name, *engine, save_in)
        found = {"losses": steps(*engine[1:], STEPS), "states": engine_cells.states(engine[0])}
    if load_from:
        engine = made(name, 5)
        load(name, *engine, load_from)
        found.update(again=steps(*engine[1:], STEPS), states_again=engine_cells.states(engine[0]))
    return found


def llama(folder, rank):
    """The demo model after steps in fp8 under ZeRO-3, saved in the folder, and what the engine loses on a text."""
    import torch
    import transformers

    import deepspeed
    import fp8
    demo = engine_cells.DEMO
    text = torch.frombuffer(bytearray((demo / "kjv_calib.txt").read_bytes()[:4096]), dtype=torch.uint8)
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo / "kjv-byte-1.7M")
    ids = torch.tensor(tokenizer(bytes(text.tolist()).decode()).input_ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(demo / "kjv-byte-1.7M", dtype=torch.float32).to("hpu")
    fp8.te.convert_modules(model)
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
              "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config)
    engine.train()  # from_pretrained() gives a model that does not record amaxes
    for number in range(2):
        x = ids[(2 * number + rank) * 128:][:128].view(2, 64).to("hpu")
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=torch.distributed.group.WORLD):
            loss = engine(input_ids=x, labels=x).loss
        engine_cells.step(engine, None, loss)
    engine.save_checkpoint(folder)
    engine.eval()
    return {"losses": [fp8.evaluate(engine, ids[:512], seq_len=64).loss], "states": engine_cells.states(model)}


def run(cell, rank):
    _, name, *rest = cell.split(":")
    if name == "llama":
        return llama(rest[0], rank)
    if name == "dcp":
        return resumed("fsdp2", *((rest[1], None) if rest[0] == "save" else (None, rest[1])))
    return resumed(name, *2 * (os.path.abspath(name),))
