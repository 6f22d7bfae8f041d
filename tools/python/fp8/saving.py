# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of converted models: save() writes what `fp8 quantize` does, load() reads any form; and the scales that a
state_dict has beside the codes.

    X.weight         codes, float8
    X.weight_scale   f32: [1], [outputs, 1], or the grid of blocks     value = code * scale
    X.input_scale    f32 [1], of static activations
"""

import json
import os
import pathlib
import sys
import typing

import torch

from fp8 import _checkpoint, _library, _modules
from fp8 import nn as _nn
from fp8.parameter import Fp8Parameter

_FORMS = {"default": "compressed-tensors", "huggingface": "inc", "vllm": "inc-vllm"}  # INC's names of them
Folder = typing.Union[str, "os.PathLike[str]"]


def _source(model: torch.nn.Module) -> str:
    """The folder of the checkpoint in high precision that the model was loaded from; "": not known."""
    config = pathlib.Path(str(getattr(model, "name_or_path", "") or "")) / "config.json"
    return str(config.parent) if config.exists() and "quantization_config" not in json.loads(config.read_text(encoding="utf-8")) else ""


def save(model: torch.nn.Module, output_dir: Folder = "./saved_results", format: str = "default", source: typing.Optional[Folder] = None,  # noqa: A002
         overwrite: bool = False) -> None:
    """Writes a converted model as a checkpoint.

    format: compressed-tensors (default), fp8, modelopt, or INC's huggingface and vllm; source: the checkpoint in high
    precision that config.json and the tokenizer are taken from, default the model's `name_or_path`. Raises RuntimeError
    naming the module for what the form can't hold, ValueError for an unknown form, and writes nothing then."""
    _library.require()
    form = _FORMS.get(format, format)
    if form not in torch.ops.fp8.forms():
        raise ValueError(f"save: format: found '{format}', allowed: {', '.join((*_FORMS, *torch.ops.fp8.forms()))}")
    columns, origin = _checkpoint.written(model), os.fspath(source) if source is not None else _source(model)
    if form == "compressed-tensors" and "transformers" in sys.modules:
        from fp8 import _transformers
        _transformers.check_linears(model, json.loads(torch.ops.fp8.quantization_config(*columns, form, origin)[0])["ignore"])
    torch.ops.fp8.save(*columns, os.fspath(output_dir), form, origin, overwrite, *_nn.nodes(model))
    if not origin and "transformers" in sys.modules:
        from fp8 import _transformers
        _transformers.write_config(model, pathlib.Path(output_dir))


def load(model_name_or_path: typing.Union[Folder, torch.nn.Module], format: str = "default", device: str = "hpu",  # noqa: A002
         checkpoint: typing.Optional[Folder] = None, **kwargs: typing.Any) -> torch.nn.Module:
    """A converted model on hpu from an fp8 checkpoint of any form.

    model_name_or_path: its folder, whose config.json names a class of transformers; or a model on hpu, with the folder
    as `checkpoint`. Raises FileNotFoundError, RuntimeError naming file and tensor."""
    del format
    _library.require()
    if device != "hpu":
        raise ValueError(f"load: device: found '{device}', allowed: hpu")
    model = model_name_or_path if isinstance(model_name_or_path, torch.nn.Module) else None
    place = model_name_or_path if not isinstance(model_name_or_path, torch.nn.Module) else checkpoint
    if place is None:
        raise ValueError("load: checkpoint: found None, expected the folder of the checkpoint")
    folder = pathlib.Path(place)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"load: {folder}: has no config.json")
    if model is None:
        from fp8 import _transformers
        return _transformers.load(folder, **kwargs)
    converted, taken = _checkpoint.adopt(model, folder)
    _load_rest(model, folder, taken)
    return loaded(model, converted)


def _load_rest(model: torch.nn.Module, folder: pathlib.Path, taken: set[str]) -> None:
    """What is in high precision."""
    from safetensors import safe_open
    state = _checkpoint.state_of(model)
    missing = {id(tensor): name for name, tensor in state.items() if not isinstance(tensor, Fp8Parameter)}
    with torch.no_grad():
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as reader:
                for name in set(reader.keys()) - taken:
                    if name not in state:
                        raise RuntimeError(f"load: {file}: tensor '{name}': the model has none of this name")
                    state[name].copy_(reader.get_tensor(name))
                    missing.pop(id(state[name]), None)
    if missing:
        raise RuntimeError(f"load: {folder}: has no tensor '{min(missing.values())}'")


def loaded(model: torch.nn.Module, converted: typing.Sequence[_modules.Weight]) -> torch.nn.Module:
    """A model whose codes came from a checkpoint: with the report of one that was converted here."""
    from fp8 import quant
    install(model, converted)
    quant._loaded(model, converted)
    return model


def install(model: torch.nn.Module, converted: typing.Sequence[_modules.Weight]) -> None:
    """From now on the scales go where the codes go: into state_dict(), and back out of one."""
    for weight in converted:
        for name in scale_names(weight.parameter):  # torch.distributed.checkpoint asks the module for each name of its state_dict
            weight.owner.__dict__.setdefault(name, None)
    for owner in {id(weight.owner): weight.owner for weight in converted}.values():
        owner._register_state_dict_hook(_write_scales)
        owner.register_load_state_dict_pre_hook(_read_scales)
    if "transformers" in sys.modules:
        from fp8 import _transformers
        _transformers.install(model)


def scale_names(parameter: str) -> tuple[str, str]:
    """Of the weight's scale and of its input's, in a state_dict."""
    return parameter + "_scale", (parameter.removesuffix("weight") if parameter.endswith("weight") else parameter + "_") + "input_scale"


def _coded(module: torch.nn.Module) -> list[tuple[str, Fp8Parameter]]:
    """Also those that torch.nn.utils.parametrize has put into a module of its own."""
    return [(name, p) for name, p in module.named_parameters(remove_duplicate=False) if isinstance(p, Fp8Parameter) and p.holds_codes]


def _write_scales(module: torch.nn.Module, state: dict[str, typing.Any], prefix: str, _: typing.Any) -> None:
    for name, parameter in _coded(module):
        if prefix + name in state and prefix + scale_names(name)[0] not in state:
            state.update(scales(prefix + name, parameter))


def scales(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """What lies beside a converted weight of that name: f32, on its device; values are codes * scale, but for blocks."""
    return dict(zip(scale_names(name), torch.ops.fp8.scales_beside(weight)))


def _read_scales(module: torch.nn.Module, state: dict[str, typing.Any], prefix: str, metadata: typing.Any, _strict: bool, _missing: list[str],
                 _unexpected: list[str], errors: list[str]) -> None:
    for name, parameter in _coded(module):
        if prefix + name not in state:
            continue
        codes = state[prefix + name]
        scale, given = (state.pop(prefix + known, None) for known in scale_names(name))
        try:
            if scale is not None or not torch.ops.fp8.describe(codes):  # others are of a model in this process: they have their scale
                codes = torch.ops.fp8.with_scales(codes, parameter, scale, given)
        except RuntimeError as error:
            errors.append(f"{prefix + name}: {error}")
            continue
        assigned = metadata.get("assign_to_params_buffers")  # torch would make a plain parameter
        state[prefix + name] = Fp8Parameter.of_codes(codes.to(state[prefix + name].device)) if assigned else codes
