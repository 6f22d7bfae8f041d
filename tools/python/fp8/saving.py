# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of converted models: save() writes what `fp8 quantize` does, load() reads any form; and the scales that a
state_dict has beside the codes. A model's weights are written as its checkpoint has them: transformers cuts, joins and renames
when it loads one (stacked experts lie one by one), and scales go with the rows of the codes, wherever its own reversal takes
them, and back.

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

from fp8 import _library, _modules
from fp8 import nn as _nn
from fp8.parameter import Fp8Parameter

_FORMS = {"default": "compressed-tensors", "huggingface": "inc", "vllm": "inc-vllm"}  # INC's names of them
Folder = typing.Union[str, "os.PathLike[str]"]
Tensors = dict[str, torch.Tensor]


def _source(model: torch.nn.Module) -> str:
    """The folder of the checkpoint in high precision that the model was loaded from; "": not known."""
    config = pathlib.Path(str(getattr(model, "name_or_path", "") or "")) / "config.json"
    return str(config.parent) if config.exists() and "quantization_config" not in json.loads(config.read_text(encoding="utf-8")) else ""


def save(model: torch.nn.Module, output_dir: Folder = "./saved_results", format: str = "default", source: typing.Optional[Folder] = None,
         overwrite: bool = False) -> None:
    """Writes a converted model as a checkpoint.

    format: compressed-tensors (default), fp8, modelopt, or INC's huggingface and vllm; source: the checkpoint in high
    precision that config.json and the tokenizer are taken from, default the model's `name_or_path`. Raises RuntimeError
    naming the module for what the form can't hold, ValueError for an unknown form, and writes nothing then."""
    _library.require()
    for name, module in model.named_modules():
        if (ranks := getattr(module, "tp_world_size", 1)) > 1:  # of DeepSpeed's layers
            raise RuntimeError(f"save: {name}: its weight is one of {ranks} parts, which ranks have of it (DeepSpeed has split the model), expected "
                               "the whole: save the model before deepspeed.init_inference() splits it")
    form = _FORMS.get(format, format)
    if form not in torch.ops.fp8.forms():
        raise ValueError(f"save: format: found '{format}', allowed: {', '.join((*_FORMS, *torch.ops.fp8.forms()))}")
    columns, origin = written(model), os.fspath(source) if source is not None else _source(model)
    ours = of_transformers(model)
    if ours and form == "compressed-tensors":
        ours.check_linears(model, json.loads(torch.ops.fp8.quantization_config(*columns, form, origin)[0])["ignore"])
    torch.ops.fp8.save(*columns, os.fspath(output_dir), form, origin, overwrite, *_nn.nodes(model))
    if ours and not origin:
        ours.write_config(model, pathlib.Path(output_dir))


def load(model_name_or_path: typing.Union[Folder, torch.nn.Module], format: str = "default", device: str = "hpu",  # noqa: A002
         checkpoint: typing.Optional[Folder] = None, **kwargs: typing.Any) -> torch.nn.Module:
    """A converted model on hpu from an fp8 checkpoint of any form.

    model_name_or_path: its folder, whose config.json names a class of transformers; or a model on hpu, with the folder
    as `checkpoint`. Raises FileNotFoundError, RuntimeError naming file and tensor."""
    del format
    _library.require()
    if device != "hpu":
        raise ValueError(f"load: device: found '{device}', allowed: hpu")
    model, place = (model_name_or_path, checkpoint) if isinstance(model_name_or_path, torch.nn.Module) else (None, model_name_or_path)
    if place is None:
        raise ValueError("load: checkpoint: found None, expected the folder of the checkpoint")
    folder = pathlib.Path(place)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"load: {folder}: has no config.json")
    if model is None:
        from fp8 import _transformers
        return _transformers.load(folder, **kwargs)
    from fp8 import quant
    taken, state = adopt(model, folder), state_of(model)
    torch.ops.fp8.load_others(list(state.values()), list(state), str(folder), taken)
    return quant._loaded(model)


