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
from fp8.parameter import Fp8Parameter, is_transposed

_FORMS = {"default": "compressed-tensors", "huggingface": "inc", "vllm": "inc-vllm"}  # INC's names of them
Folder = typing.Union[str, "os.PathLike[str]"]


def _columns(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Parameters and buffers by the names of a checkpoint, and the type of the module that each belongs to."""
    kinds = {weight.key: weight.kind for weight in _modules.weights(model)[0]}
    return _checkpoint.written(model, kinds)


def _source(model: torch.nn.Module) -> str:
    """The folder of the checkpoint in high precision that the model was loaded from; "": not known."""
    config = pathlib.Path(str(getattr(model, "name_or_path", "") or "")) / "config.json"
    if not config.exists() or "quantization_config" in json.loads(config.read_text(encoding="utf-8")):
        return ""
    return str(config.parent)


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
    columns, origin = _columns(model), os.fspath(source) if source is not None else _source(model)
    if form == "compressed-tensors" and "transformers" in sys.modules:
        from fp8 import _transformers
        _transformers.check_linears(model, json.loads(torch.ops.fp8.quantization_config(*columns, form, origin))["ignore"])
    torch.ops.fp8.save(*columns, os.fspath(output_dir), form, origin, overwrite, *_nn.nodes(model))


def load(model_name_or_path: typing.Union[Folder, torch.nn.Module], format: str = "default", device: str = "hpu",  # noqa: A002
         checkpoint: typing.Optional[Folder] = None, **kwargs: typing.Any) -> torch.nn.Module:
    """A converted model on hpu from an fp8 checkpoint of any form.

    model_name_or_path: its folder, whose config.json names a class of transformers; or a model on hpu, with the folder
    as `checkpoint`. Raises FileNotFoundError, RuntimeError naming file and tensor."""
    del format
    _library.require()
    if device != "hpu":
        raise ValueError(f"load: device: found '{device}', allowed: hpu")
    if isinstance(model_name_or_path, torch.nn.Module):
        if checkpoint is None:
            raise ValueError("load: checkpoint: found None, expected the folder of the checkpoint")
        model, folder = model_name_or_path, pathlib.Path(checkpoint)
        if not folder.is_dir():
            raise FileNotFoundError(f"load: {folder}: no such folder")
        converted, taken = _checkpoint.adopt(model, folder)
        _load_rest(model, folder, taken)
        return loaded(model, converted)
    folder = pathlib.Path(model_name_or_path)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"load: {folder}: has no config.json")
    from fp8 import _transformers
    return _transformers.load(folder, **kwargs)


def _load_rest(model: torch.nn.Module, folder: pathlib.Path, taken: set[str]) -> None:
    """What is in high precision."""
    from safetensors import safe_open
    state = _checkpoint.state_of(model)
    missing = {name for name, tensor in state.items() if not isinstance(tensor, Fp8Parameter)}
    with torch.no_grad():
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as reader:
                for name in reader.keys():
                    if name in taken:
                        continue
                    if name not in state:
                        raise RuntimeError(f"load: {file}: tensor '{name}': the model has none of this name")
                    state[name].copy_(reader.get_tensor(name))
                    missing.discard(name)
    tied = {id(tensor) for name, tensor in state.items() if name not in missing}
    missing = {name for name in missing if id(state[name]) not in tied}
    if missing:
        raise RuntimeError(f"load: {folder}: has no tensor '{sorted(missing)[0]}'")


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
        owner.register_load_state_dict_post_hook(_restore_class)
    if "transformers" in sys.modules:
        from fp8 import _transformers
        _transformers.install(model)


def scale_names(parameter: str) -> tuple[str, str]:
    """Of the weight's scale and of its input's, in a state_dict."""
    return parameter + "_scale", (parameter.removesuffix("weight") if parameter.endswith("weight") else parameter + "_") + "input_scale"


def _coded(module: torch.nn.Module) -> list[tuple[str, Fp8Parameter]]:
    """Also those that torch.nn.utils.parametrize has put into a module of its own."""
    return [(name, p) for name, p in module.named_parameters(remove_duplicate=False) if isinstance(p, Fp8Parameter) and p.holds_codes]


def _write_scales(module: torch.nn.Module, state: dict[str, typing.Any], prefix: str, metadata: typing.Any) -> None:
    del metadata
    for name, parameter in _coded(module):
        if prefix + name not in state or prefix + scale_names(name)[0] in state:
            continue
        state.update(scales(prefix + name, parameter))


def scales(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """What lies beside a converted weight of that name: f32, on its device; values are codes * scale, but for blocks."""
    scale, scheme = torch.ops.fp8.scale_inv(weight).to(weight.device), json.loads(torch.ops.fp8.scheme_of(weight))
    transposed, (its, inputs) = is_transposed(weight), scale_names(name)
    if scheme["weights"] == "channel" and weight.dim() in (2, 3) and scale.numel() == weight.numel() // weight.size(-2 if transposed else -1):
        scale = scale.reshape(*weight.shape[:-2], 1, -1) if transposed else scale.reshape(*weight.shape[:-1], 1)
    found = {its: scale}
    if "input_scale_inv" in scheme:
        found[inputs] = torch.tensor([scheme["input_scale_inv"]], device=weight.device)
    return found


def _read_scales(module: torch.nn.Module, state: dict[str, typing.Any], prefix: str, metadata: typing.Any, strict: bool, missing: list[str],
                 unexpected: list[str], errors: list[str]) -> None:
    del strict, missing, unexpected
    for name, parameter in _coded(module):
        key = prefix + name
        if key not in state:
            continue
        scale, given = (state.pop(prefix + known, None) for known in scale_names(name))
        codes = state[key]
        if scale is None and torch.ops.fp8.describe(codes):
            continue  # of a model in this process: they have their scale
        if codes.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            errors.append(f"{key}: found {codes.dtype}, expected fp8 codes: load values before convert()")
            continue
        if scale is None:
            errors.append(f"{key}: found codes without '{key}_scale'")
            continue
        scheme = parameter.scheme
        if (given is not None) != ("input_scale_inv" in scheme):
            inputs = prefix + scale_names(name)[1]
            errors.append(f"{key}: found {'' if given is not None else 'no '}'{inputs}', the model's activations are {scheme['activations']}")
            continue
        if given is not None:
            scheme["input_scale_inv"] = float(given)
        upright = codes.detach().transpose(-2, -1) if parameter.transposed else codes.detach()
        tensor = upright.contiguous().to("hpu", copy=True)
        shape = (-1,) if scheme["weights"] == "channel" else tuple(parameter.scale_inv.shape)
        name_of_module = ", ".join(json.loads(torch.ops.fp8.tag_of(parameter))["modules"])
        try:
            torch.ops.fp8.tag(tensor, name_of_module, scale.detach().cpu().float().reshape(shape), json.dumps(scheme))
        except RuntimeError as error:
            errors.append(f"{key}: {error}")
            continue
        tensor = tensor.to(codes.device) if metadata.get("assign_to_params_buffers") else tensor
        state[key] = tensor.transpose(-2, -1) if parameter.transposed else tensor


def _restore_class(module: torch.nn.Module, incompatible: typing.Any) -> None:
    """load_state_dict(assign=True) makes plain parameters."""
    del incompatible
    for parameter in module.parameters():
        if type(parameter) is torch.nn.Parameter and torch.ops.fp8.describe(parameter):
            parameter.__class__ = Fp8Parameter
