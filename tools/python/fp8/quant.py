# SPDX-License-Identifier: Apache-2.0
"""Measuring, quantizing, saving and loading a model, with the names of Intel Neural Compressor's PyTorch API.

    >>> import torch, fp8, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")
    >>> config = fp8.quant.FP8Config(scale_method="maxabs_pow2", dump_stats_path=folder + "/stats/inc")
    >>> model = fp8.quant.prepare(model, config)
    >>> with torch.no_grad():
    ...     _ = model(torch.randn(16, 64).to("hpu"))
    >>> model = fp8.quant.convert(model)
    >>> [module.name for module in fp8.quant.report(model).converted]
    ['0', '2']
"""

import atexit
import contextlib
import dataclasses
import importlib
import json
import os
import re
import sys
import typing
import weakref

import torch

from fp8 import _modules
from fp8 import nn as _nn
from fp8._config import Config as Config
from fp8._config import FP8Config as FP8Config
from fp8._config import config_of as _config_of
from fp8._modules import register as register
from fp8.parameter import Fp8Parameter
from fp8.saving import install as _install
from fp8.saving import load as load
from fp8.saving import save as save

_Columns = tuple[list[torch.Tensor], list[str], list[str]]  # weights, names and types
_CALIBRATION, _REPORT, _CONFIG = "_fp8_calibration", "_fp8_report", "_fp8_config"


@dataclasses.dataclass(frozen=True)
class Converted:
    """A module in fp8. scheme: "E4M3 tensor weights, static tensor activations, ocp"; bytes: of its weight."""
    name: str
    type: str
    scheme: str
    bytes_before: int
    bytes_after: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """A module in high precision, and why."""
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What convert() did."""
    converted: tuple[Converted, ...]
    kept: tuple[Kept, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        before, after = (sum(getattr(m, key) for m in self.converted) for key in ("bytes_before", "bytes_after"))
        lines = [f"{len(self.converted)} modules in fp8, {before:,} bytes before, {after:,} after"]
        lines += [f"kept {m.name}: {m.reason}" for m in self.kept]
        return "\n".join(lines + [f"warning: {text}" for text in self.warnings])


class _Calibration:
    """A calibration that is going on. Copies and pickles of the model have none."""

    def __init__(self, session: int, config: FP8Config, model: torch.nn.Module) -> None:
        self.session, self.config, self.process = session, config, os.getpid()
        self.hooks = [model.register_forward_pre_hook(_count_samples, with_kwargs=True), model.register_forward_hook(_samples_done)]
        _open.add(self)

    def __reduce__(self) -> typing.Any:
        return type(None), ()

    def end(self) -> list[str]:
        """The files. Where they can't be written it goes on, and may be ended again."""
        files = list(torch.ops.fp8.measure_end(self.session, True)) if self.session else []
        self.session = 0
        for hook in self.hooks:
            hook.remove()
        return files


def _count_samples(model: torch.nn.Module, args: tuple[typing.Any, ...], kwargs: dict[str, typing.Any]) -> None:
    """A forward's samples are the rows of its first tensor: what the files call NumSamples."""
    if calibration := model.__dict__.get(_CALIBRATION):
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        torch.ops.fp8.measure_forward(calibration.session, *tensors[:1])


def _samples_done(model: torch.nn.Module, args: typing.Any, output: typing.Any) -> None:
    if calibration := model.__dict__.get(_CALIBRATION):
        torch.ops.fp8.measure_forward_done(calibration.session)


_open: "weakref.WeakSet[_Calibration]" = weakref.WeakSet()


@atexit.register
def _end_open() -> None:
    """Python that ends, by Ctrl-C too, writes what was measured."""
    for calibration in list(_open):
        if calibration.process == os.getpid():
            calibration.end()


def _on_hpu(found: typing.Sequence[_modules.Weight], function: str) -> None:
    for weight in found:
        tensor = weight.tensor
        if weight.parameter not in weight.owner._parameters:
            raise ValueError(f"{function}: {weight.name}: expected a parameter, found a {type(tensor).__name__} that is a buffer or computed from "
                             "parameters: remove_parametrizations(), or register it as a parameter")
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{function}: {weight.name}: its weight has no values yet: run the model once")
        if tensor.device.type != "hpu":
            raise ValueError(f"{function}: {weight.name}: expected its weight on hpu, found it on {tensor.device}: model.to('hpu')")


def _selected(model: torch.nn.Module, config: FP8Config, function: str) -> tuple[list[_modules.Weight], list[_modules.Left], _Columns]:
    """The weights that can be in fp8, whose memory has rows of outputs from now on, the matrices that can't, and what operators take."""
    found, left = _modules.weights(model, config.to_dict().get("allowlist") or {})
    _on_hpu(found, function)
    for weight in found:
        if _modules.TRAINING in weight.owner.__dict__:
            raise ValueError(f"{function}: {weight.name}: its module trains in fp8: fp8.te.restore(model) first")
        weight.turn()
    return found, left, _modules.columns(found)


@contextlib.contextmanager
def _named_errors() -> typing.Iterator[None]:
    """The library's errors are RuntimeErrors: a file that is missing and a config's key get their own."""
    try:
        yield
    except RuntimeError as error:
        if ": no such file" in str(error):
            raise FileNotFoundError(str(error)) from None
        if re.search(r": (unknown )?key '", str(error)):
            raise ValueError(str(error)) from None
        raise


