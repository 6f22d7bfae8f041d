# SPDX-License-Identifier: Apache-2.0
"""Models that train in fp8: their weights stay the parameters that they are, and get products in fp8 inside of regions."""

import json
import os
from typing import Union

import torch

from fp8 import _modules, quant
from fp8.te import _attached, _region, _sharded
from fp8.te import recipe as _recipe

_CHECKPOINTING = "_fp8_checkpointing"


def convert_modules(model: torch.nn.Module, replace_layers: bool = True, recipe: _recipe.Argument = None,
                    minimize_memory: bool = False) -> quant.Report:
    """Products of the model's linear layers run in fp8 inside of fp8_autocast from now on; parameters and hooks stay.

    replace_layers: False changes nothing; recipe: of these modules, whatever a region says; minimize_memory: backward casts weights
    again instead of keeping their codes. Returns what became of each matrix. Raises ValueError for a model that is converted already or
    not on hpu, RuntimeError naming the module for what can't be done; then nothing is converted."""
    text = _recipe.text_of(recipe)
    found, left = _modules.weights(model)
    own = {id(attached.weight(module).owned) for module, attached in _attached.within(model) if hasattr(module, "attaches_itself")}
    kept = [quant.Kept(matrix.name, "a module of fp8.te runs in fp8 by itself" if id(matrix.owned) in own else matrix.reason)
            for matrix in [*(weight for weight in found if id(weight.owned) in own), *left]]  # type: ignore[union-attr]
    itself = any(id(matrix.owned) in own for matrix in [*found, *left])
    found = [weight for weight in found if id(weight.owned) not in own]
    if not replace_layers:
        return quant.Report((), tuple([quant.Kept(weight.name, "replace_layers is False") for weight in found] + kept), ())
    if already := [weight.name for weight in found if _attached.of(weight.owner)]:
        raise ValueError(f"convert_modules: {already[0]}: the model is converted already: restore() it first")
    quant._on_hpu(found, "convert_modules")
    flattened = [name for name, module in model.named_modules() if hasattr(module, "_flat_param")]  # of FSDP
    if taken := [weight.name for weight in found if _sharded.is_sharded(weight.owned)] + flattened:
        raise ValueError(f"convert_modules: {taken[0]}: an engine has sharded its weight: convert the model before FSDP, ZeRO-3 or tensor "
                         "parallel takes it")
    for weight in found:
        weight.turn()
    tensors, names, kinds = _modules.columns(found)
    said = json.loads(torch.ops.fp8.attach_training(tensors, names, kinds, text or "habana", "", minimize_memory, bool(text)))
    converted = {module["name"] for module in said["converted"]}
    for weight, tensor in zip(found, tensors):
        if weight.name in converted:
            _attached.Attached(weight, text, minimize_memory).begin(weight.owner, tensor)
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing_enable") and _CHECKPOINTING not in module.__dict__:
            module.__dict__[_CHECKPOINTING] = module.register_forward_pre_hook(_region.give_contexts)
    kept = [quant.Kept(module["name"], module["reason"]) for module in said["skipped"]] + kept
    warnings = said["warnings"] if found or not itself else ()
    return quant.Report(tuple(quant.Converted(**module) for module in said["converted"]), tuple(kept), tuple(warnings))


def restore(model: torch.nn.Module) -> torch.nn.Module:
    """Undoes convert_modules(), and makes each module of fp8.te a plain one: the model trains in high precision again, and its state_dict
    has no fp8 state. Returns the model."""
    found = _attached.within(model)
    if not found:
        raise ValueError("restore: found no module that trains in fp8: convert_modules() makes them so")
    quant._on_hpu([attached.weight(module) for module, attached in found if attached.live], "restore")
    for module, attached in found:
        attached.stop(module)
        module.__dict__.pop(_attached.MARK, None)
        if isinstance(module.__dict__.get("forward"), _attached.Forward):
            del module.__dict__["forward"]
        for hook in attached.hooks:
            hook.remove()
    for module in model.modules():
        if hook := module.__dict__.pop(_CHECKPOINTING, None):
            hook.remove()
    return model


def export_amax(model: torch.nn.Module, prefix: Union[str, "os.PathLike[str]"]) -> list[str]:
    """Writes the amaxes that training recorded as a measurement, which fp8.quant.convert() reads: prefix is its
    dump_stats_path. Returns the files."""
    found = [attached.weight(module) for module, attached in _attached.within(model) if attached.live]
    quant._on_hpu(found, "export_amax")
    _attached.put_back()
    return list(torch.ops.fp8.export_amax(*_modules.columns(found), os.fspath(prefix)))
