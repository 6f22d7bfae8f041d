# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py with weights that FSDP2 gathers in fp8, gathering:WHAT: a model that gathers codes beside one that gathers values.

Each says the losses of both (in fp8, and without a region, step by step), and the bytes that this rank gave to all_gather in the regions and
their backward passes."""

import contextlib
import sys

NAMES = ("habana", "current", "bf16", "uneven", "columns", "values_between", "recomputed", "te")
REFUSED = ("block", "habana-hybrid", "outside", "twice", "unsharded", "offloaded")
CELLS = [f"gathering:{name}" for name in NAMES + REFUSED]


def model(name):
    import torch

    import fp8

    class Net(torch.nn.Sequential):
        def forward(self, x):
            inner = super().forward(x) if name != "recomputed" else torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)
            return self[2](inner) if name == "twice" else inner
    torch.manual_seed(0)
    width = {"uneven": 33, "bf16": 512}.get(name, 48)
    made = fp8.te.Linear if name == "te" else torch.nn.Linear
    layers = [made(64, width), torch.nn.ReLU(), made(width, width), torch.nn.ReLU(), made(width, 32)]
    net = Net(*layers[:3 if name == "twice" else 5]).to("hpu")
    if name != "te":
        fp8.te.convert_modules(net)
    return net


def sharded(name, codes):
    import torch
    from torch.distributed import fsdp

    import fp8
    net = model(name)
    options = {"reshard_after_forward": name not in ("outside", "twice")}
    if name == "bf16":
        options["mp_policy"] = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    if name == "offloaded":
        options["offload_policy"] = fsdp.CPUOffloadPolicy(pin_memory=False)
    if name == "columns":
        options["shard_placement_fn"] = lambda parameter: torch.distributed.tensor.Shard(parameter.dim() - 1)
    if name != "unsharded":
        for layer in net[::2]:
            fsdp.fully_shard(layer, **options)
        fsdp.fully_shard(net, **options)
    if codes:
        fp8.te.gather_in_fp8(net)
    return net


@contextlib.contextmanager
def counted():
    """Bytes that this rank gives to all_gather of one tensor, as FSDP2 and DeepSpeed call it."""
    import torch
    deepspeed = getattr(sys.modules.get("deepspeed.comm.comm"), "cdb", None)
    places = [(torch.distributed, "all_gather_single"), *([(deepspeed, "all_gather_function")] if deepspeed else ())]
    sent, real = [0], [getattr(*place) for place in places]

    def counting(call):
        def count(*args, **kwargs):
            given = kwargs["input_tensor"] if "input_tensor" in kwargs else args[1]
            sent[0] += given.numel() * given.itemsize
            return call(*args, **kwargs)
        return count
    for place, call in zip(places, real):
        setattr(*place, counting(call))
    try:
        yield sent
    finally:
        for place, call in zip(places, real):
            setattr(*place, call)


def train(name, codes, rank):
    import engine_cells
    import torch

    import fp8
    net = sharded(name, codes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    recipe = name if name in ("habana", "current", "block", "habana-hybrid") else "habana" if name == "twice" else "nvidia"
    losses, sent = [], 0
    for x in engine_cells.batches():
        x = x.chunk(engine_cells.RANKS)[rank].to("hpu").requires_grad_(name == "recomputed")
        other = net(x).square().mean() if name == "values_between" else 0.0
        with counted() as found:
            with fp8.te.fp8_autocast(True, fp8_recipe=recipe):
                y = net(x)
            if name == "outside":
                net(x)
            (engine_cells.loss_of(y, x) + other).backward()
        sent += found[0]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses.append([engine_cells.loss_of(y, x).item(), net(x).square().mean().item()])
    return losses, sent


def run(name, rank):
    values, sent = ([], 0) if name in REFUSED else train(name, False, rank)
    losses, fewer = train(name, True, rank)
    return {"losses": losses, "values": values, "bytes": [fewer, sent], "states": []}
