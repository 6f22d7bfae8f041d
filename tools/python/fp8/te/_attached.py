# SPDX-License-Identifier: Apache-2.0
"""What a module that trains in fp8 carries: its mark, what follows train() and eval(), and its scales in a state_dict.

    NAME._extra_state    uint8: the JSON that fp8::training_state_bytes gives, of a module with several weights one for each,
                         {"fc1_weight": ..., "fc2_weight": ...}; and spaces up to a multiple of 32 KiB for each, so that
                         torch.distributed.checkpoint finds the size that it expects. "held": what stands beside codes"""

import copy
import json
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from fp8 import _library, _modules
from fp8._modules import TRAINING as MARK
from fp8.te import _region, _sharded

_CALLED_BY_OTHERS = torch.nn.modules.linear.NonDynamicallyQuantizableLinear  # by MultiheadAttention, never its forward
_KEY, _BLOCK = "_extra_state", 1 << 15
_BEGINNING = {"version": 1, "state": None, "tensors": ""}
_UNMARKED: dict[str, "Attached"] = {}


def _nothing() -> None: """Of a weight that the library does not know."""


class Attached:
    """A weight of a module. state: its fp8 state, which outlives the weight; None: it has one at the first use on hpu in a region, that
    begins with `pending`, what was loaded until then. recipe: its own, whatever a region says; "": none; holds: it keeps fp8 codes alone.

    The library knows the weight itself, so that any product of it is in fp8. Engines that shard (FSDP, ZeRO-3, DTensor) put other tensors
    in its place: then product() multiplies with what the module has, and with this state; so it does with codes."""

    def __init__(self, weight: _modules.Weight, recipe: str = "", minimize_memory: bool = False, holds: bool = False) -> None:
        self.name, self.kind, self.parameter, self.transposed = weight.name, weight.kind, weight.parameter, weight.transposed
        self.recipe, self.minimize_memory, self.holds = recipe, minimize_memory, holds
        self.known: Callable[[], torch.Tensor | None] = weakref.ref(weight.owned) if holds else _nothing  # that the library knows
        self.taken = False  # by an engine, when it was multiplied with last
        self.forget(_BEGINNING)
        own = "forward" in weight.owner.__dict__  # of accelerate's hooks, say
        self.replaces = not own and type(weight.owner).forward is torch.nn.Linear.forward and not isinstance(weight.owner, _CALLED_BY_OTHERS)
        self.multiplies = self.replaces or hasattr(weight.owner, "attaches_itself")  # its module calls product()
        if self.replaces:
            weight.owner.forward = Forward(weight.owner)  # type: ignore[method-assign]
        weight.owner.__dict__[MARK] = {**of(weight.owner), self.parameter: self}
        self.hooks: list[Any] = []
        self.hook(weight.owner)

    def hook(self, owner: torch.nn.Module) -> None:
        """What follows the module, once for all of its weights."""
        if next(iter(of(owner).values())) is self:
            self.hooks = [owner._register_state_dict_hook(_write), owner.register_load_state_dict_pre_hook(_read)]
            if not self.multiplies:
                self.hooks.append(owner.register_forward_pre_hook(follow))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Attached":
        """The copied weight has a state of its own, which follows this one until it trains."""
        made = Attached.__new__(Attached)
        original = self.known()
        known = memo.get(id(original))
        made.__dict__ = {**self.__dict__, "training": None, "upright": None, "known": _nothing, "hooks": copy.deepcopy(self.hooks, memo)}
        if self.holds and known is not None and original is not None:
            made.known, known.grad_dtype = weakref.ref(known), original.grad_dtype
        if not self.live:
            return made
        try:
            if known is None or self.holds:
                made.state = copy.deepcopy(self.state)
            else:
                made._keep(known, known.detach().transpose(-2, -1) if self.transposed else known)
        except RuntimeError:  # on the host, or of a dtype since: it is known at its first use
            made.state, made.pending = None, self.saved()
        return made

    def __getstate__(self) -> dict[str, Any]:
        if self.live:
            raise RuntimeError(f"{self.name}: learns in fp8, and a pickled module would go on in high precision: save or send the model's "
                               "state_dict()")
        own = {"hooks": [], "known": _nothing, "upright": None, "multiplies": self.multiplies and not self.replaces}  # its forward is its class's
        return {**self.__dict__, **own}

    def weight(self, owner: torch.nn.Module) -> _modules.Weight:
        return _modules.Weight(self.name, f"{self.name}.{self.parameter}".lstrip("."), self.kind, owner, self.parameter, self.transposed)

    @property
    def live(self) -> bool: return self.state is not None

    def begin(self, owner: torch.nn.Module, tensor: torch.Tensor | None) -> None:
        """The library knows the weight by this tensor from here on; None: it does not, and the state is there."""
        if tensor is None:
            self.state = torch.classes.fp8.State(self.name, self.recipe, self.minimize_memory)
        else:
            self.upright = tensor if self.transposed else None
            self._keep(getattr(owner, self.parameter), tensor)
        self.take(self.pending)

    def _keep(self, owned: torch.Tensor, tensor: torch.Tensor) -> None:
        self.known, self.state = weakref.ref(owned), torch.ops.fp8.state_of(tensor, self.recipe, self.minimize_memory)

    def stop(self, owner: torch.nn.Module) -> None:
        """The library knows neither weight nor state any more. Codes become values."""
        owned = getattr(owner, self.parameter)
        if self.holds and owned.dtype.itemsize == 1:
            owned.data = torch.ops.fp8.dequantize(owned).to(owned.grad_dtype)
        elif owned is self.known():
            put_back()
            torch.ops.fp8.untag(self.weight(owner).tensor)
        self.forget(self.pending)

    def forget(self, pending: dict[str, Any]) -> None:
        """What has been learned waits for the next use."""
        self.pending, self.state, self.training = pending, None, None
        self.known = self.known if self.holds else _nothing
        self.upright: torch.Tensor | None = None  # the library's books know a transposed weight by that view

    def values(self) -> str: return str(self.state.values())  # what fp8::training_state gives
    def take(self, values: dict[str, Any]) -> None: self.state.set_bytes(_bytes(json.dumps(values).encode()))
    def saved(self) -> Any: return json.loads(bytes(self.state.bytes().tolist())) if self.live else self.pending


