# SPDX-License-Identifier: Apache-2.0
"""A model's weights as its checkpoint has them. transformers cuts, joins and renames when it loads one (stacked experts are
written one by one); scales go with the rows of the codes, wherever its own reversal takes them, and back."""

import pathlib
import sys
import typing

import torch

from fp8 import _modules
from fp8.parameter import Fp8Parameter

Tensors = dict[str, torch.Tensor]


def state_of(model: torch.nn.Module) -> Tensors:
    """Parameters and persistent buffers by name, themselves; tied ones under each of their names."""
    persistent = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()) if name in persistent}


def reversed_names(model: torch.nn.Module, state: Tensors) -> Tensors:
    """The state by the names of the model's checkpoint, cut as there. Models of others keep their names."""
    if "transformers" not in sys.modules:
        return state
    from fp8 import _transformers
    return _transformers.reversed_names(model, state)


def once(model: torch.nn.Module, state: Tensors) -> Tensors:
    """Without what is tied to another, under the name that the model's reader expects."""
    if "transformers" in sys.modules:
        from fp8 import _transformers
        state = _transformers.once(model, state)
    first: dict[int, str] = {}
    return {name: tensor for name, tensor in state.items() if first.setdefault(id(tensor), name) == name}


class Place(typing.NamedTuple):
    """Where a tensor of a checkpoint lies in a model's state. numbers: for each of its values the number of the row; sources:
    the names that those rows are of; whole: it is the one source as it is; straight: all values of a row are of one row."""
    numbers: torch.Tensor
    sources: list[str]
    whole: bool
    straight: bool


class Rows:
    """The rows of a model's state, numbered through all of it. Rows are outputs: upright has those of a weight that is [inputs,
    outputs] as rows. places, by the names of the checkpoint, is what the reversal does with numbers in the place of values."""

    def __init__(self, model: torch.nn.Module, state: Tensors) -> None:
        self.transposed = {weight.key for weight in _modules.weights(model)[0] if weight.transposed}
        self.upright = [self.turned(name, tensor.detach()) for name, tensor in state.items()]
        self.numbers = Tensors(zip(state, torch.ops.fp8.number_rows(self.upright)))
        given = {name: self.turned(name, numbers) for name, numbers in self.numbers.items()}
        whole = {id(numbers): name for name, numbers in given.items()}
        self.places: dict[str, Place] = {}
        for name, numbers in reversed_names(model, dict(given)).items():
            if id(numbers) in whole:
                self.places[name] = Place(numbers, [whole[id(numbers)]], True, True)
            else:
                sources, straight = torch.ops.fp8.weights_of_rows(self.upright, numbers)
                self.places[name] = Place(numbers, [list(state)[i] for i in sources], False, straight)

    def turned(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(-2, -1) if name in self.transposed else tensor


def written(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Tensors, names and types of modules as a checkpoint has them: what fp8::save takes. Tied ones stand at the end once more:
    they are not stored, but named to readers. Raises RuntimeError naming the module for codes whose scales can't go where the
    codes go."""
    every, kinds = state_of(model), {weight.key: weight.kind for weight in _modules.weights(model)[0]}
    state = once(model, every)
    rows = Rows(model, state)
    coded = {name for name, tensor in state.items() if isinstance(tensor, Fp8Parameter)}
    cut = {source for place in rows.places.values() if not place.whole for source in place.sources} & coded
    values = {name: tensor.detach().cpu().view(torch.uint8) if name in cut else tensor for name, tensor in state.items()}
    found: dict[str, tuple[torch.Tensor, str]] = {}
    for name, tensor in reversed_names(model, values).items():
        place = rows.places[name]
        kind = next((kinds[source] for source in place.sources if source in kinds), "")
        if place.whole:
            tensor = state[place.sources[0]]
            if isinstance(tensor, Fp8Parameter) and (tensor.transposed or kind == "MoeMatmul"):
                what = "stacked experts are one tensor" if kind == "MoeMatmul" else "its weight is [inputs, outputs]"
                raise RuntimeError(f"save: {place.sources[0]}: {what} in this model's checkpoints, which no reader takes in fp8: convert "
                                   "without it (blocklist)")
        elif cut.intersection(place.sources):
            tensor = torch.ops.fp8.gather_rows(rows.upright, place.numbers, name, tensor)
        found[name] = tensor, "Linear" if kind == "MoeMatmul" and tensor.dim() == 2 else kind
    stored = {id(tensor) for tensor in state.values()}
    found |= {name: (every[name], kinds.get(name, "")) for name in every if name not in state and name not in found and id(every[name]) in stored}
    return [tensor for tensor, _ in found.values()], list(found), [kind for _, kind in found.values()]


def _codes_in(folder: pathlib.Path) -> list[str]:
    from safetensors import safe_open
    names: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as reader:
            names += [name for name in reader.keys() if reader.get_slice(name).get_dtype() in ("F8_E4M3", "F8_E5M2")]
    return names


def adopt(model: torch.nn.Module, folder: pathlib.Path) -> tuple[list[_modules.Weight], set[str]]:
    """Puts the codes of a checkpoint in the place of the model's weights, which may hold anything. Returns the weights that
    are in fp8 now, and the tensors that are done with. Raises RuntimeError naming folder and tensor."""
    state = once(model, state_of(model))
    rows = Rows(model, state)
    codes: Tensors = {}
    for name in _codes_in(folder):
        place = rows.places.get(name)
        if place is None:
            raise RuntimeError(f"load: {folder}: tensor '{name}': the model has none of this name")
        if not place.straight:
            raise RuntimeError(f"load: {folder}: tensor '{name}': its rows are not rows of {', '.join(place.sources)}, where scales would go")
        source = state[place.sources[0]]
        if source.device.type != "hpu":
            raise ValueError(f"load: {name}: expected it on hpu, found it on {source.device}")
        codes[name] = source if place.whole else torch.empty(place.numbers.shape, dtype=source.dtype, device="hpu")
    modules = [name.removesuffix(".weight") for name in codes]
    taken = set(torch.ops.fp8.load(list(codes.values()), modules, ["Linear"] * len(codes), str(folder)) if codes else ())
    pieces = {name: tensor for name, tensor in codes.items() if not rows.places[name].whole}
    for name in sorted({source for piece in pieces for source in rows.places[piece].sources}):
        its = [piece for piece in pieces if name in rows.places[piece].sources]
        joined = torch.ops.fp8.join_rows([pieces[piece] for piece in its], [rows.places[piece].numbers for piece in its], rows.numbers[name],
                                         name.removesuffix(".weight"))
        typing.cast(torch.nn.Parameter, state[name]).requires_grad_(False).data = rows.turned(name, joined)
    converted = [weight for weight in _modules.weights(model)[0] if torch.ops.fp8.describe(weight.tensor)]
    for weight in converted:
        Fp8Parameter.of(weight)
    return converted, taken
