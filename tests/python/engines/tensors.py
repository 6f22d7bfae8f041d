# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py in which DTensor splits a model that was converted before: tensor:KIND. Of KINDS the ranks' whole output, that of
one process, and the scales of both; of REFUSED the error."""

import engine_cells

KINDS = ["column", "row", "pair", "sequence", "head"]
REFUSED = ["uneven", "dynamic", "static", "on_one"]


def net(sizes, norm=False):
    import torch
    torch.manual_seed(2)
    layers = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    parts = [part for layer in layers for part in (layer, torch.nn.GELU())][:-1]
    return torch.nn.Sequential(*([torch.nn.LayerNorm(sizes[0])] if norm else []), *parts).to("hpu")


def plans():
    """By kind the sizes of the layers, and how they are split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel as Column
    from torch.distributed.tensor.parallel import RowwiseParallel as Row
    from torch.distributed.tensor.parallel import SequenceParallel
    rows = Shard(1)
    return {"column": ((64, 96), {"0": Column(output_layouts=Replicate())}),
            "row": ((64, 96), {"0": Row(input_layouts=Replicate())}),
            "pair": ((64, 96, 48), {"0": Column(), "2": Row()}),
            "sequence": ((64, 96, 48), {"0": SequenceParallel(), "1": Column(input_layouts=rows), "3": Row(output_layouts=rows)}),
            "head": ((64, 96, 48), {"0": Row(input_layouts=Shard(-1), output_layouts=rows), "2": Column(input_layouts=rows, output_layouts=Replicate())}),
            "uneven": ((64, 95), {"0": Column(output_layouts=Replicate())})}


def output(model, x, group):
    import torch

    import fp8
    with torch.autocast("hpu", torch.bfloat16), fp8.te.fp8_autocast(True, fp8_recipe="nvidia", fp8_group=group):
        y = model(x)
        (y.to_local() if hasattr(y, "to_local") else y).float().square().mean().backward()
    return y


def run(cell, rank):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    import fp8
    kind = cell.partition(":")[2]
    sizes, plan = plans().get(kind, plans()["pair"])
    norm = kind == "sequence"
    x = torch.randn(2, 8, sizes[0], generator=torch.Generator().manual_seed(3)).to("hpu")
    mesh = init_device_mesh("hpu", (engine_cells.RANKS,))
    model, said = net(sizes, norm), {}
    if kind in ("dynamic", "static"):  # for inference
        fp8.quant.convert(model, {"mode": "QUANTIZE", "scale_method": "unit_scale"} if kind == "static" else
                          {"mode": "QUANTIZE", "dynamic_quantization": True, "scale_method": "maxabs_pcs_pow2"})
    elif kind != "on_one" or rank == 1:
        fp8.te.convert_modules(model)
    model = parallelize_module(model, mesh, plan)
    given = x
    if norm:  # each rank has its part of the tokens
        given = DTensor.from_local(x.chunk(engine_cells.RANKS, 1)[rank].contiguous(), mesh, (Shard(1),))
    if kind == "head":
        given = x.chunk(engine_cells.RANKS, 2)[rank].contiguous()
    y = output(model, given, torch.distributed.group.WORLD)
    if norm:  # its part of the tokens of the result
        parts = [torch.empty_like(y) for _ in range(engine_cells.RANKS)]
        torch.distributed.all_gather(parts, y.detach().contiguous())
        y = torch.cat(parts, 1)
    y = y.redistribute(placements=(Replicate(),)).to_local() if isinstance(y, DTensor) else y
    said["output"], said["states"] = y.detach().float().cpu().tolist(), engine_cells.states(model)
    whole = net(sizes, norm)
    fp8.te.convert_modules(whole)
    said["whole"] = output(whole, x, None).detach().float().cpu().tolist()
    said["whole_states"] = engine_cells.states(whole)
    return said