def of(module: torch.nn.Module) -> dict[str, Attached]: return module.__dict__.get(MARK, _UNMARKED)


def within(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Attached]]:
    return [(module, attached) for module in model.modules() for attached in of(module).values()]


def put_back() -> None:
    """A weight that to(dtype) or to(device) moved has its handler again: regions give it back when they begin."""
    torch.ops.fp8.exit_autocast(torch.ops.fp8.enter_autocast(), True)


def product(module: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None, parameter: str = "weight") -> torch.Tensor:
    """F.linear, whatever an engine has made of the weight and of F.linear (DeepSpeed's function for ZeRO-3 takes autograd's place)."""
    weight, attached = getattr(module, parameter), module.__dict__.get(MARK, _UNMARKED).get(parameter)
    if attached is not None and attached.training is not module.training:
        _tell(module, attached)
    if attached is None or attached.state is None:
        return F.linear(x, weight, bias)
    if attached.holds:
        return torch.ops.fp8.linear(x, weight, bias, attached.state)
    if not torch.compiler.is_compiling():
        attached.taken = _sharded.is_taken(weight, attached)
        if weight.is_cpu:
            _sharded.refuse_on_host(weight, attached)
    return _sharded.own_product(x, weight, bias, attached) if attached.taken else F.linear(x, weight, bias)


