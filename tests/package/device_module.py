# SPDX-License-Identifier: Apache-2.0
"""How the scripts beside this one begin: the torch that the library was built with, and its hpu device."""
import contextlib, os, sys, types

def load(library, version):
    """torch, with the library's operators; ends the script with SKIPPED where it is missing or of another version."""
    try: import torch
    except ImportError: sys.exit("SKIPPED: this Python has no torch")
    if not torch.__version__.startswith(version + "."):
        sys.exit(f"SKIPPED: this Python has torch {torch.__version__}, the library was built with {version}")
    torch.ops.load_library(library)
    hpu = types.ModuleType("torch.hpu")  # what torch asks for at the device's first tensor, in torch.accelerator, in torch.load
    hpu._lazy_init, hpu.is_available, hpu.device_count = (lambda: None), (lambda: True), (lambda: 1)
    hpu.current_device, hpu.device, hpu.is_initialized = (lambda: 0), (lambda index: contextlib.nullcontext()), (lambda: True)
    hpu.get_rng_state, hpu.set_rng_state = torch.get_rng_state, torch.set_rng_state  # the device draws from the CPU's generator
    torch._register_device_module("hpu", hpu)
    from multiprocessing.reduction import ForkingPickler
    from torch.multiprocessing.reductions import reduce_tensor
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    crossing = lambda t: (torch.Tensor.to, (t.detach().cpu(), "hpu")) if t.device.type == "hpu" else reduce_tensor(t)
    ForkingPickler.register(torch.Tensor, crossing)
    return torch
