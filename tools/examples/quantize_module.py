#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain torch.nn model from Python, in fp8: measured, quantized, saved, trained. No binding code, no change of the model.

  python tools/examples/quantize_module.py .../libfp8_transformer_engine.so OUT

The torch is the one that the library was built with (./tools/setup --python prints such a Python)."""

import contextlib
import json
import os
import sys
import types
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing.reductions import reduce_tensor

library, out = sys.argv[1:]
torch.ops.load_library(library)
hpu = types.ModuleType("torch.hpu")  # what torch asks for at the device's first tensor
hpu._lazy_init, hpu.is_available, hpu.device_count = (lambda: None), (lambda: True), (lambda: 1)
hpu.current_device, hpu.device, hpu.is_initialized = (lambda: 0), (lambda _: contextlib.nullcontext()), (lambda: True)
torch._register_device_module("hpu", hpu)
fp8 = torch.ops.fp8
torch.autograd.set_multithreading_enabled(False)  # a thread of backward that is not done when Python ends aborts it,
os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")  # and one that never began is waited for
crossing = lambda t: (torch.Tensor.to, (t.detach().cpu(), "hpu")) if t.device.type == "hpu" else reduce_tensor(t)
ForkingPickler.register(torch.Tensor, crossing)  # a DataLoader's workers may give hpu tensors


def linears(model):
    """Weights, names and class names: what each of the operators takes."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return [module.weight for _, module in found], [name for name, _ in found], ["Linear"] * len(found)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")


# Inference: measure, convert, save.
model, x = net(), torch.randn(16, 64).to("hpu")
with torch.no_grad():
    before = model(x)
    session = fp8.measure_begin(*linears(model), prefix=f"{out}/stats/inc_output")
    model(x)
    fp8.measure_end(session)
    report = json.loads(fp8.convert(*linears(model), json.dumps({"measurements": f"{out}/stats"})))
    error = ((model(x) - before).norm() / before.norm()).item()
state = model.state_dict()
fp8.save(list(state.values()), list(state), ["Linear"] * len(state), f"{out}/checkpoint", overwrite=True)
print(f"{len(report['converted'])} modules in fp8, {'less' if error < 0.1 else 'more'} than 10 % error")

# Training: any optimizer, the model's code as it is.
model, target = net(), torch.randn(64, 32).to("hpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
fp8.attach_training(*linears(model), "nvidia")
losses = []
for _ in range(20):
    x = torch.randn(32, 64).to("hpu")
    region = fp8.enter_autocast("nvidia", True)
    loss = (model(x) - x @ target).pow(2).mean()
    fp8.exit_autocast(region)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("the loss", "falls" if losses[-1] < losses[0] else "does not fall")