def prepare(model: torch.nn.Module, config: Config = None) -> torch.nn.Module:
    """Watches the model's modules: run it on data, then call convert() or finalize_calibration().

    config: default the file that QUANT_CONFIG names. Returns the model. Raises ValueError for a model that is not on hpu,
    is prepared or converted already, or a config of mode QUANTIZE or LOAD."""
    config = _config_of(config, "prepare")
    if config.mode in ("QUANTIZE", "LOAD"):
        raise ValueError(f"prepare: mode: found {config.mode}, allowed: MEASURE, SHAPE, AUTO; convert() quantizes")
    if model.__dict__.get(_CALIBRATION) is not None:
        raise ValueError("prepare: the model is prepared already: convert() or finalize_calibration() comes next")
    if model.__dict__.get(_REPORT) is not None:
        raise ValueError("prepare: the model is converted already: measure the one in high precision")
    if config.mode == "NONE":
        return model
    found, _, columns = _selected(model, config, "prepare")
    biases = [bias if isinstance(bias, torch.Tensor) else None for bias in (getattr(weight.owner, "bias", None) for weight in found)]
    mode = json.dumps({**config.to_dict(), "mode": "SHAPE" if config.mode == "SHAPE" else "MEASURE"})
    with _named_errors():
        session = torch.ops.fp8.measure_begin(*columns, biases, "", mode, *_nn.nodes(model))
    model.__dict__[_CALIBRATION] = _Calibration(session, config, model)
    if config.mode != "SHAPE" and (added := _added(model, config)):
        model.__dict__[_CALIBRATION].hooks += [importlib.import_module("fp8.deepspeed").measure_reduced(module) for _, module in added]
    return model


def finalize_calibration(model: torch.nn.Module) -> list[str]:
    """Writes the measurement and stops watching. Returns the files. Raises ValueError for a model that is not prepared."""
    calibration = model.__dict__.get(_CALIBRATION)
    if calibration is None:
        raise ValueError("finalize_calibration: the model is not prepared, or its calibration has ended")
    files = calibration.end()
    model.__dict__.update({_CONFIG: calibration.config, _CALIBRATION: None})
    return typing.cast(list[str], files)


save_measurements = finalize_calibration


def convert(model: torch.nn.Module, config: Config = None) -> torch.nn.Module:
    """Puts the modules that the config selects into fp8, with the scales of its measurement.

    config: default that of prepare(), else the file that QUANT_CONFIG names. Returns the model; report(model) says what
    was done. Raises ValueError for a model that is converted already and for a config that the device does not take,
    FileNotFoundError for a measurement, RuntimeError naming the module for what can't be done; then nothing is converted."""
    if model.__dict__.get(_REPORT) is not None:
        raise ValueError("convert: the model is converted already")
    _end_measurement(model)
    config = _config_of(config if config is not None else model.__dict__.get(_CONFIG), "convert")
    if config.mode in ("MEASURE", "SHAPE"):
        raise ValueError(f"convert: mode: found {config.mode}, allowed: QUANTIZE, LOAD, AUTO; prepare() measures")
    if config.mode == "NONE":
        return model
    found, left, columns = _selected(model, config, "convert")
    options = json.dumps({"quant_config": {**config.to_dict(), "mode": "LOAD" if config.mode == "LOAD" else "QUANTIZE"}})
    with _named_errors():
        said = json.loads(torch.ops.fp8.convert(*columns, options, *_nn.nodes(model)))
    for weight, tensor in zip(found, columns[0]):
        if weight.transposed:
            weight.owned.data = tensor.transpose(-2, -1)
    scales = {module["name"]: module.pop("reduced_scale_inv", None) for module in said["converted"]}
    _finish(model, found, left, said)
    for name, module in _added(model, config):
        if name in scales:
            importlib.import_module("fp8.deepspeed").reduce_in_fp8(module, scales[name])
    return model


def _by_mode(model: torch.nn.Module, config: FP8Config) -> torch.nn.Module:
    """prepare() or convert(), whichever the config asks for."""
    return prepare(model, config) if config.mode in ("MEASURE", "SHAPE") else convert(model, config)


def _end_measurement(model: torch.nn.Module) -> None:
    """Writes what was measured, if it was."""
    if model.__dict__.get(_CALIBRATION) is not None:
        finalize_calibration(model)


def _added(model: torch.nn.Module, config: FP8Config) -> list[tuple[str, torch.nn.Module]]:
    """The modules whose ranks' results are added as fp8 codes; none unless the config asks for it and DeepSpeed split the model."""
    if str(config.to_dict().get("row_parallel_linear_allreduce_quantization")).lower() != "true" or "deepspeed" not in sys.modules:
        return []
    return typing.cast(list[tuple[str, torch.nn.Module]], importlib.import_module("fp8.deepspeed").that_add(model))


def _finish(model: torch.nn.Module, found: typing.Sequence[_modules.Weight], left: typing.Sequence[_modules.Left],
            said: typing.Mapping[str, typing.Any]) -> None:
    """Makes Fp8Parameters of what is converted, and the report."""
    converted = tuple(Converted(**module) for module in said["converted"])
    names = {module.name for module in converted}
    changed = [weight for weight in found if weight.name in names]
    for weight in changed:
        Fp8Parameter.of(weight)
    _install(model, changed)
    kept = [Kept(**module) for module in said["skipped"]] + [Kept(module.name, module.reason) for module in left]
    model.__dict__[_REPORT] = Report(converted, tuple(kept), tuple(said["warnings"]))


def _loaded(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose codes came from a checkpoint: with the report of one that was converted here."""
    found, left = _modules.weights(model)
    _finish(model, found, left, json.loads(torch.ops.fp8.report_of(*_modules.columns(found))))
    return model


def report(model: torch.nn.Module) -> Report:
    """Of convert(). Raises ValueError for a model that is not converted."""
    found = model.__dict__.get(_REPORT)
    if found is None:
        raise ValueError("report: the model is not converted")
    return typing.cast(Report, found)
