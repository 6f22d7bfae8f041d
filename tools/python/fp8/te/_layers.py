# SPDX-License-Identifier: Apache-2.0
"""Norms, which are never in fp8, and layers of several parts: the product of each weight is in fp8 inside of fp8_autocast.

    >>> import torch, fp8
    >>> mlp = fp8.te.LayerNormMLP(64, 256, activation="swiglu", normalization="RMSNorm")
    >>> with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
    ...     loss = mlp(torch.randn(16, 64).to("hpu")).square().mean()
    >>> loss.backward()
    >>> list(mlp.state_dict())
    ['layer_norm_weight', 'fc1_weight', 'fc1_bias', 'fc2_weight', 'fc2_bias', '_extra_state']"""

import math
import typing

import torch
from torch.nn import functional as F  # noqa: N812

from fp8 import _modules
from fp8.te import _arguments, _attached, _region

Init = typing.Optional[typing.Callable[[torch.Tensor], typing.Any]]
Results = typing.Union[torch.Tensor, tuple[typing.Any, ...]]
_ACTIVATIONS, _GATED = ("gelu", "relu", "silu", "qgelu", "srelu"), ("glu", "geglu", "reglu", "swiglu", "qgeglu", "sreglu")


class _Norm:
    zero_centered_gamma: bool

    def __init__(self, normalized_shape: int, eps: float = 1e-5, *, params_dtype: typing.Optional[torch.dtype] = None,
                 zero_centered_gamma: bool = False, device: typing.Any = "hpu", **nothing: typing.Any) -> None:
        _check(f"te.{type(self).__name__}", nothing, params_dtype, eps, normalized_shape=normalized_shape)
        super().__init__(normalized_shape, eps, device=device, dtype=params_dtype)  # type: ignore[call-arg]
        self.zero_centered_gamma = zero_centered_gamma
        if zero_centered_gamma:
            torch.nn.init.zeros_(self.weight)  # type: ignore[attr-defined]

    def forward(self: typing.Any, input: torch.Tensor) -> torch.Tensor:
        return _normalized(f"te.{type(self).__name__}", input, self.weight, getattr(self, "bias", None), self.eps, self.zero_centered_gamma)


class LayerNorm(_Norm, torch.nn.LayerNorm):
    """torch.nn.LayerNorm. zero_centered_gamma: gamma is 1 + weight, which begins as zeros."""


class RMSNorm(_Norm, torch.nn.RMSNorm):
    """torch.nn.RMSNorm. zero_centered_gamma: gamma is 1 + weight, which begins as zeros."""


_NORMS: dict[str, typing.Any] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm(where: str, features: int, eps: float, normalization: str = "LayerNorm", **options: typing.Any) -> torch.nn.Module:
    _arguments.one_of(where, "normalization", normalization, *_NORMS)
    return typing.cast(torch.nn.Module, _NORMS[normalization](features, eps, **options))


def _check(where: str, nothing: dict[str, typing.Any], dtype: typing.Optional[torch.dtype], eps: float, **sizes: int) -> None:
    _arguments.refuse(where, nothing)
    _arguments.sizes(where, **sizes)
    _arguments.one_of(where, "params_dtype", dtype or torch.get_default_dtype(), *_arguments.HIGH)
    _arguments.expect(math.isfinite(eps) and eps >= 0, where, "eps", eps, "finite numbers >= 0")


def _normalized(where: str, x: torch.Tensor, weight: torch.Tensor, bias: typing.Any, eps: float, centered: bool) -> torch.Tensor:
    """Without a bias RMSNorm."""
    _arguments.expect(x.shape[-1:] == weight.shape, where, "input", f"sizes {list(x.shape)}", f"[..., {weight.numel()}]")
    return typing.cast(torch.Tensor, torch.ops.fp8.normalized(x, weight, bias, eps, centered))


def _begin(weight: torch.Tensor, init_method: Init) -> None:
    """The values that a weight begins with."""
    with torch.no_grad():
        (init_method or (lambda weight: weight.normal_(0.0, 0.023)))(weight)


