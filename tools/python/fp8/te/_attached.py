# SPDX-License-Identifier: Apache-2.0
"""What a module that trains in fp8 carries: its mark, hooks that follow train() and eval(), and its scales in a state_dict.

    NAME._extra_state    uint8: the JSON that fp8::training_state_bytes gives, of a module with several weights one for each,
                         {"fc1_weight": ..., "fc2_weight": ...}; and spaces up to a multiple of 32 KiB for each, so that
                         torch.distributed.checkpoint finds the size that it expects"""

import copy
import json
import warnings
from typing import Any

import torch

from fp8 import _library, _modules
from fp8._modules import TRAINING as MARK
from fp8.te import _region

_KEY, _BLOCK = "_extra_state", 1 << 15
_NONE = {"version": 1, "state": None, "tensors": ""}


class Attached:
    """A weight of a module. live: the library knows it in this process; else it will at the first use on hpu in a region, and begins
    with `pending`, the state that was loaded until then. recipe: its own, whatever a region says; "": none."""

    def __init__(self, weight: _modules.Weight, recipe: str = "", minimize_memory: bool = False) -> None:
        self.name, self.kind, self.parameter, self.transposed = weight.name, weight.kind, weight.parameter, weight.transposed
        self.recipe, self.minimize_memory, self.live = recipe, minimize_memory, False
        self.training: bool | None = None
        self.pending: dict[str, Any] = _NONE
        self.held: torch.Tensor | None = None  # the library's books know a transposed weight by its upright view
        beside = of(weight.owner)
        weight.owner.__dict__[MARK] = [*beside, self]
        self.hooks = [] if beside else [weight.owner.register_forward_pre_hook(follow), weight.owner._register_state_dict_hook(_write),
                                        weight.owner.register_load_state_dict_pre_hook(_read)]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Attached":
        """The copied weight has a state of its own, which follows this one until it trains."""
        made = Attached.__new__(Attached)
        made.__dict__ = {**self.__dict__, "training": None, "held": None, "hooks": copy.deepcopy(self.hooks, memo)}
        return made

    def __getstate__(self) -> dict[str, Any]:
        if self.live:
            raise RuntimeError(f"{self.name}: learns in fp8, and a pickled module would go on in high precision: save or send the model's "
                               "state_dict()")
        return {**self.__dict__, "hooks": []}

    def weight(self, owner: torch.nn.Module) -> _modules.Weight:
        return _modules.Weight(self.name, f"{self.name}.{self.parameter}".lstrip("."), self.kind, owner, self.parameter, self.transposed)

    def begin(self, tensor: torch.Tensor) -> None:
        """The library knows the weight from here on."""
        self.live, self.held = True, tensor if self.transposed else None
        _set_state(tensor, self.pending)

    def state(self, owner: torch.nn.Module) -> dict[str, Any]:
        return json.loads(bytes(torch.ops.fp8.training_state_bytes(self.weight(owner).tensor).tolist())) if self.live else self.pending


def of(module: torch.nn.Module) -> list[Attached]: return module.__dict__.get(MARK, [])
def within(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Attached]]: return [(m, attached) for m in model.modules() for attached in of(m)]


def put_back() -> None:
    """A weight that to(dtype) or to(device) moved has its handler again: regions give it back when they begin."""
    torch.ops.fp8.exit_autocast(torch.ops.fp8.enter_autocast(), True)


def follow(module: torch.nn.Module, _: Any) -> None:
    """Amaxes are recorded while the module trains."""
    for attached in of(module):
        if not (attached.live and attached.training is module.training):
            _tell(module, attached)


@_region.unseen
def _tell(module: torch.nn.Module, attached: Attached) -> None:
    weight = attached.weight(module)
    if weight.owned.device.type != "hpu" or not (attached.live or _region.inside()):
        return
    if not attached.live:
        weight.turn()
        recipe = attached.recipe or "habana"
        torch.ops.fp8.attach_training([weight.tensor], [weight.name], [weight.kind], recipe, "", attached.minimize_memory, bool(attached.recipe))
        attached.begin(weight.tensor)
    try:
        torch.ops.fp8.set_training([weight.tensor], module.training)
        attached.training = module.training
    except RuntimeError:  # to(dtype) took its handler off: the next region gives it back
        attached.training = None


def filled(text: bytes, count: int = 1) -> torch.Tensor:
    """The bytes, and spaces up to a multiple of 32 KiB for each of `count` weights."""
    block = _BLOCK * count
    return torch.frombuffer(bytearray(text.ljust(-(-len(text) // block) * block)), dtype=torch.uint8)


def _set_state(tensor: torch.Tensor, state: Any) -> None:
    torch.ops.fp8.set_training_state_bytes(tensor, filled(json.dumps(state).encode()))


def _write(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    found: dict[str, Any] = {}
    for attached in of(module):
        try:
            put_back()
            found[attached.parameter] = attached.state(module)
        except RuntimeError as error:
            warnings.warn(f"state_dict: {prefix + attached.parameter}: without its fp8 training state: {_library.sentence(error)}", stacklevel=2)
            return
    if found:
        state[prefix + _KEY] = filled(json.dumps(found if len(found) > 1 else next(iter(found.values()))).encode(), len(found))


def _read(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any, _strict: bool, missing: list[str],
          _unexpected: list[str], errors: list[str]) -> None:
    for attached in (weights := of(module)):
        if attached.live and metadata.get("assign_to_params_buffers") and prefix + attached.parameter in state:
            put_back()
            torch.ops.fp8.untag(attached.weight(module).tensor)  # another parameter takes its place, and is attached at its first use
            attached.live = False
    found = state.pop(prefix + _KEY, None) if weights else torch.empty(0)
    if found is None:
        missing.append(prefix + _KEY)
    elif found.numel() > 0:  # other libraries write none where they have nothing to say
        try:
            said = json.loads(bytes(found.cpu().tolist()))
            said = said if len(weights) > 1 else {weights[0].parameter: said}
            for attached in weights:
                if attached.live:
                    put_back()
                    _set_state(attached.weight(module).tensor, said[attached.parameter])
                else:
                    attached.pending = said[attached.parameter]
        except (ValueError, AttributeError, TypeError, KeyError):
            errors.append(f"{prefix + _KEY}: expected fp8's JSON, found other bytes (a pickle of another library?)")
        except RuntimeError as error:
            errors.append(f"{prefix + _KEY}: {_library.sentence(error)}")
