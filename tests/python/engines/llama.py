# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py that train the demo's Llama (1.7 M parameters, weights that are random) in fp8, llama:ENGINE: 50 losses of the whole
batch. llama:alone: each rank trains by itself on the whole batch."""

import pathlib

ENGINES = ("alone", "ddp", "fsdp2", "fsdp2_codes", "zero3")
CELLS = [f"llama:{engine}" for engine in ENGINES]
STEPS, ROWS, LENGTH, RATE = 50, 8, 64, 3e-4
DEMO = pathlib.Path(__file__).parents[3] / "tools" / "demo_data"


def engine_of(model, name):
    import engine_cells
    import torch

    import fp8
    if name.startswith("fsdp2"):
        for layer in (*model.model.layers, model):
            torch.distributed.fsdp.fully_shard(layer)
        if name == "fsdp2_codes":
            fp8.te.gather_in_fp8(model)
        return model
    if name == "zero3":
        return engine_cells._deepspeed(model, name, "fp8", lr=RATE)
    return model if name == "alone" else engine_cells.taken(model, name, "fp8")


def run(name, rank):
    import engine_cells
    import torch
    import transformers

    import fp8
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(DEMO / "kjv-byte-1.7M", dtype="float32", attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).to("hpu").train()
    fp8.te.convert_modules(model)
    engine = engine_of(model, name)
    zero, group = hasattr(engine, "step"), None if name == "alone" else torch.distributed.group.WORLD
    optimizer = None if zero else torch.optim.AdamW(engine.parameters(), lr=RATE)
    text = torch.tensor(list((DEMO / "kjv_calib.txt").read_bytes()[:STEPS * ROWS * LENGTH])).view(STEPS, ROWS, LENGTH) % config.vocab_size
    losses = []
    for ids in text:
        ids = (ids if group is None else ids.chunk(engine_cells.RANKS)[rank]).to("hpu")
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=group):
            loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss) if zero else loss.backward()
        (engine if zero else optimizer).step()
        None if zero else optimizer.zero_grad()
        loss = loss.detach().float().cpu()
        if group is not None:
            torch.distributed.all_reduce(loss)
        losses.append(loss.item() / (1 if group is None else engine_cells.RANKS))
    steps = [state[0] for state in engine_cells.states(model)]
    return {"losses": losses, "states": sorted(set(steps)), "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())}
