# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks on hpu: {engine} x {f32, bf16, fp8} x {converted before the engine takes the model, after}.

    python engine_cells.py ENGINE:PRECISION:ORDER ...    a line of JSON for each cell: what both ranks found
    python engine_cells.py all

Each rank has a process with one thread. A cell that is refused ends its processes; the next ones have others."""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time

# DDP comes last: ZeRO-3 puts a function of its own in the place of F.linear, for as long as the process lives; the pipeline leaves DeepSpeed
# a topology that ZeRO asks after.
ENGINES = ("tp", "tp_sp", "fsdp1", "fsdp2", "fsdp2_codes", "zero0", "zero1", "zero2", "zero3", "zero3_offload", "pp", "ddp")
PRECISIONS, ORDERS, STEPS, SECONDS = ("f32", "bf16", "fp8"), ("before", "after"), 5, 10
RANKS = int(os.environ.get("ENGINE_RANKS", "2"))
DEMO = pathlib.Path(__file__).resolve().parents[3] / "tools" / "demo_data"
CELLS = [":".join(cell) for cell in itertools.product(ENGINES, PRECISIONS, ORDERS) if cell[1] == "fp8" or cell[2] == "before"]
CELLS = [cell for cell in CELLS if not cell.startswith("fsdp2_codes") or cell.endswith("fp8:before")]  # it is of weights that train in fp8
# Compiled with a backend from the first step on, or from the second.
COMPILED = ["fsdp2:fp8:before:eager:0", "fsdp2:fp8:before:eager:1", "fsdp2_codes:fp8:before:fp8:1", "zero3:fp8:before:eager:1"]


def net(seed=0):
    import torch
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")


def batches():
    """[8, 4, 64] for each step."""
    import torch
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, 64, generator=generator) for _ in range(STEPS)]


def loss_of(y, x):
    return (y.float() - x.flatten(1).mean(1)[:, None, None].to(y.device)).square().mean()


def _deepspeed(model, name, precision, lr=1e-2, **options):
    import torch

    import deepspeed
    zero = {"stage": int(name[4]), "stage3_param_persistence_threshold": 0, **options}
    if name.endswith("offload"):
        zero.update(offload_param={"device": "cpu"}, offload_optimizer={"device": "cpu"})
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero, "bf16": {"enabled": precision == "bf16"},
              "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=lr), config=config)
    return engine


def _parallel(model, sequence):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    rows = Shard(1) if sequence else Replicate()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(output_layouts=rows)}
    if sequence:
        plan["4"] = ColwiseParallel(input_layouts=rows, output_layouts=Replicate())
    return parallelize_module(model, init_device_mesh("hpu", (RANKS,)), plan)


def _pipeline(model, precision):
    """Two stages; DeepSpeed's engine runs two micro-batches through them."""
    import torch

    import deepspeed
    deepspeed.init_distributed("hccl", verbose=False)
    stages = deepspeed.PipelineModule(layers=list(model), num_stages=RANKS, partition_method="uniform",
                                      loss_fn=lambda y, mean: (y.float() - mean[:, None, None]).square().mean())
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": precision == "bf16"},
              "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=stages, optimizer=torch.optim.AdamW(stages.parameters(), lr=1e-2), config=config)
    return engine


def taken(model, name, precision):
    """The model as the engine has it."""
    import torch
    if name == "pp":
        return _pipeline(model, precision)
    if name == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if name == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("hpu", 0))
    if name.startswith("fsdp2"):
        from torch.distributed.fsdp import fully_shard
        for layer in (model[0], model[2], model[4]):
            fully_shard(layer)
        fully_shard(model)
        if name == "fsdp2_codes":
            import fp8
            assert fp8.te.gather_in_fp8(model) == ["0", "2", "4"]
        return model
    if name.startswith("zero"):
        return _deepspeed(model, name, precision)
    return _parallel(model, name == "tp_sp")


def step(engine, optimizer, loss):
    """Of DeepSpeed's engine, without an optimizer beside it, or of any other."""
    if optimizer is None:
        engine.backward(loss)
        return engine.step()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model, engine, precision, rank, whole, group=True, backend=()):
    """Each step's loss of the whole batch, dtypes that the first layer gave, and what states() is after each step. backend: its name, and
    the first step that is compiled with it."""
    import torch

    import fp8
    zero = hasattr(engine, "backward")
    optimizer = None if zero else torch.optim.AdamW(engine.parameters(), lr=1e-2)
    losses, dtypes, scales, forward = [], set(), [], engine
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    layer.register_forward_hook(lambda module, given, out: dtypes.add(str(out.dtype)))
    for number, x in enumerate(batches()):
        if backend and number == int(backend[1]):
            forward = torch.compile(engine, backend=backend[0])
        x = (x if whole else x.chunk(RANKS)[rank]).to("hpu")
        x = x.bfloat16() if zero and precision == "bf16" else x
        with contextlib.ExitStack() as stack:
            if "bf16" in precision and not zero:
                stack.enter_context(torch.autocast("hpu", torch.bfloat16))
            if "fp8" in precision:
                stack.enter_context(fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=torch.distributed.group.WORLD if group else None))
            loss = loss_of(forward(x), x)
        step(engine, optimizer, loss)
        loss = loss.detach().float().cpu()
        if group:
            torch.distributed.all_reduce(loss)
        losses.append(loss.item() / (RANKS if group else 1))
        scales.append(states(model) if "fp8" in precision else [])
    return {"losses": losses, "dtypes": sorted(dtypes), "states": scales}


