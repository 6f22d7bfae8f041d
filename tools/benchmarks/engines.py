# SPDX-License-Identifier: Apache-2.0
"""What Python's engines cost on two ranks of one thread each, beside DDP, and what fp8 costs beside bf16.

    ./tools/bench engines [--rounds 7] [--hidden 1024] [--layers 4] [--rows 256] [--device cpu]

A step of an MLP: forward, backward, AdamW. All engines live in the same two processes and take a step in turns. One JSON line per case, medians
over rounds; `ratio` is the first figure by the second.

    ZERO1, FSDP2      seconds of a step in f32, and of DDP's
    ENGINE fp8        seconds of a step in fp8 (nvidia, one scale on all ranks), and of a step in bf16

--device cpu: the same engines of torch and DeepSpeed on the CPU with Gloo, in f32: what they cost by themselves.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time


def engines(options):
    """By name a function that takes one step."""
    import torch

    import deepspeed
    import fp8
    made, hpu = {}, options.device == "hpu"

    def add(name, precision):
        torch.manual_seed(0)
        layers = [layer for _ in range(options.layers) for layer in (torch.nn.Linear(options.hidden, options.hidden), torch.nn.ReLU())]
        net = torch.nn.Sequential(*layers).to(options.device)
        if precision == "fp8":
            fp8.te.convert_modules(net)
        engine = taken(net, name)
        zero = hasattr(engine, "step")
        optimizer = engine if zero else torch.optim.AdamW(engine.parameters(), lr=1e-4)
        x = torch.randn(options.rows, options.hidden).to(options.device)
        group = torch.distributed.group.WORLD

        def step():
            region = fp8.te.fp8_autocast(precision == "fp8", fp8_recipe="nvidia", fp8_group=group) if hpu else contextlib.nullcontext()
            with torch.autocast(options.device, torch.bfloat16, enabled=precision != "f32"), region:
                loss = engine(x).float().square().mean()
            engine.backward(loss) if zero else loss.backward()
            optimizer.step()
            if not zero:
                optimizer.zero_grad()
        made[f"{name} {precision}"] = step

    def taken(net, name):
        if name == "DDP":
            return torch.nn.parallel.DistributedDataParallel(net)
        if name == "ZERO1":
            config = {"train_micro_batch_size_per_gpu": options.rows, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
            return deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-4), config=config)[0]
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh(options.device, (2,))
        for layer in net[::2]:
            fully_shard(layer, mesh=mesh)
        engine = fully_shard(net, mesh=mesh)
        if name == "FSDP2 codes":
            fp8.te.gather_in_fp8(engine)
        return engine
    for name in ("DDP", "ZERO1", "FSDP2"):
        for precision in ("f32", "bf16", "fp8") if hpu else ("f32",):
            add(name, precision)
    if hpu:
        add("FSDP2 codes", "fp8")
    return made


def work(rank, folder, options):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", FP8_HPU_DEVICES="2", OMP_NUM_THREADS="1",
                      DS_ACCELERATOR=options.device, GLOO_SOCKET_IFNAME="lo")
    os.dup2(2, 1)  # DeepSpeed prints
    import torch

    import fp8  # noqa: F401
    torch.set_num_threads(1)
    torch.distributed.init_process_group("hccl" if options.device == "hpu" else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    steps = engines(options)
    seconds = {name: [] for name in steps}
    for round_ in range(options.rounds + 2):
        for name, step in steps.items():
            torch.distributed.barrier()
            begin = time.perf_counter()
            step()
            torch.distributed.barrier()
            if round_ >= 2:
                seconds[name].append(time.perf_counter() - begin)
    if rank == 0:
        with open(f"{folder}/seconds", "w") as file:
            json.dump({name: statistics.median(found) for name, found in seconds.items()}, file)
    torch.distributed.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 7), ("hidden", 1024), ("layers", 4), ("rows", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=("hpu", "cpu"), default="hpu")
    options = parser.parse_args()
    import multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        ranks = [multiprocessing.get_context("spawn").Process(target=work, args=(rank, folder, options)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit(f"engines.py: a rank ended with {[rank.exitcode for rank in ranks]}")
        with open(f"{folder}/seconds") as file:
            found = json.load(file)
    pairs = [("ZERO1 f32", "DDP f32"), ("FSDP2 f32", "DDP f32"), *((f"{name} fp8", f"{name} bf16") for name in ("DDP", "ZERO1", "FSDP2")),
             ("FSDP2 codes fp8", "FSDP2 fp8")]
    pairs = [pair for pair in pairs if pair[0] in found]
    for first, second in pairs:
        print(json.dumps({"case": f"{first} / {second}", "first": found[first], "second": found[second],
                          "ratio": round(found[first] / found[second], 4)}), flush=True)


if __name__ == "__main__":
    main()
