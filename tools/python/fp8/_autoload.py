# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs (entry point "torch.backends"): torch knows the hpu device from then on.

The library has to be there before the first backward, and an error here would be torch's: it is kept for
`torch.hpu.why_unavailable()` and for the first use."""

import importlib
import sys

import fp8
from fp8 import _library


def autoload() -> None:
    if not _library.turned_off() or fp8._before_torch:
        try:
            register()
        except Exception as error:  # noqa: BLE001: of a torch that this package does not know
            print(f"fp8: warning: the hpu device is not there: {_library.sentence(error)}", file=sys.stderr)
        return
    for name in ("fp8", "fp8._library", "fp8._autoload"):  # so that a later `import fp8` is the first one
        sys.modules.pop(name, None)


def register() -> None:
    """Loads the library and makes fp8.hpu torch.hpu, once."""
    import torch
    if hasattr(torch, "hpu"):
        return
    _library.load()
    hpu = importlib.import_module("fp8.hpu")
    torch._register_device_module("hpu", hpu)
    hpu._begin()