def pipelined(engine, precision, group=None):
    """As train(). Stages share no scales; the states are those of both stages, one after the other, after each step of two micro-batches."""
    import torch

    import fp8
    losses, dtypes, scales = [], set(), []
    for layer in engine.module.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda module, given, out: dtypes.add(str(out.dtype)))
    for x in batches():
        parts = [((part.bfloat16() if precision == "bf16" else part).to("hpu"), part.flatten(1).mean(1).to("hpu")) for part in x.split(4)]
        with fp8.te.fp8_autocast(precision == "fp8", fp8_recipe="nvidia", fp8_group=group):
            losses.append(engine.train_batch(iter(parts)).item())
        both = [None] * RANKS
        torch.distributed.all_gather_object(both, states(engine.module))
        scales.append(both[0] + both[1])
    return {"losses": losses, "dtypes": sorted(dtypes), "states": scales}


def states(model):
    """Of each weight that trains in fp8: its steps, and its scale_inv."""
    from fp8.te import _attached
    found = [json.loads(attached.values()) for _, attached in _attached.within(model)]
    return [[state["step"], state["forward"]["scale"], state["backward"]["scale"]] for state in found]


def run(cell, rank):
    import fp8
    if cell.startswith(("lightning", "document")):
        import strategies
        return strategies.run(cell, rank)
    if cell.startswith(("resume", "fault", "inference", "gaudi", "golden", "tensor")):
        return importlib.import_module(f"{cell.partition(':')[0]}s").run(cell, rank)
    kind, _, rest = cell.partition(":")
    if kind in ("gathering", "sizes", "llama"):
        return importlib.import_module(kind).run(rest, rank)
    name, precision, order, *backend = cell.split(":")
    model = net()
    if precision == "fp8" and order == "before":
        fp8.te.convert_modules(model)
    engine = taken(model, name, precision)
    if precision == "fp8" and order == "after":
        fp8.te.convert_modules({"fsdp1": engine, "pp": getattr(engine, "module", None)}.get(name, model))
    if name == "pp":
        return pipelined(engine, precision)
    return train(model, engine, precision, rank, name.startswith("tp"), backend=backend)


def alone(precision):
    """What one process finds that has the whole batch, whose arithmetic is that of each engine."""
    import fp8
    model = net()
    if "fp8" in precision:
        fp8.te.convert_modules(model)
    return train(model, model, precision, 0, True, False)


def work(rank, ranks, cells, folder):
    """One rank: a file for each cell."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1",
                      FP8_HPU_DEVICES="1" if cells[0] == "fault:devices" else str(ranks), DS_ACCELERATOR="hpu", GLOO_SOCKET_IFNAME="lo")
    log = os.open(os.path.join(folder, f"log.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    import datetime

    import torch

    import fp8  # noqa: F401
    if any(word in cell for word in ("zero", "deepspeed", "llama", "stage4", "pp", "pipe", "inference", "golden") for cell in cells):
        import deepspeed  # noqa: F401
    torch.set_num_threads(1)
    torch.distributed.init_process_group("hccl", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
                                         timeout=datetime.timedelta(seconds=SECONDS))
    for number, cell in enumerate(cells):
        begin, failed = time.time(), False
        try:
            said = run(cell, rank)
        except BaseException as error:  # noqa: BLE001
            import traceback
            traceback.print_exc()
            said, failed = {"error": f"{type(error).__name__}: {error}"}, True
        said["seconds"] = time.time() - begin
        pathlib.Path(folder, f"{number}.{rank}.part").write_text(json.dumps(said))
        os.rename(f"{folder}/{number}.{rank}.part", f"{folder}/{number}.{rank}")
        if failed:
            os._exit(1)
    os._exit(0)


def pairs(cells, count=RANKS):
    """What all ranks found, cell by cell."""
    cells = list(cells)
    os.environ["ENGINE_RANKS"] = str(count)
    while cells:
        folder = tempfile.mkdtemp()
        ranks = [multiprocessing.get_context("spawn").Process(target=work, args=(rank, count, cells, folder))
                 for rank in range(count)]
        for rank in ranks:
            rank.start()
        for number, cell in enumerate(list(cells)):
            found, ended, began = [None] * count, None, time.time()
            while None in found:
                for rank in range(count):
                    place = pathlib.Path(folder, f"{number}.{rank}")
                    if found[rank] is None and place.exists():
                        found[rank] = json.loads(place.read_text())
                    elif found[rank] is None and not ranks[rank].is_alive() and not place.exists():
                        found[rank] = {"error": f"ended with {ranks[rank].exitcode}"}
                ended = ended or (time.time() if any(found) else None)
                if (ended and time.time() - ended > SECONDS + 5) or time.time() - began > 120:
                    found = [said or {"error": "hangs"} for said in found]
                time.sleep(0.02)
            yield cell, found
            cells.remove(cell)
            if any("error" in said for said in found):
                break
        for rank in ranks:
            rank.kill() if any("error" in said for said in found) else rank.join(5)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for cell, found in pairs(CELLS if sys.argv[1:] == ["all"] else sys.argv[1:]):
        print(json.dumps([cell, found]), flush=True)
