# SPDX-License-Identifier: Apache-2.0
"""The weight of a converted module: a parameter whose memory holds fp8 codes and that stands for values."""

import json
import typing

import torch

from fp8 import _modules

_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}  # operators return ScalarType's number


class Fp8View(torch.Tensor):
    """A part of an Fp8Parameter, or it transposed: it too has the dtype of its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return _DTYPES[torch.ops.fp8.values_dtype(self)]


def _give_views(cls: type) -> None:
    """Geometry alone. detach() and data stay plain: who writes files asks them for the dtype of the memory."""
    def viewing(name: str) -> typing.Callable[..., torch.Tensor]:
        plain = getattr(torch.Tensor, name)

        def view(self: torch.Tensor, *args: typing.Any, **kwargs: typing.Any) -> torch.Tensor:
            return _as_view(plain(self, *args, **kwargs))
        view.__name__, view.__doc__ = name, plain.__doc__
        return view

    for name in ("__getitem__", "transpose", "t", "swapaxes", "permute", "view", "reshape", "unsqueeze", "squeeze", "select", "narrow", "flatten"):
        setattr(cls, name, viewing(name))
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
    (torch.bfloat16, torch.float8_e4m3fn)
    """

    # A product of a converted module runs no Python but torch's own.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, weight: _modules.Weight) -> "Fp8Parameter":
        """Makes the module's parameter one of these; it stays the object that it is."""
        parameter = weight.tensor
        if not isinstance(parameter, torch.nn.Parameter):
            raise TypeError(f"{weight.name}: expected a parameter, found {type(parameter).__name__}")
        parameter.__class__ = cls
        return typing.cast(Fp8Parameter, parameter)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Of the values."""
        return _DTYPES[torch.ops.fp8.values_dtype(self)]

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
        return typing.cast(torch.Tensor, torch.ops.fp8.values(self))

    def to(self, *args: typing.Any, **kwargs: typing.Any) -> torch.Tensor:
        """Another device; the dtype of the values changes nothing. Any other is refused by name."""
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None and dtype != self.dtype:
            raise RuntimeError(f"{torch.ops.fp8.describe(self)}: found a cast to {dtype}, allowed: {self.dtype}; dequantize() gives the values")
        del memory_format
        moved = super().to(device, non_blocking=non_blocking) if device is not None else self
        return moved

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        state = (self.detach().cpu().view(torch.uint8).numpy().tobytes(), tuple(self.shape))
        names = json.loads(torch.ops.fp8.tag_of(self))["modules"]
        return _rebuild, (*state, str(super().dtype), ", ".join(names), self.scale_inv.cpu(), json.dumps(self.scheme), self.requires_grad)

    def __repr__(self, *, tensor_contents: typing.Any = None) -> str:
        return f"Fp8Parameter containing:\n{self.detach()!r}"


_give_views(Fp8View)
_give_views(Fp8Parameter)


def _rebuild(codes: bytes, shape: tuple[int, ...], dtype: str, name: str, scale_inv: torch.Tensor, scheme: str, requires_grad: bool) -> torch.nn.Parameter:
    from fp8 import _library
    _library.require()
    tensor = torch.frombuffer(bytearray(codes), dtype=torch.uint8).view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape).to("hpu")
    torch.ops.fp8.tag(tensor, name, scale_inv, scheme)
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    parameter.__class__ = Fp8Parameter
    return parameter.requires_grad_(requires_grad)
