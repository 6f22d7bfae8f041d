# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are the weights of products: found by the classes of its modules, not by their names."""

import difflib
import functools
import re
import typing

import torch

from fp8._autoload import register as _register_device

_register_device()

# Their subclasses are of the same type, unless their own name is a type (FalconLinear, LoRACompatibleLinear).
_BASES = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Embedding, torch.nn.EmbeddingBag)
TRAINING = "_fp8_training"  # the mark on modules that fp8.te made
_RECURRENT = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell)


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
    for cls in classes:
        if cls in _registered:
            return _registered[cls]
    if classes[0].__name__ in types() and isinstance(getattr(module, "weight", None), torch.Tensor):
        return Registration(classes[0].__name__)
    for base in _BASES:
        if isinstance(module, base):
            return Registration(base.__name__)
    # transformers' multiplies by addmm. No import: who has such a module has transformers.
    conv1d = any(cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils" for cls in classes)
    return Registration("Linear", transposed=True) if conv1d else None


def _own(module: torch.nn.Module, dim: int) -> list[torch.Tensor]:
    """Its matrices: parameters without biases, scales and tokens."""
    return [t for name, t in module.named_parameters(recurse=False)
            if t.dim() == dim and t.is_floating_point() and "bias" not in name and min(t.shape[-2:]) > 1]


def _experts(module: torch.nn.Module) -> tuple[set[int], set[int]]:
    """How many experts a module may hold, and how wide their inputs may be: stacked as [experts, ., .] or [experts * ., .], or one
    by one in a list that has a forward, or of MoeMatmul. Whether they are any, a router beside them says."""
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        kinds = {found.kind for child in module.children() for found in (_registration(child),) if found is not None}
        if type(module).forward is not torch.nn.Module.forward or kinds == {"MoeMatmul"}:
            return {len(module)}, {side for child in module.modules() for t in _own(child, 2) for side in t.shape}
    if isinstance(module, torch.nn.modules.conv._ConvNd) or _registration(module) is not None:
        return set(), set()
    numbers = {n for n in vars(module).values() if type(n) is int and n > 1}
    stacks, rows = _own(module, 3), _own(module, 2)
    rows = rows if len(rows) > 1 else []
    counts = {t.size(0) for t in stacks} | {n for t in rows for n in numbers if t.size(0) % n == 0 and t.size(0) // n in numbers}
    return counts, {side for t in stacks + rows for side in t.shape[-2:]}


def _routes(module: torch.nn.Module, counts: set[int], widths: set[int]) -> bool:
    """A router reads what experts read, and has a row for each in the end; some have more, for experts that compute nothing."""
    if type(module).forward is torch.nn.Module.forward:  # a list of layers
        return False
    matrices = [t for child in module.modules() for t in _own(child, 2)]
    return bool(matrices) and matrices[0].size(1) in widths and any(1 < n <= matrices[-1].size(0) <= 2 * n for n in counts)


def _mixtures(model: torch.nn.Module) -> tuple[set[int], set[int]]:
    """The modules, by id, that hold stacked experts, and the routers beside them, whatever their classes are called."""
    parents = {id(child): parent for parent in model.modules() for child in parent.children()}
    experts, routers = {id(m): found for m in model.modules() for found in (_experts(m),) if found[0]}, set[int]()
    known = set[int]()
    for key, (counts, widths) in experts.items():
        near = parents.get(key)
        for block in (near, parents.get(id(near))):
            beside = [c for c in block.children() if not any(id(m) in experts for m in c.modules())] if block is not None else []
            chosen = {id(c) for c in beside if _routes(c, counts, widths)}
            if block is not None and chosen:
                routers |= chosen
                known |= {id(m) for m in block.modules() if id(m) in experts}
                break
    return known, routers


def _experts_transposed(module: torch.nn.Module) -> bool:
    """Whether stacked experts are [experts, inputs, outputs]: the class says it, or gate and up beside down do."""
    said = getattr(module, "is_transposed", None)
    if isinstance(said, bool):
        return said
    both, down = module._parameters.get("gate_up_proj"), module._parameters.get("down_proj")
    return both is not None and down is not None and both.dim() == down.dim() == 3 and both.size(2) == 2 * down.size(1)


def _others(name: str, module: torch.nn.Module, stacked: bool, found: list[Weight], left: list[Left]) -> None:
    """Of a module that is no product by its class: its stacked experts, and matrices that nothing is known of."""
    for parameter, tensor in module.named_parameters(recurse=False):
        key = _key(name, parameter)
        if "bias" in parameter or not tensor.is_floating_point():
            continue
        if tensor.dim() == 3 and stacked:
            found.append(Weight(_plain(key), key, "MoeMatmul", module, parameter, _experts_transposed(module)))
        elif tensor.dim() == 2 or (tensor.dim() == 3 and min(tensor.shape) > 1):
            left.append(Left(_plain(key), f"class {type(module).__name__} is not known; fp8.quant.register() makes it so", tensor))


def _key(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")  # of torch.compile


def _apart(name: str, module: torch.nn.Module, router: bool, places: list[tuple[str, str]]) -> str:
    """Why all below a module stays in high precision; "": it does not. places: names of such modules, each with the only
    child that is no such part, and the reason."""
    for prefix, reason in reversed(places):
        if name.startswith(prefix) and not f"{name}.".startswith(f"{prefix}base_layer."):
            return reason
    prefix = _key(name, "")
    if module._modules.get("base_layer") is not None:
        places.append((prefix, "an adapter stays in high precision"))
    if not router or any(cls in _registered for cls in type(module).__mro__):
        return ""
    places.append((prefix, f"a router chooses experts in high precision; fp8.quant.register({type(module).__name__}) makes it a Linear"))
    return places[-1][1]


def weights(model: torch.nn.Module) -> tuple[list[Weight], list[Left]]:
    """The weights of products and tables, in the order of model.named_modules(); and matrices that are none. Of tied ones
    each module stands for itself. A module with a `base_layer` (LoRA's, of peft) is that layer and its adapters."""
    found: list[Weight] = []
    left: list[Left] = []
    places: list[tuple[str, str]] = []
    experts, routers = _mixtures(model)
    for name, module in model.named_modules():
        if reason := _apart(name, module, id(module) in routers, places):
            left += [Left(_plain(name), reason, t) for _, t in module.named_parameters(recurse=False) if t.dim() == 2]
            continue
        if module._modules.get("base_layer") is not None or isinstance(module, torch.nn.utils.parametrize.ParametrizationList):
            continue
        if isinstance(module, _RECURRENT):
            keys = {p: _key(name, p) for p, _ in module.named_parameters(recurse=False) if p.startswith("weight")}
            found += [Weight(_plain(key), key, type(module).__name__, module, p) for p, key in keys.items()]
        elif (registration := _registration(module)) is None:
            _others(name, module, id(module) in experts, found, left)
        elif isinstance(getattr(module, registration.weight, None), torch.Tensor):
            kind, weight, transposed = registration
            if kind == "Linear" or weight in module._parameters:  # such a Linear is refused by name
                found.append(Weight(_plain(name), _key(name, weight), kind, module, weight, transposed))
            else:
                left.append(Left(_plain(name), "its weight is no parameter of its own: something computes it (a parametrization)"))
    return found, left


def selected(model: torch.nn.Module, allow: typing.Mapping[str, typing.Any]) -> tuple[list[Weight], list[Left]]:
    """The weights that can be in fp8, and why other matrices can't. allow: a config's allowlist, which alone puts tables into
    fp8."""
    found, left = weights(model)
    kinds, names = allow.get("types") or (), allow.get("names") or ()
    tables = {id(w.owned): w.name for w in found if w.kind.startswith("Embedding")
              and w.kind not in kinds and not any(re.search(name, w.name) for name in names)}
    tables |= {id(matrix.owned): matrix.name for matrix in left if matrix.owned is not None}
    shared = [w for w in found if tables.get(id(w.owned), w.name) != w.name and not w.kind.startswith("Embedding")]
    left += [Left(w.name, f"it shares its weight with {tables[id(w.owned)]}, which reads values") for w in shared]
    return [w for w in found if w not in shared], left


def columns(found: typing.Sequence[Weight]) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Weights, names and types: what each operator takes."""
    return [w.tensor for w in found], [w.name for w in found], [w.kind for w in found]
