# SPDX-License-Identifier: Apache-2.0
"""A model's weights as its checkpoint has them. transformers cuts, joins and renames when it loads one (stacked experts are
written one by one); scales go with the rows of the codes, wherever its own reversal takes them, and back."""

import dataclasses
import json
import pathlib
import sys
import typing

import torch

from fp8 import _modules
from fp8.parameter import Fp8Parameter

Tensors = dict[str, torch.Tensor]
SCHEME = "fp8_scheme"  # in the metadata of safetensors: what the quantization_config has no keys for
_OF_MODULES = ("input_scale_inv", "dtype")  # each has its own


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the rows of a checkpoint's tensor lie in memory. sources: names of parameters; source and row: for each row of the
    tensor, which of the sources it is of, and its number there, int64 [rows]; whole: it is the one source as it is; straight:
    False for a tensor that is transposed or joined along columns, whose rows are not rows in memory."""
    sources: tuple[str, ...]
    source: torch.Tensor
    row: torch.Tensor
    shape: tuple[int, ...]
    whole: bool
    straight: bool

    def gather(self, matrices: typing.Sequence[torch.Tensor]) -> torch.Tensor:
        """[rows, columns] of each source's [its rows, columns]."""
        out = matrices[0].new_empty((self.row.numel(), matrices[0].size(1)))
        for i, matrix in enumerate(matrices):
            out[self.source == i] = matrix[self.row[self.source == i]]
        return out


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


def rows_of(model: torch.nn.Module, state: typing.Mapping[str, torch.Tensor]) -> dict[str, Rows]:
    """By the names of the checkpoint; found by what the reversal does with tensors that hold the numbers of their rows. Rows
    are outputs; of a weight that is [inputs, outputs], its columns."""
    transposed = {weight.key for weight in _modules.weights(model)[0] if weight.transposed}
    names, starts, numbered, count = list(state), [0], Tensors(), 0
    for name, tensor in state.items():
        lead = tensor.shape[:-1] if tensor.dim() > 1 else tensor.shape
        lead = torch.Size((*lead[:-1], tensor.shape[-1])) if name in transposed else lead
        numbers = torch.arange(count, count + lead.numel()).view(lead)
        numbers = numbers.unsqueeze(-2 if name in transposed else -1) if tensor.dim() > 1 else numbers
        numbered[name] = numbers.expand(tensor.shape)
        count += lead.numel()
        starts.append(count)
    whole = {id(tensor): name for name, tensor in numbered.items()}
    none = torch.empty(0, dtype=torch.int64)
    found: dict[str, Rows] = {}
    for name, numbers in reversed_names(model, dict(numbered)).items():
        if id(numbers) in whole:
            found[name] = Rows((whole[id(numbers)],), none, none, tuple(numbers.shape), True, True)
            continue
        first = numbers.narrow(-1, 0, 1) if numbers.dim() > 1 else numbers
        straight = bool((numbers == first).all())
        rows = (first if straight else numbers).reshape(-1).contiguous()
        index = torch.searchsorted(torch.tensor(starts), rows, right=True) - 1
        used, source = index.unique(return_inverse=True)
        found[name] = Rows(tuple(names[i] for i in used), source, rows - torch.tensor(starts)[index], tuple(numbers.shape), False, straight)
    return found


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes on the host, [rows, columns]; rows are outputs."""
    host = tensor.detach().cpu().view(torch.uint8)
    host = host.transpose(-2, -1) if isinstance(tensor, Fp8Parameter) and tensor.transposed else host
    return host.reshape(-1, host.size(-1))


def row_scales(weight: torch.Tensor) -> torch.Tensor:
    """f32 on the host: one row of scales for each row of the weight, with a column, or one for each column of blocks."""
    rows, scale, scheme = _matrix(weight).size(0), torch.ops.fp8.scale_inv(weight).cpu(), json.loads(torch.ops.fp8.scheme_of(weight))
    if scheme["weights"] == "block":
        return scale.repeat_interleave(scheme["block"][0], 0)[:rows]
    return scale.reshape(-1, 1).repeat_interleave(rows // scale.numel(), 0)


def scale_of(rows: torch.Tensor, scheme: typing.Mapping[str, typing.Any]) -> typing.Optional[torch.Tensor]:
    """What tag() takes, of row_scales(); None: the granularity can't hold them."""
    if scheme["weights"] == "channel":
        return rows.reshape(-1)
    height = scheme["block"][0] if scheme["weights"] == "block" else rows.size(0)
    scale = rows[::height]
    if not torch.equal(scale.repeat_interleave(height, 0)[:rows.size(0)], rows):
        return None
    return scale if scheme["weights"] == "block" else scale.reshape(-1)


