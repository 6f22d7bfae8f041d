# SPDX-License-Identifier: Apache-2.0
"""Emulation: the names of Habana's package over the hpu device of fp8, which computes in the host's memory. It does not run beside the
real packages."""

import importlib.metadata

for _name in ("habana-torch-plugin", "habana-torch-dataloader", "habana-quantization-toolkit", "lightning-habana", "optimum-habana"):
    try:
        importlib.metadata.distribution(_name)
    except importlib.metadata.PackageNotFoundError:
        continue
    raise ImportError(f"fp8-habana-shim emulates {_name}, and found the real one: uninstall one of the two (pip uninstall fp8-habana-shim)")
