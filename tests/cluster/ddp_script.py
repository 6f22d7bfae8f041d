# SPDX-License-Identifier: Apache-2.0
"""A short script of DistributedDataParallel on hpu, again and again; prints the exit codes of its processes as JSON.

  ddp_script.py libfp8_transformer_engine.so FOLDER VERSION RUNS

Its two ranks are forks of this process, which has loaded torch and the library and started no thread: that is seconds of
each run. They end as a script does, by the end of the interpreter and of the libraries, not by _exit()."""

import datetime
import importlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "package"))

import device_module  # noqa: E402

RANKS = 2


def rank(torch, number, store):
    dist = torch.distributed
    dist.Backend.register_backend(
        "hccl", lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout), devices=["cpu", "hpu"])
    dist.init_process_group("hccl", init_method=f"file://{store}", rank=number, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to("hpu")
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randn(4, 16).to("hpu")).pow(2).mean().backward()
        optimizer.step()
    dist.all_reduce(torch.zeros(1 << 16, device="hpu"), async_op=True)  # nobody waits for it
    # Torch's Reducer ends its group with the GIL held, if nobody else has the group, and waits for a thread of it that may
    # need the GIL to let go of that work: some such ends hang, on the CPU and without this library too. So it goes first.
    del parallel
    if number == 0:
        dist.destroy_process_group()  # the other leaves it to the end of the process


def main(library, folder, version, runs):
    torch = device_module.load(library, version)
    importlib.import_module("torch._dynamo")  # what DistributedDataParallel imports
    torch.set_num_threads(1)
    codes = []
    for run in range(int(runs)):
        children = []
        for number in range(RANKS):
            child = os.fork()
            if child == 0:
                rank(torch, number, f"{folder}/store_{run}")
                return
            children.append(child)
        codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