def state_of(model: torch.nn.Module) -> Tensors:
    """Parameters and persistent buffers by name, themselves; tied ones under each of their names."""
    persistent = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()) if name in persistent}


def of_transformers(model: torch.nn.Module) -> typing.Any:
    """fp8._transformers for one of transformers' models, else None. Who has no such model need not have transformers."""
    if not isinstance(model, getattr(sys.modules.get("transformers"), "PreTrainedModel", ())):
        return None
    from fp8 import _transformers
    return _transformers


def reversed_names(model: torch.nn.Module, state: Tensors) -> Tensors:
    """The state by the names of the model's checkpoint, cut as there. Models of others keep their names."""
    ours = of_transformers(model)
    return ours.reversed_names(model, state) if ours else state


def once(model: torch.nn.Module, state: Tensors) -> Tensors:
    """Without what is tied to another, under the name that the model's reader expects."""
    ours = of_transformers(model)
    first: dict[int, str] = {}
    return {name: tensor for name, tensor in (ours.once(model, state) if ours else state).items() if first.setdefault(id(tensor), name) == name}


def _rows(model: torch.nn.Module, state: Tensors) -> tuple[typing.Any, ...]:
    """The rows of a model's state, numbered through all of it, as operators take them (quant/model/rows_of_model.h): in the model,
    and by the names of the checkpoint, where the reversal takes numbers in the place of values."""
    transposed = {weight.key for weight in _modules.weights(model)[0] if weight.transposed}

    def turned(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(-2, -1) if name in transposed else tensor
    numbers = torch.ops.fp8.number_rows([turned(name, tensor.detach()) for name, tensor in state.items()])
    given = {name: turned(name, rows) for name, rows in zip(state, numbers)}
    cut = reversed_names(model, dict(given))
    return list(state.values()), list(state), list(transposed), list(given.values()), list(cut.values()), list(cut)


def written(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Tensors, names and types of modules as a checkpoint has them: what fp8::save takes. Tied ones stand at the end once more:
    they are not stored, but named to readers. Raises RuntimeError naming the module for codes whose scales can't go where the
    codes go."""
    every, kinds = state_of(model), {weight.key: weight.kind for weight in _modules.weights(model)[0]}
    state = once(model, every)
    rows = _rows(model, state)
    cut, names = set(torch.ops.fp8.cut_weights(*rows)), rows[-1]
    values = reversed_names(model, {name: t.detach().cpu().view(torch.uint8) if name in cut else t for name, t in state.items()})
    tensors, types = torch.ops.fp8.written_by_rows(*rows, [kinds.get(name, "") for name in state], [values[name] for name in names])
    stored = {id(tensor) for tensor in state.values()}
    tied = [name for name in every if name not in state and name not in values and id(every[name]) in stored]
    return [*tensors, *(every[name] for name in tied)], names + tied, [*types, *(kinds.get(name, "") for name in tied)]


def adopt(model: torch.nn.Module, folder: pathlib.Path) -> list[str]:
    """Puts the codes of a checkpoint in the place of the model's weights, which may hold anything. Returns the tensors
    that are done with. Raises RuntimeError naming folder and tensor."""
    return typing.cast(list[str], torch.ops.fp8.load_by_rows(*_rows(model, once(model, state_of(model))), str(folder)))


def install(model: torch.nn.Module, converted: typing.Sequence[_modules.Weight]) -> None:
    """From now on the scales go where the codes go: into state_dict(), and back out of one."""
    for weight in converted:
        for name in scale_names(weight.parameter):  # torch.distributed.checkpoint asks the module for each name of its state_dict
            weight.owner.__dict__.setdefault(name, None)
    for owner in {id(weight.owner): weight.owner for weight in converted}.values():
        owner._register_state_dict_hook(_write_scales)
        owner.register_load_state_dict_pre_hook(_read_scales)
    if ours := of_transformers(model):
        ours.install(model)


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
