# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs (entry point "torch.backends"): torch knows the hpu device from then on.

The library has to be there before the first backward, and an error here would be torch's: it is kept for
`torch.hpu.why_unavailable()` and for the first use."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import typing

import fp8
from fp8 import _library

_QUANTIZERS = "transformers.quantizers.auto"


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
    if _QUANTIZERS in sys.modules:
        _add_quantizer(sys.modules[_QUANTIZERS])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """transformers' table of quantizers gets ours when it is imported: importing it now would take seconds."""

    def find_spec(self, name: str, path: typing.Any = None, target: typing.Any = None) -> typing.Any:
        if name != _QUANTIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, execute = typing.cast(typing.Any, spec.loader), spec.loader.exec_module

            def execute_and_add(module: typing.Any) -> None:
                execute(module)
                _add_quantizer(module)
            loader.exec_module = execute_and_add
        return spec


def _add_quantizer(auto: typing.Any) -> None:
    """For compressed-tensors, which passes what is not for hpu on to transformers' own. Imported when it is called: parts of
    transformers are not there yet."""
    def quantizer(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        from fp8 import _transformers
        return _transformers.OnHpu(*args, **kwargs)
    if hasattr(auto, "AUTO_QUANTIZER_MAPPING"):
        auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] = quantizer
