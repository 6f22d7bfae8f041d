# SPDX-License-Identifier: Apache-2.0
"""The weight of a converted module: a parameter whose memory holds fp8 codes and that stands for values; and tensors of the
device in files and in other processes (DataLoader's workers, torch.multiprocessing). They cross as bytes, converted weights with
their scales. What can't cross is refused where somebody hears it."""

import copyreg
import json
import os
import threading
import typing
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing.reductions import reduce_tensor

from fp8 import _library, _modules, _trainers

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}  # operators return ScalarType's number


class Fp8View(torch.Tensor):
    """A part of an Fp8Parameter, or it transposed: it too has the dtype of its values."""

    # A product of a converted module runs no Python but torch's own.
    __torch_function__: typing.Any = torch._C._disabled_torch_function_impl

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return _DTYPES[torch.ops.fp8.values_dtype(self)]

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        return _rebuild, parts(self)


def _as_view(found: torch.Tensor) -> torch.Tensor:
    if type(found) is torch.Tensor and torch.ops.fp8.describe(found):
        found.__class__ = Fp8View
    return found


def _give(names: str, call: typing.Callable[..., torch.Tensor]) -> None:
    """call: gets the method of torch.Tensor first."""
    for name in names.split():
        def method(self: torch.Tensor, *args: typing.Any, plain: typing.Any = getattr(torch.Tensor, name), **kwargs: typing.Any) -> torch.Tensor:
            return call(plain, self, *args, **kwargs)
        method.__name__, method.__doc__ = name, f"torch.Tensor.{name}(), which knows the scale and the dtype of the values."
        setattr(Fp8View, name, method)


# Geometry alone gives views. detach() and data stay plain: who writes files asks them for the dtype of the memory.
_give("__getitem__ transpose t swapaxes permute view reshape unsqueeze squeeze select narrow flatten",
      lambda plain, self, *args, **kwargs: _as_view(plain(self, *args, **kwargs)))
_give("new_empty new_empty_strided new_full new_ones new_zeros new_tensor",  # in the dtype of the values
      lambda plain, self, *args, **kwargs: plain(self, *args, **{"dtype": self.dtype, **kwargs}))
for _name in ("T", "mT"):
    setattr(Fp8View, _name, property(lambda self, plain=getattr(torch.Tensor, _name): _as_view(plain.__get__(self))))


class Fp8Parameter(Fp8View, torch.nn.Parameter):
    """`dtype` and `repr` are those of the values, so that code which casts activations to the dtype of a weight works.

    >>> import torch, fp8
    >>> layer = torch.nn.Linear(32, 16).to("hpu")
    >>> _ = fp8.quant.convert(layer, fp8.quant.FP8Config(mode="QUANTIZE", scale_method="unit_scale"))
    >>> layer.weight.dtype, layer.weight.codes.dtype
    (torch.float32, torch.float8_e4m3fn)
    """

    @classmethod
    def of(cls, weight: _modules.Weight) -> "Fp8Parameter":
        """Makes the module's parameter one of these; it stays the object that it is."""
        if not isinstance(weight.owned, torch.nn.Parameter):
            raise TypeError(f"{weight.name}: expected a parameter, found {type(weight.owned).__name__}")
        weight.owned.__class__ = cls
        return typing.cast(Fp8Parameter, weight.owned)

    @classmethod
    def of_codes(cls, codes: torch.Tensor, requires_grad: bool = False) -> "Fp8Parameter":
        """A new one, of codes with a scale."""
        made = torch.nn.Parameter(codes.detach(), requires_grad=False)
        made.__class__ = cls
        return typing.cast(Fp8Parameter, made.requires_grad_(requires_grad))

    @property
    def codes(self) -> torch.Tensor:
        """The memory itself: float8 of the weight's shape. Its operators know the scale, as those of the weight do."""
        return self.detach()

    @property
    def scale_inv(self) -> torch.Tensor:
        """f32, a copy: one value, one for each output channel, or a grid of blocks; value = code * scale_inv."""
        return typing.cast(torch.Tensor, torch.ops.fp8.scale_inv(self))

    @property
    def scheme(self) -> dict[str, typing.Any]:
        """What fp8::tag takes: granularity, scaling of activations, dialect."""
        return typing.cast(dict[str, typing.Any], json.loads(torch.ops.fp8.scheme_of(self)))

    def dequantize(self) -> torch.Tensor:
        """The values, in `dtype` and on the weight's device."""
        return typing.cast(torch.Tensor, torch.ops.fp8.values(self)).to(self.device)

    @property
    def transposed(self) -> bool:
        """The module has it as [inputs, outputs] (GPT-2's Conv1D, experts of Llama 4): it is a view of codes whose rows are
        outputs."""
        return not self.is_contiguous() or list(self.shape) != json.loads(torch.ops.fp8.tag_of(self))["sizes"]

    @property
    def holds_codes(self) -> bool:
        """False where somebody has put values in its place (weight.data = ...): it is a parameter like any other then."""
        return torch.Tensor.dtype.__get__(self).itemsize == 1

    def to(self, *args: typing.Any, copy: bool = False, **kwargs: typing.Any) -> torch.Tensor:
        """Another device; the dtype of the values changes nothing. Raises RuntimeError naming the module for any other."""
        if not self.holds_codes:
            return super().to(*args, copy=copy, **kwargs)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None and dtype != self.dtype:
            raise RuntimeError(f"{torch.ops.fp8.describe(self)}: found a cast to {dtype}, allowed: {self.dtype}; dequantize() gives the values")
        return super().to(device, non_blocking=non_blocking, copy=copy) if device is not None else self.detach().clone() if copy else self

    def share_memory_(self) -> "Fp8Parameter":  # type: ignore[override]
        """On hpu. Raises RuntimeError naming the module on the host, where the scale does not go along."""
        if self.device.type != "hpu" and self.holds_codes:
            raise RuntimeError(f"{torch.ops.fp8.describe(self)}: can't go into shared memory on {self.device}: share it on hpu, or send the model")
        return typing.cast(Fp8Parameter, super().share_memory_())

    def __deepcopy__(self, memo: dict[int, typing.Any]) -> torch.nn.Parameter:
        if self.device.type == "hpu" or not self.holds_codes:
            return super().__deepcopy__(memo)
        return typing.cast(torch.nn.Parameter, _rebuild(*parts(self)))

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        return super().__reduce_ex__(protocol) if self.holds_codes else torch.nn.Parameter.__reduce_ex__(self, protocol)

    def __repr__(self, *, tensor_contents: typing.Any = None) -> str:
        return f"Fp8Parameter containing:\n{self.detach()!r}"


