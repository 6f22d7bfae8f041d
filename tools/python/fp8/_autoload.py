# SPDX-License-Identifier: Apache-2.0
"""What torch calls by entry points: `import torch` knows the hpu device from then on, and torch.compile the backend "fp8".

The library has to be there before the first backward, and an error here would be torch's: it is kept for
`torch.hpu.why_unavailable()` and for the first use."""

import importlib
import importlib.machinery
import os
import pkgutil
import sys
import typing

import fp8
from fp8 import _library

_TRAINER = "trainer.connectors.accelerator_connector"


def autoload() -> None:
    """FP8_AUTOLOAD=0 leaves torch as it is until fp8 is imported."""
    if os.environ.get("FP8_AUTOLOAD", "1").lower() not in ("0", "false", "off") or fp8._before_torch:
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
    for name in set(_LATER) & set(sys.modules):
        _know(name, sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Packages that choose by tables of their own get ours when they are imported: importing them now would take seconds."""

    def find_spec(self, name: str, path: typing.Any = None, target: typing.Any = None) -> typing.Any:
        if name not in _LATER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, execute = typing.cast(typing.Any, spec.loader), spec.loader.exec_module

            def execute_and_know(module: typing.Any) -> None:
                execute(module)
                _know(name, module)
            loader.exec_module = execute_and_know
        return spec


def _know(name: str, module: typing.Any) -> None:
    """Another version of the package than this one knows stays as it is."""
    try:
        pkgutil.resolve_name(_LATER[name])(module)
    except Exception as error:  # noqa: BLE001
        print(f"fp8: warning: {name} goes without hpu: {_library.sentence(error)}", file=sys.stderr)


def _add_quantizer(auto: typing.Any) -> None:
    """For compressed-tensors; what is not for hpu goes on to transformers' own. Imported when called: parts are not there yet."""
    if hasattr(auto, "AUTO_QUANTIZER_MAPPING"):
        auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] = lambda *args, **kwargs: pkgutil.resolve_name("fp8._transformers:OnHpu")(*args, **kwargs)


# Module: what is called with it when it is there, by pkgutil.resolve_name().
_LATER = {
    "transformers.quantizers.auto": "fp8._autoload:_add_quantizer", "transformers.utils.import_utils": "fp8._trainers:keep_integers",
    "accelerate.state": "fp8._trainers:watch_accelerate", "deepspeed.accelerator.real_accelerator": "fp8._trainers:choose_for_deepspeed",
    **dict.fromkeys((f"lightning.pytorch.{_TRAINER}", f"pytorch_lightning.{_TRAINER}", "lightning.fabric.connector", "lightning_fabric.connector"),
                    "fp8.lightning:teach")}


def backend(module: typing.Any, inputs: list[typing.Any], **kwargs: typing.Any) -> typing.Callable[..., typing.Any]:
    """What torch.compile(model, backend="fp8") calls: AOTAutograd's eager graphs, of the runtime's operators."""
    from torch._dynamo.backends.debugging import aot_eager
    return typing.cast(typing.Callable[..., typing.Any], aot_eager(module, inputs, **kwargs))


def refuse_inductor() -> None:
    """Graphs with inputs on hpu never come to inductor, which makes code for other devices and would end in KeyError 'hpu'."""
    import torch
    wrapper: typing.Any = torch._TorchCompileInductorWrapper
    plain = wrapper.__call__

    def call(self: typing.Any, model_: typing.Any, inputs_: typing.Any, **options: typing.Any) -> typing.Any:
        if any(isinstance(t, torch.Tensor) and t.device.type == "hpu" for t in inputs_):
            raise RuntimeError("torch.compile: found backend 'inductor' for tensors on hpu, allowed: 'fp8', 'eager', 'aot_eager'")
        return plain(self, model_, inputs_, **options)

    wrapper.__call__ = call
