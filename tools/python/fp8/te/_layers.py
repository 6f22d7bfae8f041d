# SPDX-License-Identifier: Apache-2.0
"""Norms, which are never in fp8, and layers of several parts: the product of each weight is in fp8 inside of fp8_autocast. What an
argument of Transformer Engine asks for is done, or refused by name."""

import math
from typing import Any, Callable, Mapping, Sequence

import torch

from fp8 import _modules, _trainers
from fp8._trainers import expect
from fp8.te import _attached, _region

Init = Callable[[torch.Tensor], Any] | None
Results = torch.Tensor | tuple[Any, ...]
_ACTIVATIONS, _GATED = ("gelu", "relu", "silu", "qgelu", "srelu"), ("glu", "geglu", "reglu", "swiglu", "qgeglu", "sreglu")
_HIGH = (torch.float32, torch.bfloat16, torch.float16)
# Arguments of several processes, of CUDA, and of products that are not here, with the values that ask for nothing; and those that choose
# kernels and name buffers.
_NOTHING, _IGNORED = (_trainers.NAMES["te"][key] for key in ("nothing", "ignored"))
_HINTS = {"fp8_mha": "; fp8_dpa has attention in fp8, whose q, k and v come in high precision"}


def refuse(where: str, found: Mapping[str, Any]) -> None:
    """Raises ValueError for the first that asks for something, TypeError for what is no argument."""
    for key, value in found.items():
        if key in _NOTHING:
            alone = key == "tp_group" and hasattr(value, "size") and value.size() == 1
            one_of(where, key, None if alone else value, *_NOTHING[key])
        elif key not in _IGNORED:
            raise TypeError(f"{where}: found an unexpected argument '{key}'")


def one_of(where: str, key: str, found: Any, *allowed: Any) -> None:
    said = f"a tensor of sizes {list(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
    expect(found in allowed, where, key, said, ", ".join(map(repr, allowed)) + _HINTS.get(key, ""))


def sizes(where: str, **found: int) -> None:
    for key, size in found.items():
        expect(type(size) is int and 1 <= size <= 1 << 30, where, key, size, f"1 to {1 << 30}")


class _Norm:
    zero_centered_gamma: bool

    def __init__(self, normalized_shape: int, eps: float = 1e-5, *, params_dtype: torch.dtype | None = None,
                 zero_centered_gamma: bool = False, device: Any = "hpu", **nothing: Any) -> None:
        _check(f"te.{type(self).__name__}", nothing, params_dtype, eps, normalized_shape=normalized_shape)
        super().__init__(normalized_shape, eps, device=device, dtype=params_dtype)  # type: ignore[call-arg]
        self.zero_centered_gamma = zero_centered_gamma
        if zero_centered_gamma:
            torch.nn.init.zeros_(self.weight)  # type: ignore[attr-defined]

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        bias, where = getattr(self, "bias", None), f"te.{type(self).__name__}"
        return torch.ops.fp8.normalized(input, self.weight, bias, self.eps, self.zero_centered_gamma, where)


class LayerNorm(_Norm, torch.nn.LayerNorm): """torch.nn.LayerNorm. zero_centered_gamma: gamma is 1 + weight, which begins as zeros."""
class RMSNorm(_Norm, torch.nn.RMSNorm): """torch.nn.RMSNorm. zero_centered_gamma: gamma is 1 + weight, which begins as zeros."""


_NORMS: dict[str, Any] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm(where: str, features: int, eps: float, normalization: str = "LayerNorm", **options: Any) -> Any:
    one_of(where, "normalization", normalization, *_NORMS)
    return _NORMS[normalization](features, eps, **options)


def _check(where: str, nothing: dict[str, Any], dtype: torch.dtype | None, eps: float, **counts: int) -> None:
    refuse(where, nothing)
    sizes(where, **counts)
    one_of(where, "params_dtype", dtype or torch.get_default_dtype(), *_HIGH)
    expect(math.isfinite(eps) and eps >= 0, where, "eps", eps, "finite numbers >= 0")


def _begin(weight: torch.Tensor, init_method: Init) -> None:
    """The values that a weight begins with."""
    with torch.no_grad():
        (init_method or (lambda weight: weight.normal_(0.0, 0.023)))(weight)