class Linear(torch.nn.Linear):
    """torch.nn.Linear outside of a region. Weights begin as N(0, 0.023), or as init_method(weight) makes them, the bias as zeros.

    return_bias: forward gives y without the bias, and the bias; minimize_memory: backward casts the weight again; name: in messages,
    and what the random numbers of stochastic rounding are drawn by. Arguments of several processes are taken where they ask for nothing;
    others raise ValueError."""
    attaches_itself = True

    def __init__(self, in_features: int, out_features: int, sequence_parallel: bool = False, tp_group: typing.Any = None, tp_size: int = 1,
                 get_rng_state_tracker: typing.Any = None, init_method: Init = None, bias: bool = True,
                 return_bias: bool = False, params_dtype: typing.Optional[torch.dtype] = None,
                 parallel_mode: typing.Optional[str] = None, skip_weight_param_allocation: bool = False, device: typing.Any = "hpu",
                 minimize_memory: bool = False, name: typing.Optional[str] = None, **nothing: typing.Any) -> None:
        _arguments.refuse("te.Linear", {
            "sequence_parallel": sequence_parallel, "tp_group": tp_group, "tp_size": tp_size, "get_rng_state_tracker": get_rng_state_tracker,
            "parallel_mode": parallel_mode, "skip_weight_param_allocation": skip_weight_param_allocation, **nothing})
        super().__init__(in_features, out_features, bias, device, params_dtype)
        _begin(self.weight, init_method)
        if self.bias is not None:
            _begin(self.bias, torch.nn.init.zeros_)
        self.return_bias = return_bias
        weight = _modules.Weight(name or f"te.Linear({in_features}, {out_features})", "weight", "Linear", self, "weight")
        _attached.Attached(weight, minimize_memory=minimize_memory)

    def forward(self, inp: torch.Tensor, weight: typing.Optional[torch.Tensor] = None,  # type: ignore[override]
                bias: typing.Optional[torch.Tensor] = None, is_first_microbatch: typing.Optional[bool] = None) -> Results:
        """is_first_microbatch: True casts the weight and keeps it, False uses the kept one."""
        if weight is not None or bias is not None:
            name = "weight" if weight is not None else "bias"
            raise ValueError(f"te.Linear: {name}: found a tensor, allowed: None (its own parameter has the scales)")
        with _region.microbatch(is_first_microbatch):
            return (torch.nn.functional.linear(inp, self.weight), self.bias) if self.return_bias else super().forward(inp)


class _Products(torch.nn.Module):
    attaches_itself = True
    return_bias: bool

    def __init__(self, name: str, sizes: dict[str, int], eps: float = 0.0, *, init_method: Init = None, bias: bool = True,
                 return_bias: bool = False, params_dtype: typing.Optional[torch.dtype] = None, device: typing.Any = "hpu",
                 minimize_memory: bool = False, **nothing: typing.Any) -> None:
        super().__init__()
        self._name, self._where, self._init, self._bias = name, f"te.{type(self).__name__}", init_method, bias
        self._made, self.return_bias, self._minimize_memory = {"device": device, "dtype": params_dtype}, return_bias, minimize_memory
        _check(self._where, nothing, params_dtype, eps, **sizes)

    def _add(self, weight: str, rows: int, columns: int, part: str = "") -> None:
        """A weight and its bias, and scales of their own."""
        self.register_parameter(weight, torch.nn.Parameter(torch.empty(rows, columns, **self._made)))
        _begin(getattr(self, weight), self._init)
        self.register_parameter(weight.replace("weight", "bias"), torch.nn.Parameter(torch.zeros(rows, **self._made)) if self._bias else None)
        _attached.Attached(_modules.Weight(self._name + part, weight, "Linear", self, weight), minimize_memory=self._minimize_memory)


class _Normed(_Products):
    return_layernorm_output: bool

    def __init__(self, name: str, sizes: dict[str, int], eps: float, *, normalization: str = "LayerNorm", zero_centered_gamma: bool = False,
                 return_layernorm_output: bool = False, **options: typing.Any) -> None:
        super().__init__(name, sizes, eps, **options)
        self._eps, self._centered, self.return_layernorm_output = eps, zero_centered_gamma, return_layernorm_output
        made: typing.Any = norm(self._where, next(iter(sizes.values())), eps, normalization, zero_centered_gamma=zero_centered_gamma,
                                device=self._made["device"], params_dtype=self._made["dtype"])
        self.layer_norm_weight: torch.nn.Parameter = made.weight
        self.register_parameter("layer_norm_bias", getattr(made, "bias", None))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return _normalized(self._where, x, self.layer_norm_weight, self.layer_norm_bias, self._eps, self._centered)

    def _results(self, y: torch.Tensor, bias: typing.Any, normal: torch.Tensor) -> Results:
        asked = [bias] * self.return_bias + [normal] * self.return_layernorm_output
        return (y, *asked) if asked else y


