# SPDX-License-Identifier: Apache-2.0
"""The weight of a converted module: a parameter whose memory holds fp8 codes and that stands for values."""

import json
import typing
from multiprocessing.reduction import ForkingPickler

import torch

from fp8 import _modules
from fp8._sharing import bytes_of, of_bytes, send

_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}  # operators return ScalarType's number


class Fp8View(torch.Tensor):
    """A part of an Fp8Parameter, or it transposed: it too has the dtype of its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        return _rebuild, parts(self)


def _dtype_of_values(self: torch.Tensor) -> torch.dtype:
    return _DTYPES[torch.ops.fp8.values_dtype(self)]


def _give_views(cls: type) -> None:
    """Geometry alone. detach() and data stay plain: who writes files asks them for the dtype of the memory."""
    def viewing(name: str) -> typing.Callable[..., torch.Tensor]:
        plain = getattr(torch.Tensor, name)

        def view(self: torch.Tensor, *args: typing.Any, **kwargs: typing.Any) -> torch.Tensor:
            return _as_view(plain(self, *args, **kwargs))
        view.__name__, view.__doc__ = name, f"torch.Tensor.{name}(); a part knows the scale."
        return view

    for name in ("__getitem__", "transpose", "t", "swapaxes", "permute", "view", "reshape", "unsqueeze", "squeeze", "select", "narrow", "flatten"):
        setattr(cls, name, viewing(name))

    def making(name: str) -> typing.Callable[..., torch.Tensor]:
        plain = getattr(torch.Tensor, name)

        def make(self: torch.Tensor, *args: typing.Any, **kwargs: typing.Any) -> torch.Tensor:
            return plain(self, *args, **{"dtype": self.dtype, **kwargs})
        make.__name__, make.__doc__ = name, f"torch.Tensor.{name}(), by default in the dtype of the values."
        return make

    for name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "new_tensor"):  # in the dtype of the values
        setattr(cls, name, making(name))
    setattr(cls, "dtype", property(_dtype_of_values))
    for name in ("T", "mT"):
        plain = getattr(torch.Tensor, name)
        setattr(cls, name, property(lambda self, plain=plain: _as_view(plain.__get__(self))))


def _as_view(found: torch.Tensor) -> torch.Tensor:
    if type(found) is torch.Tensor and torch.ops.fp8.describe(found):
        found.__class__ = Fp8View
    return found


class Fp8Parameter(torch.nn.Parameter):
    """`dtype` and `repr` are those of the values, so that code which casts activations to the dtype of a weight works.

    >>> import torch, fp8
    >>> layer = torch.nn.Linear(32, 16).to("hpu")
    >>> _ = fp8.quant.convert(layer, fp8.quant.FP8Config(mode="QUANTIZE", scale_method="unit_scale"))
    >>> layer.weight.dtype, layer.weight.codes.dtype
    (torch.float32, torch.float8_e4m3fn)
    """

    # A product of a converted module runs no Python but torch's own.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, weight: _modules.Weight) -> "Fp8Parameter":
        """Makes the module's parameter one of these; it stays the object that it is."""
        parameter = weight.owned
        if not isinstance(parameter, torch.nn.Parameter):
            raise TypeError(f"{weight.name}: expected a parameter, found {type(parameter).__name__}")
        parameter.__class__ = cls
        return typing.cast(Fp8Parameter, parameter)

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
        return is_transposed(self)

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
            raise RuntimeError(f"{torch.ops.fp8.describe(self)}: can't be moved into shared memory on {self.device}: share it on hpu, or send the model")
        return typing.cast(Fp8Parameter, super().share_memory_())

    def __deepcopy__(self, memo: dict[int, typing.Any]) -> torch.nn.Parameter:
        if self.device.type == "hpu" or not self.holds_codes:
            return super().__deepcopy__(memo)
        if id(self) not in memo:
            memo[id(self)] = _rebuild(*parts(self))
        return typing.cast(torch.nn.Parameter, memo[id(self)])

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        return (_rebuild, parts(self)) if self.holds_codes else super().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: typing.Any = None) -> str:
        return f"Fp8Parameter containing:\n{self.detach()!r}"


_give_views(Fp8View)
_give_views(Fp8Parameter)
for _name, _dtype in (("float", torch.float32), ("double", torch.float64), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
    setattr(Fp8Parameter, _name, lambda self, dtype=_dtype: self.to(dtype))


def is_transposed(weight: torch.Tensor) -> bool:
    """Whether a converted weight is a transposed view of its codes."""
    return not weight.is_contiguous() or list(weight.shape) != json.loads(torch.ops.fp8.tag_of(weight))["sizes"]


def parts(weight: torch.Tensor) -> tuple[typing.Any, ...]:
    """All that makes a converted weight, or the codes of one, in another process. No tensors: old archives fill those in
    later. Raises RuntimeError naming the module for a part of a weight."""
    tag = json.loads(torch.ops.fp8.tag_of(weight))
    if tag is None or not tag["whole"]:
        raise RuntimeError(f"{torch.ops.fp8.describe(weight) or 'codes without a scale'}: a part of it can't be pickled; dequantize() gives its values")
    transposed = is_transposed(weight)
    codes, dtype, shape = bytes_of(weight.detach().transpose(-2, -1) if transposed else weight)
    scale_inv, _, scale_shape = bytes_of(torch.ops.fp8.scale_inv(weight))
    return (codes, shape, str(dtype), ", ".join(tag["modules"]), scale_inv, scale_shape, torch.ops.fp8.scheme_of(weight), weight.requires_grad,
            str(weight.device), isinstance(weight, Fp8Parameter), transposed)


def _rebuild(codes: bytes, shape: tuple[int, ...], dtype: str, name: str, scale_inv: bytes, scale_shape: tuple[int, ...], scheme: str,
             requires_grad: bool, device: str, parameter: bool, transposed: bool = False) -> torch.Tensor:
    """The weight of parts(). Raises RuntimeError for another dtype than fp8, and where the hpu device is not available."""
    from fp8 import _library
    _library.require()
    found = {str(d): d for d in (torch.float8_e4m3fn, torch.float8_e5m2)}.get(dtype)
    if found is None:
        raise RuntimeError(f"{name}: weight: found {dtype}, allowed: torch.float8_e4m3fn, torch.float8_e5m2")
    tensor = of_bytes(codes, found, shape).to("hpu")
    torch.ops.fp8.tag(tensor, name, of_bytes(scale_inv, torch.float32, scale_shape), scheme)
    tensor = tensor.to(device)
    tensor = tensor.transpose(-2, -1) if transposed else tensor
    if not parameter:
        return tensor
    made = torch.nn.Parameter(tensor, requires_grad=False)
    made.__class__ = Fp8Parameter
    return made.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([_rebuild])
for _cls in (Fp8Parameter, Fp8View):
    ForkingPickler.register(_cls, send)
