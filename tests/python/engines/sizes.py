# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py with a model of 20 M parameters, sizes:ENGINE: bytes that a rank has after initialisation, bytes that it gives to
all_gather in a step, and the model's own bytes."""

import gathering

ENGINES = ("zero3", "zero3_codes", "fsdp2", "fsdp2_bf16", "fsdp2_codes")
CELLS = [f"sizes:{engine}" for engine in ENGINES]
HIDDEN, LAYERS = 1024, 20


def run(name, rank):
    import gc

    import engine_cells
    import torch

    import fp8

    def in_use():
        gc.collect()
        return torch.ops.fp8.memory_stats(torch.hpu.current_device())["InUse"]
    before = in_use()
    net = torch.nn.Sequential(*(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))).to("hpu")
    whole = in_use() - before
    fp8.te.convert_modules(net)
    if name.startswith("zero"):
        engine = engine_cells._deepspeed(net, name, "fp8", reduce_bucket_size=1 << 18, allgather_bucket_size=1 << 18,
                                         zero_quantized_weights=name.endswith("codes"))
    else:
        from torch.distributed import fsdp
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16 if name != "fsdp2" else None)
        for layer in net:
            fsdp.fully_shard(layer, mp_policy=policy)
        engine = fsdp.fully_shard(net, mp_policy=policy)
        if name == "fsdp2_codes":
            fp8.te.gather_in_fp8(net)
    one = in_use() - before
    x = torch.randn(4, HIDDEN).to("hpu")
    with gathering.counted() as sent:
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=torch.distributed.group.WORLD):
            loss = engine(x).float().square().mean()
        engine.backward(loss) if name.startswith("zero") else loss.backward()
    return {"losses": [loss.item()], "states": [], "whole": whole, "one": one, "sent": sent[0], "parameters": sum(
        getattr(p, "ds_numel", p.numel()) for p in net.parameters())}