def _piece(name: str, rows: Rows, values: torch.Tensor, state: typing.Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The codes of a part of converted weights, on hpu and with their scales. values: the bytes that the reversal gives."""
    weights = [typing.cast(Fp8Parameter, state[source]) for source in rows.sources]
    where = f"save: {', '.join(rows.sources)}: in a checkpoint it is '{name}'"
    schemes = {json.dumps(weight.scheme, sort_keys=True) for weight in weights}
    if len(schemes) > 1:
        raise RuntimeError(f"{where}, which has one scheme; found {len(schemes)}: {'; '.join(sorted(schemes))}")
    scheme = weights[0].scheme
    codes = rows.gather([_matrix(weight) for weight in weights]) if rows.straight else None
    if codes is None or not torch.equal(codes, values.reshape(codes.shape)):
        raise RuntimeError(f"{where}, in other rows than those that have scales: convert without it (blocklist)")
    scale = scale_of(rows.gather([row_scales(weight) for weight in weights]), scheme)
    if scale is None:
        raise RuntimeError(f"{where}, where {scheme['weights']} scales of {len(weights)} weights meet: convert with channel scales")
    tensor = codes.view(weights[0].detach().dtype).reshape(rows.shape).to("hpu")
    torch.ops.fp8.tag(tensor, name, scale, json.dumps(scheme))
    return tensor


def written(model: torch.nn.Module, kinds: typing.Mapping[str, str]) -> tuple[list[torch.Tensor], list[str], list[str]]:
    """Tensors, names and types of modules as a checkpoint has them: what fp8::save takes. Tied ones stand at the end once more:
    they are not stored, but named to readers. Raises RuntimeError naming the module for codes whose scales can't go where the
    codes go."""
    every = state_of(model)
    state = once(model, every)
    places = rows_of(model, state)
    cut = {source for rows in places.values() if not rows.whole for source in rows.sources}
    values = dict(state)
    values |= {name: state[name].detach().cpu().view(torch.uint8) for name in cut if isinstance(state[name], Fp8Parameter)}
    for name, rows in places.items():
        if len({isinstance(state[source], Fp8Parameter) for source in rows.sources}) > 1:
            raise RuntimeError(f"save: {', '.join(rows.sources)}: in a checkpoint it is '{name}', of which a part is in high precision: "
                               "convert all of it, or nothing")
    tensors, names, types = [], [], []
    for name, tensor in reversed_names(model, dict(values)).items():
        rows = places[name]
        kind = next((kinds[source] for source in rows.sources if source in kinds), "")
        if rows.whole:
            tensor = state[rows.sources[0]]
            if isinstance(tensor, Fp8Parameter) and (tensor.transposed or kind == "MoeMatmul"):
                what = "stacked experts are one tensor" if kind == "MoeMatmul" else "its weight is [inputs, outputs]"
                raise RuntimeError(f"save: {rows.sources[0]}: {what} in this model's checkpoints, which no reader takes in fp8: convert "
                                   "without it (blocklist)")
        elif any(isinstance(state[source], Fp8Parameter) for source in rows.sources):
            tensor = _piece(name, rows, tensor, state)
        tensors.append(tensor)
        names.append(name)
        types.append("Linear" if kind == "MoeMatmul" and tensor.dim() == 2 else kind)
    twins = [name for name, tensor in every.items() if name not in state and name not in names and any(tensor is other for other in state.values())]
    return tensors + [every[name] for name in twins], names + twins, types + [kinds.get(name, "") for name in twins]


def shared_scheme(tensors: typing.Sequence[torch.Tensor]) -> str:
    """JSON of what the schemes of all converted ones have in common: as fp8::tag takes it."""
    schemes = [json.loads(torch.ops.fp8.scheme_of(tensor)).items() for tensor in tensors if torch.ops.fp8.describe(tensor)]
    return json.dumps({key: value for key, value in schemes[0] if key not in _OF_MODULES and all((key, value) in other for other in schemes)})


def _stored(folder: pathlib.Path) -> tuple[list[str], dict[str, typing.Any]]:
    """The tensors that are codes, and the scheme that save_pretrained() wrote beside them (SCHEME)."""
    from safetensors import safe_open
    names: list[str] = []
    scheme: dict[str, typing.Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as reader:
            names += [name for name in reader.keys() if reader.get_slice(name).get_dtype() in ("F8_E4M3", "F8_E5M2")]
            scheme |= json.loads((reader.metadata() or {}).get(SCHEME, "{}"))
    return names, scheme


def adopt(model: torch.nn.Module, folder: pathlib.Path) -> tuple[list[_modules.Weight], set[str]]:
    """Puts the codes of a checkpoint in the place of the model's weights, which may hold anything. Returns the weights that
    are in fp8 now, and the tensors that are done with. Raises RuntimeError naming folder and tensor."""
    state = once(model, state_of(model))
    places = rows_of(model, state)
    found, _ = _modules.weights(model)
    transposed = {weight.key for weight in found if weight.transposed}
    codes, scheme = _stored(folder)
    for name in codes:
        if name not in places:
            raise RuntimeError(f"load: {folder}: tensor '{name}': the model has none of this name")
        if not places[name].straight:
            raise RuntimeError(f"load: {folder}: tensor '{name}': its rows are not rows of {', '.join(places[name].sources)}, where scales would go")
        source = state[places[name].sources[0]]
        if source.device.type != "hpu":
            raise ValueError(f"load: {name}: expected it on hpu, found it on {source.device}")
    tensors = [state[places[name].sources[0]] if places[name].whole else
               torch.empty(places[name].shape, dtype=state[places[name].sources[0]].dtype, device="hpu") for name in codes]
    modules = [name.removesuffix(".weight") for name in codes]
    taken = set(torch.ops.fp8.load(tensors, modules, ["Linear"] * len(codes), str(folder)) if codes else ())
    for name, tensor in zip(codes, tensors):
        own = json.loads(torch.ops.fp8.scheme_of(tensor))
        if {**own, **scheme} != own:
            torch.ops.fp8.tag(tensor, name.removesuffix(".weight"), torch.ops.fp8.scale_inv(tensor), json.dumps({**own, **scheme}))
    parts: dict[str, list[tuple[Rows, torch.Tensor]]] = {}
    for name, tensor in zip(codes, tensors):
        for source in places[name].sources if not places[name].whole else ():
            parts.setdefault(source, []).append((places[name], tensor))
    for source, pieces in parts.items():
        _join(source, typing.cast(torch.nn.Parameter, state[source]), pieces, source in transposed)
    converted = [weight for weight in found if torch.ops.fp8.describe(weight.tensor)]
    for weight in converted:
        Fp8Parameter.of(weight)
    return converted, taken


def _join(name: str, weight: torch.nn.Parameter, pieces: typing.Sequence[tuple[Rows, torch.Tensor]], transposed: bool) -> None:
    """Makes the weight the codes of its pieces. Scales of whole pieces become scales of rows. transposed: it is [inputs, outputs]."""
    schemes = {torch.ops.fp8.scheme_of(tensor) for _, tensor in pieces}
    if len(schemes) > 1:
        raise RuntimeError(f"load: {name}: its parts have {len(schemes)} schemes, allowed: one; found {'; '.join(sorted(schemes))}")
    scheme = json.loads(schemes.pop())
    scheme["weights"] = "channel" if scheme["weights"] == "tensor" else scheme["weights"]
    shape = torch.Size((*weight.shape[:-2], weight.size(-1), weight.size(-2))) if transposed else weight.shape
    count = shape[:-1].numel()
    codes = torch.empty((count, shape[-1]), dtype=torch.uint8)
    scales: typing.Optional[torch.Tensor] = None
    filled = torch.zeros(count, dtype=torch.bool)
    for rows, tensor in pieces:
        here = rows.source == rows.sources.index(name)
        part = row_scales(tensor)
        scales = torch.empty((count, part.size(1))) if scales is None else scales
        codes[rows.row[here]] = tensor.detach().cpu().view(torch.uint8)[here]
        scales[rows.row[here]] = part[here]
        filled[rows.row[here]] = True
    scale = scale_of(typing.cast(torch.Tensor, scales), scheme)
    if scale is None or weight.dim() > 2 and scheme["weights"] == "block" or not bool(filled.all()):
        raise RuntimeError(f"load: {name}: its parts have {scheme['weights']} scales, or are not all in fp8: they can't be joined")
    joined = codes.view(pieces[0][1].detach().dtype).reshape(shape).to("hpu")
    torch.ops.fp8.tag(joined, name, scale, json.dumps(scheme))
    weight.requires_grad_(False).data = joined.transpose(-2, -1) if transposed else joined