def _attach(owner: torch.nn.Module, parameter: str, name: str, minimize_memory: bool) -> None:
    """The weight is in fp8 by itself inside of a region."""
    weight = _modules.Weight(name, parameter, "Linear", owner, parameter)
    _attached.Attached(weight, "", minimize_memory, _region.hold(weight.owned, name))


class Linear(torch.nn.Linear):
    """torch.nn.Linear outside of a region. Weights begin as N(0, 0.023), or as init_method(weight) makes them, the bias as zeros.

    return_bias: forward gives y without the bias, and the bias; minimize_memory: backward casts the weight again; name: in messages,
    and what the random numbers of stochastic rounding are drawn by. Arguments of several processes are taken where they ask for nothing;
    others raise ValueError."""
    attaches_itself = True

    def __init__(self, in_features: int, out_features: int, sequence_parallel: bool = False, tp_group: Any = None, tp_size: int = 1,
                 get_rng_state_tracker: Any = None, init_method: Init = None, bias: bool = True, return_bias: bool = False,
                 params_dtype: torch.dtype | None = None, parallel_mode: str | None = None, skip_weight_param_allocation: bool = False,
                 device: Any = "hpu", minimize_memory: bool = False, name: str | None = None, **nothing: Any) -> None:
        given = locals()
        refuse("te.Linear", {**{key: given[key] for key in _NOTHING if key in given}, **nothing})
        super().__init__(in_features, out_features, bias, device, params_dtype)
        _begin(self.weight, init_method)
        if self.bias is not None:
            _begin(self.bias, torch.nn.init.zeros_)
        self.return_bias = return_bias
        _attach(self, "weight", name or f"te.Linear({in_features}, {out_features})", minimize_memory)

    def forward(self, inp: torch.Tensor, weight: torch.Tensor | None = None,  # type: ignore[override]
                bias: torch.Tensor | None = None, is_first_microbatch: bool | None = None) -> Results:
        """is_first_microbatch: True casts the weight and keeps it, False uses the kept one."""
        if weight is not None or bias is not None:
            expect(False, "te.Linear", "bias" if weight is None else "weight", "a tensor", "None (its own parameter has the scales)")
        with _region.microbatch(is_first_microbatch):
            return (_attached.product(self, inp, None), self.bias) if self.return_bias else _attached.product(self, inp, self.bias)


class _Products(torch.nn.Module):
    attaches_itself = True
    return_bias: bool

    def __init__(self, name: str, sizes: dict[str, int], eps: float = 0.0, *, init_method: Init = None, bias: bool = True, return_bias: bool = False,
                 params_dtype: torch.dtype | None = None, device: Any = "hpu", minimize_memory: bool = False, **nothing: Any) -> None:
        super().__init__()
        self._name, self._where, self._init, self._bias = name, f"te.{type(self).__name__}", init_method, bias
        self._made, self.return_bias, self._minimize_memory = {"device": device, "dtype": params_dtype}, return_bias, minimize_memory
        _check(self._where, nothing, params_dtype, eps, **sizes)

    def _add(self, weight: str, rows: int, columns: int, part: str = "") -> None:
        """A weight and its bias, and scales of their own."""
        self.register_parameter(weight, torch.nn.Parameter(torch.empty(rows, columns, **self._made)))
        _begin(getattr(self, weight), self._init)
        self.register_parameter(weight.replace("weight", "bias"), torch.nn.Parameter(torch.zeros(rows, **self._made)) if self._bias else None)
        _attach(self, weight, self._name + part, self._minimize_memory)


class _Normed(_Products):
    def __init__(self, name: str, sizes: dict[str, int], eps: float, *, normalization: str = "LayerNorm", zero_centered_gamma: bool = False,
                 return_layernorm_output: bool = False, **options: Any) -> None:
        super().__init__(name, sizes, eps, **options)
        self._eps, self._centered, self.return_layernorm_output = eps, zero_centered_gamma, return_layernorm_output
        made = norm(self._where, next(iter(sizes.values())), eps, normalization, zero_centered_gamma=zero_centered_gamma,
                    device=self._made["device"], params_dtype=self._made["dtype"])
        self.layer_norm_weight: torch.nn.Parameter = made.weight
        self.register_parameter("layer_norm_bias", getattr(made, "bias", None))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.fp8.normalized(x, self.layer_norm_weight, self.layer_norm_bias, self._eps, self._centered, self._where)

    def _results(self, y: torch.Tensor, bias: Any, normal: torch.Tensor) -> Results:
        asked = [bias] * self.return_bias + [normal] * self.return_layernorm_output
        return (y, *asked) if asked else y


