# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py in which something goes wrong: fault:KIND, or fault:kill:ENGINE:WHEN:FOLDER, where rank 1 is killed."""

import os
import signal

import engine_cells

KILLS = [f"fault:kill:{engine}:{when}" for engine in ("zero3", "fsdp2") for when in ("backward", "gather", "save")]


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def taken(name):
    import fp8
    model = engine_cells.net()
    fp8.te.convert_modules(model)
    return model, engine_cells.taken(model, name, "fp8")


def kill(name, when, folder, rank):
    """Two saves in the folder (DeepSpeed's has both); rank 1 is killed in the second, or in the step before it."""
    import torch

    import resumes
    model, engine = taken(name)
    optimizer = None if hasattr(engine, "backward") else torch.optim.AdamW(engine.parameters(), lr=1e-2)
    resumes.steps(engine, optimizer, 0)
    resumes.save(name, model, engine, optimizer, os.path.join(folder, "1"))
    if rank == 1 and when == "backward":
        model[0].register_full_backward_hook(die)
    if rank == 1 and when == "gather":
        model[2].register_forward_pre_hook(die, prepend=True)
    if rank == 1 and when == "save":
        torch.save = die
        torch.distributed.checkpoint.FileSystemWriter.write_data = die
    resumes.steps(engine, optimizer, resumes.STEPS)
    resumes.save(name, model, engine, optimizer, os.path.join(folder, "2" if optimizer else "1"))
    return {}


def devices(rank):
    import torch
    torch.hpu.set_device(rank)
    return {"error": "no error"}


def stage4(_):
    taken("zero4")


def twice(_):
    import fp8
    model, _ = taken("ddp")
    fp8.te.convert_modules(model)


def twice_on_one(rank):
    import fp8
    model, engine = taken("ddp")
    if rank == 1:
        fp8.te.convert_modules(model)
    return engine_cells.train(model, engine, "fp8", rank, False)


def converted_on_one(rank):
    import fp8
    model = engine_cells.net()
    if rank == 1:
        fp8.te.convert_modules(model)
    return engine_cells.train(model, engine_cells.taken(model, "ddp", "fp8"), "fp8", rank, False)


def pipeline(_):
    """A group of ranks that have other layers."""
    import torch
    model, engine = taken("pp")
    return engine_cells.pipelined(engine, "fp8", torch.distributed.group.WORLD)


def uneven(name, rank):
    """The last batch has two rows on rank 1 instead of four."""
    import torch

    import fp8
    model, engine = taken(name)
    optimizer = None if hasattr(engine, "backward") else torch.optim.AdamW(engine.parameters(), lr=1e-2)
    losses = []
    for number, x in enumerate(engine_cells.batches()):
        last = number == engine_cells.STEPS - 1
        x = x.chunk(2)[rank][:2 if last and rank == 1 else 4].to("hpu")
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=torch.distributed.group.WORLD):
            loss = engine_cells.loss_of(engine(x), x)
        engine_cells.step(engine, optimizer, loss)
        losses.append(loss.item())
    weights = [round(p.float().abs().sum().item(), 3) for p in model.parameters()] if name == "ddp" else []
    return {"losses": losses, "states": engine_cells.states(model), "weights": weights}


def missing(rank):
    """Rank 1 has no last batch."""
    model, engine = taken("ddp")
    if rank == 0:
        return engine_cells.train(model, engine, "fp8", rank, False)
    engine_cells.STEPS -= 1
    return engine_cells.train(model, engine, "fp8", rank, False)


def run(cell, rank):
    _, kind, *rest = cell.split(":")
    kinds = {"kill": kill, "devices": devices, "stage4": stage4, "twice": twice, "missing": missing, "twice_on_one": twice_on_one,
             "converted_on_one": converted_on_one, "pipeline": pipeline, "uneven": uneven}
    return kinds[kind](*rest, rank)
