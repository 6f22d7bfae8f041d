# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are the weights of products: found by the classes of its modules, not by their names."""

import dataclasses
import difflib
import functools
import typing

import torch

from fp8._autoload import register as _register_device

_register_device()

# Base class: the type of it and of its subclasses, unless their own name is a type (FalconLinear, LoRACompatibleLinear).
_BASES: tuple[tuple[type, str], ...] = (
    (torch.nn.Linear, "Linear"), (torch.nn.Conv1d, "Conv1d"), (torch.nn.Conv2d, "Conv2d"), (torch.nn.Conv3d, "Conv3d"),
    (torch.nn.Embedding, "Embedding"), (torch.nn.EmbeddingBag, "EmbeddingBag"))
_RECURRENT = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell)


@dataclasses.dataclass(frozen=True)
class Registration:
    """One's own class: the type that it counts as, its attribute that is the weight, and whether that is [inputs, outputs]."""
    kind: str
    weight: str = "weight"
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight of a model. name: the module's, as in lists of a QUANT_CONFIG; parameter: its attribute of the owner."""
    name: str
    kind: str
    owner: torch.nn.Module
    parameter: str
    transposed: bool = False

    @property
    def tensor(self) -> torch.Tensor:
        return typing.cast(torch.Tensor, getattr(self.owner, self.parameter))

    @property
    def bias(self) -> typing.Optional[torch.Tensor]:
        found = getattr(self.owner, "bias", None)
        return found if isinstance(found, torch.Tensor) else None


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A module with a matrix that no type is known for."""
    name: str
    class_name: str
    parameter: str


_registered: dict[type, Registration] = {}


@functools.lru_cache(maxsize=1)
def types() -> frozenset[str]:
    """All that the library knows, INC's names."""
    from fp8 import _library
    _library.require()
    return frozenset(torch.ops.fp8.module_types())


def register(cls: type, kind: str = "Linear", weight: str = "weight", transposed: bool = False) -> None:
    """Modules of a class, and of its subclasses, count as `kind`; their attribute `weight` is [outputs, inputs], or
    [inputs, outputs] with `transposed`. Raises ValueError for a kind that is not known, and names the nearest."""
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise TypeError(f"register: cls: found {cls!r}, expected a subclass of torch.nn.Module")
    if kind not in types():
        near = difflib.get_close_matches(kind, types(), 1, 0)
        raise ValueError(f"register: kind: found '{kind}', the nearest that is known is '{near[0]}'")
    _registered[cls] = Registration(kind, weight, transposed)


def _registration(module: torch.nn.Module) -> typing.Optional[Registration]:
    for cls in type(module).__mro__:
        if cls in _registered:
            return _registered[cls]
    if type(module).__name__ in types() and isinstance(getattr(module, "weight", None), torch.Tensor):
        return Registration(type(module).__name__)
    for base, kind in _BASES:
        if isinstance(module, base):
            return Registration(kind)
    if _is_conv1d_of_transformers(module):
        return Registration("Linear", transposed=True)
    return None


def _is_conv1d_of_transformers(module: torch.nn.Module) -> bool:
    """Its weight is [inputs, outputs], and addmm multiplies with it. No import: who has such a module has transformers."""
    return any(cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils" for cls in type(module).__mro__)


def weights(model: torch.nn.Module) -> tuple[list[Weight], list[Unknown]]:
    """The weights of products and tables, in the order of model.named_modules(); and the modules with other matrices.
    Of tied ones each module stands for itself."""
    found: list[Weight] = []
    unknown: list[Unknown] = []
    for name, module in model.named_modules(remove_duplicate=True):
        name = name.replace("_orig_mod.", "")  # of torch.compile
        if isinstance(module, _RECURRENT):
            found += [Weight(f"{name}.{p}".lstrip("."), type(module).__name__, module, p) for p, _ in module.named_parameters(recurse=False)
                      if p.startswith("weight")]
            continue
        registration = _registration(module)
        if registration is not None:
            tensor = getattr(module, registration.weight, None)
            if isinstance(tensor, torch.Tensor):
                found.append(Weight(name, registration.kind, module, registration.weight, registration.transposed))
            continue
        for parameter, tensor in module.named_parameters(recurse=False):
            if tensor.dim() == 3:  # experts, stacked: [experts, outputs, inputs]
                found.append(Weight(f"{name}.{parameter}".lstrip("."), "MoeMatmul", module, parameter))
            elif tensor.dim() == 2:
                unknown.append(Unknown(name, type(module).__name__, parameter))
    return found, unknown


def columns(found: typing.Sequence[Weight]) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Weights, names and types: what each operator takes."""
    return [w.tensor for w in found], [w.name for w in found], [w.kind for w in found]