class LayerNormLinear(_Normed):
    """te.Linear of norm(x). normalization: "LayerNorm" or "RMSNorm". forward gives y, or with return_bias and return_layernorm_output
    (y without the bias, the bias, norm(x)). init_method, bias, zero_centered_gamma, params_dtype, device, name: as in te.Linear and te.LayerNorm."""
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, *, name: str | None = None, **options: Any) -> None:
        super().__init__(name or "layernorm_linear", {"in_features": in_features, "out_features": out_features}, eps, **options)
        self._add("weight", out_features, in_features)

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None, **nothing: Any) -> Results:
        refuse(self._where, nothing)
        normal = self._norm(inp)
        with _region.microbatch(is_first_microbatch):
            return self._results(_attached.product(self, normal, None if self.return_bias else self.bias), self.bias, normal)


class LayerNormMLP(_Normed):
    """fc2(activation(fc1(norm(x)))). A gated activation ("geglu", "swiglu", ...) is f(first half) * second half of fc1's result, which
    has 2 ffn_hidden_size columns. checkpoint: backward computes it again, bit for bit. Others: as in LayerNormLinear, the bias is fc2's."""
    fc1_weight: torch.nn.Parameter
    fc2_weight: torch.nn.Parameter
    fc1_bias: torch.nn.Parameter | None
    fc2_bias: torch.nn.Parameter | None

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, *, activation: str = "gelu", checkpoint: bool = False,
                 output_layer_init_method: Init = None, name: str | None = None, **options: Any) -> None:
        super().__init__(name or "layernorm_mlp", {"hidden_size": hidden_size, "ffn_hidden_size": ffn_hidden_size}, eps, **options)
        one_of(self._where, "activation", activation, *_ACTIVATIONS, *_GATED)
        self.activation, self.checkpoint = activation, checkpoint
        self._add("fc1_weight", ffn_hidden_size * (2 if activation in _GATED else 1), hidden_size, ".fc1")
        self._init = output_layer_init_method
        self._add("fc2_weight", hidden_size, ffn_hidden_size, ".fc2")

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Results:
        with _region.microbatch(is_first_microbatch):
            y, normal = _region.checkpoint(self._run, inp, use_reentrant=False, preserve_rng_state=False) if self.checkpoint else self._run(inp)
        return self._results(y, self.fc2_bias, normal)

    def _run(self, inp: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = self._norm(inp)
        inner = torch.ops.fp8.activated(_attached.product(self, normal, self.fc1_bias, "fc1_weight"), self.activation)
        return _attached.product(self, inner, None if self.return_bias else self.fc2_bias, "fc2_weight"), normal


class GroupedLinear(_Products):
    """num_gemms linear layers, each for its own share of the rows, with scales of its own: weight0, bias0, weight1, ... With return_bias forward
    gives (y without the biases, the biases). init_method, bias, params_dtype, device, name: as in te.Linear."""

    def __init__(self, num_gemms: int, in_features: int, out_features: int, *, name: str | None = None, **options: Any) -> None:
        super().__init__(name or "grouped_linear", {"num_gemms": num_gemms, "in_features": in_features, "out_features": out_features}, **options)
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        for i in range(num_gemms):
            self._add(f"weight{i}", out_features, in_features, f".{i}")

    def forward(self, inp: torch.Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None) -> Results:
        """m_splits: num_gemms numbers of rows, whose sum is inp's."""
        expect(inp.shape[-1:] == (self.in_features,), self._where, "input", f"sizes {list(inp.shape)}", f"[..., {self.in_features}]")
        rows, splits = inp.reshape(-1, self.in_features), [int(count) for count in m_splits]
        fits = len(splits) == self.num_gemms and min(splits) >= 0 and sum(splits) == rows.size(0)
        expect(fits, self._where, "m_splits", splits, f"{self.num_gemms} numbers >= 0 with a sum of {rows.size(0)}")
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)]
        with _region.microbatch(is_first_microbatch):
            parts = [_attached.product(self, part, None if self.return_bias else b, f"weight{i}")
                     for i, (part, b) in enumerate(zip(rows.split(splits), biases))]
        y = torch.cat(parts).reshape(*inp.shape[:-1], self.out_features)
        return (y, biases) if self.return_bias else y
