# SPDX-License-Identifier: Apache-2.0
"""What programs for other packages ask of this one: accelerate, transformers and DeepSpeed of the device, imports of their modules' names,
pickles of parameters that learn in fp8; and how arguments are refused."""

import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import types
import warnings
from typing import Any, Callable, Mapping

import torch

# What other packages call things, and what of it is here: of lightning-habana, of optimum.habana, arguments of Transformer Engine.
NAMES: dict[str, Any] = json.loads(pathlib.Path(__file__).with_name("names.json").read_text(encoding="utf-8"))


@functools.cache  # once
def tell_of_the_cpu() -> None:
    warnings.warn("accelerate: takes the CPU, and hpu is there: fp8.optimum.GaudiTrainer trains on hpu, and with fp8-habana-shim (pip install "
                  "tools/python/habana_shim) all of accelerate does. cpu=True (use_cpu=True of TrainingArguments) takes the CPU without this "
                  "warning", stacklevel=3)


def watch_accelerate(state: Any) -> None:
    """accelerate, and transformers' Trainer with it, look for Habana's package by name. Where they choose the CPU beside hpu, they say so."""
    chosen = state.PartialState.default_device.fget

    def default_device(self: Any) -> Any:
        device = chosen(self)
        if device.type == "cpu" and torch.hpu.is_available():
            tell_of_the_cpu()
        return device
    state.PartialState.default_device = property(default_device)
    set_device = state.PartialState.set_device

    def set_own_device(self: Any) -> None:
        """On Gaudi each process sees one device. Here a process takes that of its number, as DeepSpeed does."""
        if self.device is None and self.num_processes > 1 and torch.hpu.is_available() and torch.hpu.device_count() > self.local_process_index:
            torch.hpu.set_device(max(self.local_process_index, 0))
        set_device(self)
    state.PartialState.set_device = set_own_device


def choose_for_deepspeed(real: Any) -> None:
    """DeepSpeed takes hpu where fp8.deepspeed is imported, where DS_ACCELERATOR says so, and where there is a package of Habana's."""
    chosen = os.environ.get("DS_ACCELERATOR", "hpu" if importlib.util.find_spec("habana_frameworks") else "")
    if (chosen == "hpu" or "fp8.deepspeed" in sys.modules) and torch.hpu.is_available():
        importlib.import_module("fp8.deepspeed").know(real)


def keep_integers(utils: Any) -> None:
    """Where transformers finds a package of Habana's, it sends 64-bit integers on hpu through 32 bits: a bug of Gaudi's that is not here."""
    asked = utils.is_torch_hpu_available
    places = (torch, "gather"), (torch.Tensor, "gather"), (torch, "take_along_dim")

    @functools.cache
    def available() -> Any:
        before = [getattr(owner, name) for owner, name in places]
        found = asked()
        for (owner, name), function in zip(places, before):
            setattr(owner, name, function)
        return found
    available._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile takes the answer, as of transformers' own
    utils.is_torch_hpu_available = available


def check_pickled(tensor: torch.Tensor) -> None:
    """Raises RuntimeError for a parameter that learns in fp8."""
    is_one = isinstance(tensor, torch.nn.Parameter) and tensor.device.type == "hpu" and tensor.is_floating_point()
    tag = json.loads(torch.ops.fp8.tag_of(tensor)) if is_one else None
    if tag is not None and not tag["holds_codes"] and tag["handler"].startswith("fp8 training"):
        raise RuntimeError(f"weight of {', '.join(map(repr, tag['modules']))}: learns in fp8, and a pickled parameter would go on in high "
                           "precision: save or send the model's state_dict(), and torch.ops.fp8.save_training_state()")


def pickle_parameter(parameter: torch.nn.Parameter) -> Any:
    """For torch.save and pickle."""
    check_pickled(parameter)
    return parameter.__reduce_ex__(2)


def expect(holds: bool, where: str, key: str, found: object, allowed: str) -> None:
    """Raises ValueError unless an argument holds."""
    if not holds:
        raise ValueError(f"{where}: {key}: found {found}, allowed: {allowed}")


def alias(name: str, of: str | Mapping[str, Any] | Callable[[str], Any], doc: str) -> None:
    """Makes the module `name`, in its place. of: the module that has its names, which is imported when the first is asked for; a table of
    them; or what finds one."""
    def find(asked: str) -> Any:
        if callable(of):
            return of(asked)
        if isinstance(of, str) and not asked.startswith("__"):
            return getattr(importlib.import_module(of), asked)
        if isinstance(of, str) or asked not in of:
            raise AttributeError(f"{name} is emulated and has no '{asked}', allowed: {', '.join([] if isinstance(of, str) else of)}")
        return of[asked]
    module = types.ModuleType(name, doc)
    module.__dict__.update(__spec__=importlib.machinery.ModuleSpec(name, None, is_package=True), __path__=[], __getattr__=find)
    put(name, module)


def put(name: str, module: types.ModuleType) -> None:
    """`import name` gives that module."""
    sys.modules[name] = module
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