for _name, _dtype in (("float", torch.float32), ("double", torch.float64), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
    setattr(Fp8Parameter, _name, lambda self, dtype=_dtype: self.to(dtype))


def parts(tensor: torch.Tensor) -> tuple[bytes, str, bool, bool]:
    """All that makes a tensor in another process, of a converted weight with its scales. No tensors: old archives fill those in
    later, and memory of the sender's may be gone. Raises RuntimeError naming the module for a part of a weight."""
    return torch.ops.fp8.packed(tensor).numpy().tobytes(), str(tensor.device), isinstance(tensor, torch.nn.Parameter), tensor.requires_grad


def _rebuild(data: bytes, device: str, parameter: bool, requires_grad: bool) -> torch.Tensor:
    """The tensor of parts(). Raises RuntimeError for other bytes, and where the hpu device is not available."""
    _library.require()
    tensor = torch.ops.fp8.unpacked(torch.frombuffer(bytearray(data), dtype=torch.uint8)).to(device)
    if not parameter:
        return typing.cast(torch.Tensor, tensor.requires_grad_(requires_grad))
    return Fp8Parameter.of_codes(tensor, requires_grad) if torch.ops.fp8.describe(tensor) else torch.nn.Parameter(tensor, requires_grad)


def _raise(message: str) -> typing.NoReturn:
    raise RuntimeError(message)


def send(tensor: torch.Tensor) -> typing.Any:
    """For other processes. Values on the host go torch's own way."""
    if tensor.device.type != "hpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.dtype not in _FLOAT8:
        return reduce_tensor(tensor)
    try:
        return _sent(tensor)
    except Exception as error:
        if threading.current_thread().name != "QueueFeederThread":
            raise
        return _raise, (str(error),)  # in the receiver: nobody waits for the errors of a queue's own thread


def _sent(tensor: torch.Tensor) -> typing.Any:
    if torch.ops.fp8.describe(tensor):
        return _rebuild, parts(tensor)
    if tensor.device.type != "hpu":
        return reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("found a tensor of a graph, and autograd ends at the process: send tensor.detach()")
    if tensor.layout is not torch.strided:
        raise RuntimeError(f"found a tensor of layout {tensor.layout}, allowed: torch.strided: send tensor.cpu()")
    _trainers.check_pickled(tensor)
    return _rebuild, parts(tensor)


def _go_on_after_fork() -> None:
    """A child of fork has none of the threads that the parent's products ran on, and would wait for them."""
    if torch.get_device_module("hpu").is_initialized():
        torch.set_num_threads(1)


def register() -> None:
    os.register_at_fork(after_in_child=_go_on_after_fork)
    for cls in (torch.Tensor, torch.nn.Parameter, Fp8Parameter, Fp8View):
        ForkingPickler.register(cls, send)
    copyreg.pickle(torch.nn.Parameter, _trainers.pickle_parameter)  # type: ignore[arg-type]


torch.serialization.add_safe_globals([_rebuild])
