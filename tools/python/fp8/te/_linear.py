# SPDX-License-Identifier: Apache-2.0
"""te.Linear: a linear layer that trains in fp8 inside of fp8_autocast, without convert_modules()."""

import typing

import torch

from fp8 import _modules
from fp8.te import _attached, _region

Result = typing.Union[torch.Tensor, tuple[torch.Tensor, typing.Optional[torch.Tensor]]]


class Linear(torch.nn.Linear):
    """torch.nn.Linear outside of a region. Weights begin as N(0, 0.023), or as init_method(weight) makes them, the bias as zeros.

    return_bias: forward gives y without the bias, and the bias; name: in messages, and what the random numbers of stochastic
    rounding are drawn by. Arguments of several processes are taken where they ask for nothing; others raise ValueError."""
    attaches_itself = True

    def __init__(self, in_features: int, out_features: int, sequence_parallel: bool = False, tp_group: typing.Any = None, tp_size: int = 1,
                 get_rng_state_tracker: typing.Any = None, init_method: typing.Optional[typing.Callable[[torch.Tensor], typing.Any]] = None,
                 bias: bool = True, return_bias: bool = False, params_dtype: typing.Optional[torch.dtype] = None,
                 parallel_mode: typing.Optional[str] = None, skip_weight_param_allocation: bool = False, device: typing.Any = "hpu",
                 minimize_memory: bool = False, name: typing.Optional[str] = None) -> None:
        for key, found, *allowed in (
                ("sequence_parallel", sequence_parallel, False), ("tp_group", tp_group, None), ("tp_size", tp_size, 1),
                ("get_rng_state_tracker", get_rng_state_tracker, None), ("parallel_mode", parallel_mode, None, "row", "column"),
                ("skip_weight_param_allocation", skip_weight_param_allocation, False), ("minimize_memory", minimize_memory, False)):
            if found not in allowed:
                hint = "; PT_HPU_FP8_MINIMIZE_MEMORY=1 has this effect on all modules" if key == "minimize_memory" else ""
                raise ValueError(f"te.Linear: {key}: found {found!r}, allowed: {', '.join(map(repr, allowed))}{hint}")
        super().__init__(in_features, out_features, bias, device, params_dtype)
        with torch.no_grad():
            (init_method or _normal)(self.weight)
            if self.bias is not None:
                self.bias.zero_()
        self.return_bias = return_bias
        weight = _modules.Weight(name or f"te.Linear({in_features}, {out_features})", "weight", "Linear", self, "weight")
        _attached.Attached(weight, "habana")  # the region says the recipe

    def forward(self, inp: torch.Tensor, weight: typing.Optional[torch.Tensor] = None,  # type: ignore[override]
                bias: typing.Optional[torch.Tensor] = None, is_first_microbatch: typing.Optional[bool] = None) -> Result:
        """is_first_microbatch: True casts the weight and keeps it, False uses the kept one."""
        if weight is not None or bias is not None:
            name = "weight" if weight is not None else "bias"
            raise ValueError(f"te.Linear: {name}: found a tensor, allowed: None (its own parameter has the scales)")
        if is_first_microbatch is not None and _region.is_fp8_enabled():
            with _region.fp8_autocast(True, is_first_microbatch=is_first_microbatch):
                return self._product(inp)
        return self._product(inp)

    def _product(self, inp: torch.Tensor) -> Result:
        if self.return_bias:
            return torch.nn.functional.linear(inp, self.weight), self.bias
        return super().forward(inp)


def _normal(weight: torch.Tensor) -> None:
    torch.nn.init.normal_(weight, 0.0, 0.023)
