# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are the weights of products: found by the classes of its modules, not by their names."""

import difflib
import functools
import json
import typing

import torch

from fp8._autoload import register as _register_device

_register_device()

# Their subclasses are of the same type, unless their own name is a type (FalconLinear, LoRACompatibleLinear).
_BASES = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Embedding, torch.nn.EmbeddingBag)
TRAINING = "_fp8_training"  # the mark on modules that fp8.te made
_SORTS: dict[str, tuple[type, ...]] = {
    "recurrent": (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell),
    "list": (torch.nn.ModuleList, torch.nn.ModuleDict), "convolution": (torch.nn.modules.conv._ConvNd,),
    "parametrization": (torch.nn.utils.parametrize.ParametrizationList,)}


class Registration(typing.NamedTuple):
    """One's own class: the type that it counts as, its attribute that is the weight, and whether that is [inputs, outputs]."""
    kind: str
    weight: str = "weight"
    transposed: bool = False


class Weight(typing.NamedTuple):
    """A weight of a model. name: the module's, as in lists of a QUANT_CONFIG; key: the parameter's, as in a state_dict;
    parameter: its attribute of the owner."""
    name: str
    key: str
    kind: str
    owner: torch.nn.Module
    parameter: str
    transposed: bool = False

    @property
    def owned(self) -> torch.nn.Parameter:
        """The parameter as the module has it."""
        return typing.cast(torch.nn.Parameter, getattr(self.owner, self.parameter))

    @property
    def tensor(self) -> torch.Tensor:
        """What operators take: the parameter, or its upright view."""
        return self.owned.detach().transpose(-2, -1) if self.transposed else self.owned

    def turn(self) -> None:
        """Gives the memory of a transposed parameter rows of outputs; its sizes and values stay."""
        if self.transposed and not self.tensor.is_contiguous():
            self.owned.data = self.tensor.contiguous().transpose(-2, -1)


class Left(typing.NamedTuple):
    """A matrix that stays in high precision, whatever a config says."""
    name: str
    reason: str
    owned: typing.Optional[torch.Tensor] = None


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
    classes = type(module).__mro__
    if own := next((cls for cls in classes if cls in _registered), None):
        return _registered[own]
    if classes[0].__name__ in types() and isinstance(getattr(module, "weight", None), torch.Tensor):
        return Registration(classes[0].__name__)
    if base := next((base for base in _BASES if isinstance(module, base)), None):
        return Registration(base.__name__)
    # transformers' multiplies by addmm. No import: who has such a module has transformers.
    conv1d = any(cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils" for cls in classes)
    return Registration("Linear", transposed=True) if conv1d else None


def _described(name: str, module: torch.nn.Module, places: dict[int, int]) -> dict[str, typing.Any]:
    """What the library tells weights, experts and routers by: quant/names/model_weights.h. places: of modules, by id."""
    kind, weight, transposed = _registration(module) or Registration("", "")
    own = "parameter" if weight in module._parameters else "tensor"
    said = getattr(module, "is_transposed", None)
    return {
        "name": name, "class": type(module).__name__, "children": [places[id(child)] for child in module.children()],
        "kind": kind, "weight": weight, "transposed": transposed, "holds": own if isinstance(getattr(module, weight, None), torch.Tensor) else "",
        "registered": any(cls in _registered for cls in type(module).__mro__), "computes": type(module).forward is not torch.nn.Module.forward,
        "is": [sort for sort, classes in _SORTS.items() if isinstance(module, classes)], "adapter": module._modules.get("base_layer") is not None,
        "numbers": [n for n in vars(module).values() if type(n) is int and 1 < n < 2**31], "is_transposed": said if isinstance(said, bool) else None,
        "parameters": [[key, [] if torch.nn.parameter.is_lazy(t) else list(t.shape), t.is_floating_point(), id(t)]
                       for key, t in module.named_parameters(recurse=False)]}


def weights(model: torch.nn.Module, allow: typing.Optional[typing.Mapping[str, typing.Any]] = None) -> tuple[list[Weight], list[Left]]:
    """The weights of products and tables, in the order of model.named_modules(); and matrices that are none. Of tied ones
    each module stands for itself. A module with a `base_layer` (LoRA's, of peft) is that layer and its adapters.

    allow: a config's allowlist, which alone puts tables into fp8: without what shares its tensor with those or with matrices."""
    modules = list(model.modules())
    places = {id(module): place for place, module in enumerate(modules)}
    described = [_described(name, module, places) for name, module in model.named_modules()]
    said = json.loads(torch.ops.fp8.weights_of_model(json.dumps(described), json.dumps(allow)))
    left = [Left(m["name"], m["reason"], modules[m["module"]]._parameters.get(m["parameter"])) for m in said["left"]]
    return [Weight(owner=modules[found.pop("module")], **found) for found in said["weights"]], left


def columns(found: typing.Sequence[Weight]) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Weights, names and types: what each operator takes."""
    return [w.tensor for w in found], [w.name for w in found], [w.kind for w in found]
