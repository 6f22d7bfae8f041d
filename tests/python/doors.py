# SPDX-License-Identifier: Apache-2.0
"""What the tests of doors share: a model of two named layers, converted or attached, and what they call right or refused.

A door's two letters are what it does with a converted model (static, dynamic) and with one attached for training:
    r  right: the model's products keep their bits; a tensor is within 1e-6 of what dequantize() gave
    n  refused by an error that names the module
    t  refused by torch or safetensors themselves, whatever the model
    v  the values in high precision, on a device or in a dtype that has no products in fp8
    e  as v, or refused by an error that names the module
    s  learns on in fp8, with rounded weights
    x  known to be wrong: what the library has to refuse"""

import io

import pytest
import torch
import torch.nn.functional as F
from conftest import batch
from torch import nn

import fp8

NAMES = ("up_proj", "down_proj")
CONFIGS = {"static": {"scale_method": "act_maxabs_hw_weights_pcs_maxabs_pow2"},
           "dynamic": {"scale_method": "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "dynamic_quantization": True}}
OPS = torch.ops.fp8


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.up_proj, self.down_proj = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x):
        return self.down_proj(self.up_proj(x).relu())


def made(kind, folder):
    model = Net().to("hpu")
    if kind == "attached":
        OPS.attach_training([model.up_proj.weight, model.down_proj.weight], list(NAMES), ["Linear"] * 2, "nvidia")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            run(model, kind)
            optimizer.step()
        return model
    with torch.no_grad():
        if kind == "static":
            fp8.quant.prepare(model, {**CONFIGS[kind], "dump_stats_path": str(folder / "inc")})(batch())
        return fp8.quant.convert(model, None if kind == "static" else {**CONFIGS[kind], "mode": "QUANTIZE"})


def in_region(recipe, call):
    """What call() gives inside of an autocast region."""
    region = OPS.enter_autocast(recipe)
    try:
        found = call()
    except BaseException:
        OPS.exit_autocast(region, failed=True)
        raise
    OPS.exit_autocast(region)
    return found


def run(model, kind):
    """What it computes: its products, and the gradients of a step in training."""
    parameters = list(model.parameters())
    x = batch().to(parameters[-1].device, parameters[-1].dtype)  # a bias
    if kind != "attached":
        with torch.no_grad():
            return [model(x).cpu()]
    y = in_region("nvidia", lambda: model(x))
    model.zero_grad()
    y.square().mean().backward()
    return [t.detach().cpu() for t in (y, *sorted((p.grad for p in parameters), key=lambda grad: grad.shape))]


def high(values, x):
    return F.linear(F.linear(x, values[0], values[2]).relu(), values[1], values[3])


def near(found, expected):
    if OPS.describe(found):
        found = OPS.values(found)
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    assert found.shape == expected.shape
    assert float((found - expected).norm()) <= 1e-6 * max(float(expected.norm()), 1e-9)


def disk(item, **options):
    file = io.BytesIO()
    torch.save(item, file, **{k: v for k, v in options.items() if k.startswith("_")})
    file.seek(0)
    return torch.load(file, **{k: v for k, v in options.items() if not k.startswith("_")})


def group():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("hccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return "hpu"


def values_of(model):
    return [OPS.values(w).clone() if OPS.describe(w) else w.detach().clone() for w in (model.up_proj.weight, model.down_proj.weight,
                                                                                       model.up_proj.bias, model.down_proj.bias)]


def refused(letter, call):
    if letter == "x":
        call()
        pytest.xfail("not refused yet")
    with pytest.raises(Exception) as told:  # noqa: PT011: the name is what counts
        call()
    assert letter == "t" or any(name in str(told.value) for name in NAMES), told.value