class Forward:
    """torch.nn.Linear's. It does not keep its module: a model that nobody has any more goes at once."""

    def __init__(self, module: torch.nn.Module) -> None: self.module = weakref.ref(module)
    def __deepcopy__(self, memo: dict[int, Any]) -> "Forward": return Forward(memo.get(id(self.module()), self.module()))
    def __reduce__(self) -> Any: return getattr, (self.module(), "forward")

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        module = self.module()
        if module is None:
            raise RuntimeError("forward: found a shallow copy of a converted module that is gone, expected copy.deepcopy() of it")
        return product(module, input, module.bias)  # type: ignore[arg-type]


def follow(module: torch.nn.Module, _: Any) -> None:
    """Amaxes are recorded while the module trains. Raises RuntimeError for a class that multiplies by itself with a weight of an engine."""
    for attached in of(module).values():
        if attached.training is not module.training:
            _tell(module, attached)
        if attached.live:
            _sharded.check(getattr(module, attached.parameter), attached, type(module).__name__)


@_region.unseen
def _tell(module: torch.nn.Module, attached: Attached) -> None:
    weight = attached.weight(module)
    if weight.owned.device.type != "hpu" or not (attached.live or attached.holds or _region.inside()):
        return
    if not attached.live and (attached.holds or _sharded.is_sharded(weight.owned)):
        attached.begin(module, None)
    elif not attached.live:
        weight.turn()
        tensor = weight.tensor
        torch.ops.fp8.attach_training([tensor], [weight.name], [weight.kind], attached.recipe or "habana", "", attached.minimize_memory,
                                      bool(attached.recipe))
        attached.begin(module, tensor)
    attached.state.set_training(module.training)
    attached.training, attached.taken = module.training, _sharded.is_taken(getattr(module, attached.parameter), attached)


def _bytes(text: bytes) -> torch.Tensor: return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def filled(text: bytes, count: int = 1) -> torch.Tensor:
    """The bytes, and spaces up to a multiple of 32 KiB for each of `count` weights."""
    block = _BLOCK * count
    return _bytes(text.ljust(-(-len(text) // block) * block))


def _write(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    found = {}
    for parameter, attached in of(module).items():
        weight = getattr(module, parameter)
        held = {"held": torch.ops.fp8.held_state(weight)} if attached.holds and weight.dtype.itemsize == 1 else {}
        found[parameter] = {**attached.saved(), **held}
    if found:
        state[prefix + _KEY] = filled(json.dumps(found if len(found) > 1 else next(iter(found.values()))).encode(), len(found))


def _read(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any, _strict: bool, missing: list[str],
          _unexpected: list[str], errors: list[str]) -> None:
    if not (weights := of(module)):
        return
    for parameter, attached in weights.items():
        if attached.live and not attached.holds and metadata.get("assign_to_params_buffers") and prefix + parameter in state:
            attached.stop(module)  # another parameter takes its place, and is attached at its first use
    found, said = state.pop(prefix + _KEY, None), dict[str, Any]()
    try:
        if found is None:
            missing.append(prefix + _KEY)
        elif found.numel() > 0:  # other libraries write none where they have nothing to say
            said = json.loads(bytes(found.cpu().tolist()))
            said = said if len(weights) > 1 else {next(iter(weights)): said}
        for parameter, attached in weights.items():
            values, weight, key = dict(said[parameter]) if said else {}, getattr(module, parameter), prefix + parameter
            held = values.pop("held", [])  # what torch copies after this is the weight itself, or values
            if key in state and (held or weight.dtype.itemsize == 1):
                taken = torch.ops.fp8.read_held(weight, state[key], held, key)
                state[key] = weight if taken is None else taken
            if said and attached.live:
                attached.take(values)
            elif said:
                attached.pending = values
    except (ValueError, AttributeError, TypeError, KeyError):
        errors.append(f"{prefix + _KEY}: expected fp8's JSON, found other bytes (a pickle of another library?)")
    except RuntimeError as error:
        errors.append(f"{prefix + _KEY}: {_library.sentence(error)}")