class LayerNormLinear(_Normed):
    """te.Linear of norm(x). normalization: "LayerNorm" or "RMSNorm". forward gives y, or with return_bias and return_layernorm_output
    (y without the bias, the bias, norm(x)). init_method, bias, zero_centered_gamma, params_dtype, device, name: as in te.Linear and te.LayerNorm."""
    weight: torch.nn.Parameter
    bias: typing.Optional[torch.nn.Parameter]

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, *, name: typing.Optional[str] = None, **options: typing.Any) -> None:
        super().__init__(name or "layernorm_linear", {"in_features": in_features, "out_features": out_features}, eps, **options)
        self._add("weight", out_features, in_features)

    def forward(self, inp: torch.Tensor, is_first_microbatch: typing.Optional[bool] = None, **nothing: typing.Any) -> Results:
        _arguments.refuse(self._where, nothing)
        normal = self._norm(inp)
        with _region.microbatch(is_first_microbatch):
            return self._results(F.linear(normal, self.weight, None if self.return_bias else self.bias), self.bias, normal)


class LayerNormMLP(_Normed):
    """fc2(activation(fc1(norm(x)))). A gated activation ("geglu", "swiglu", ...) is f(first half) * second half of fc1's result, which
    has 2 ffn_hidden_size columns. checkpoint: backward computes it again, bit for bit. Others: as in LayerNormLinear, the bias is fc2's."""
    fc1_weight: torch.nn.Parameter
    fc2_weight: torch.nn.Parameter
    fc1_bias: typing.Optional[torch.nn.Parameter]
    fc2_bias: typing.Optional[torch.nn.Parameter]
    activation: str
    checkpoint: bool

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, *, activation: str = "gelu", checkpoint: bool = False,
                 output_layer_init_method: Init = None, name: typing.Optional[str] = None, **options: typing.Any) -> None:
        super().__init__(name or "layernorm_mlp", {"hidden_size": hidden_size, "ffn_hidden_size": ffn_hidden_size}, eps, **options)
        _arguments.one_of(self._where, "activation", activation, *_ACTIVATIONS, *_GATED)
        self.activation, self.checkpoint = activation, checkpoint
        self._add("fc1_weight", ffn_hidden_size * (2 if activation in _GATED else 1), hidden_size, ".fc1")
        self._init = output_layer_init_method
        self._add("fc2_weight", hidden_size, ffn_hidden_size, ".fc2")

    def forward(self, inp: torch.Tensor, is_first_microbatch: typing.Optional[bool] = None) -> Results:
        with _region.microbatch(is_first_microbatch):
            y, normal = _region.checkpoint(self._run, inp, use_reentrant=False, preserve_rng_state=False) if self.checkpoint else self._run(inp)
        return self._results(y, self.fc2_bias, normal)

    def _run(self, inp: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = self._norm(inp)
        inner = torch.ops.fp8.activated(F.linear(normal, self.fc1_weight, self.fc1_bias), self.activation)
        return F.linear(inner, self.fc2_weight, None if self.return_bias else self.fc2_bias), normal


class GroupedLinear(_Products):
    """num_gemms linear layers, each for its own share of the rows, with scales of its own: weight0, bias0, weight1, ... With return_bias forward
    gives (y without the biases, the biases). init_method, bias, params_dtype, device, name: as in te.Linear."""
    num_gemms: int
    in_features: int
    out_features: int

    def __init__(self, num_gemms: int, in_features: int, out_features: int, *, name: typing.Optional[str] = None, **options: typing.Any) -> None:
        super().__init__(name or "grouped_linear", {"num_gemms": num_gemms, "in_features": in_features, "out_features": out_features}, **options)
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        for i in range(num_gemms):
            self._add(f"weight{i}", out_features, in_features, f".{i}")

    def forward(self, inp: torch.Tensor, m_splits: typing.Sequence[int], is_first_microbatch: typing.Optional[bool] = None) -> Results:
        """m_splits: num_gemms numbers of rows, whose sum is inp's."""
        _arguments.expect(inp.shape[-1:] == (self.in_features,), self._where, "input", f"sizes {list(inp.shape)}", f"[..., {self.in_features}]")
        rows, splits = inp.reshape(-1, self.in_features), [int(count) for count in m_splits]
        fits = len(splits) == self.num_gemms and min(splits) >= 0 and sum(splits) == rows.size(0)
        _arguments.expect(fits, self._where, "m_splits", splits, f"{self.num_gemms} numbers >= 0 with a sum of {rows.size(0)}")
        weights, biases = ([getattr(self, f"{kind}{i}") for i in range(self.num_gemms)] for kind in ("weight", "bias"))
        with _region.microbatch(is_first_microbatch):
            parts = [F.linear(part, w, None if self.return_bias else b) for part, w, b in zip(rows.split(splits), weights, biases)]
        y = torch.cat(parts).reshape(*inp.shape[:-1], self.out_features)
        return (y, biases) if self.return_bias else y
