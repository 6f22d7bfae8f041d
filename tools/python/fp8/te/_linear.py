# SPDX-License-Identifier: Apache-2.0
"""te.Linear: a linear layer that trains in fp8 inside of fp8_autocast, without convert_modules()."""

import typing

import torch

from fp8 import _modules
from fp8.te import _arguments, _attached, _region

Result = typing.Union[torch.Tensor, tuple[torch.Tensor, typing.Optional[torch.Tensor]]]
Init = typing.Optional[typing.Callable[[torch.Tensor], typing.Any]]


class Linear(torch.nn.Linear):
    """torch.nn.Linear outside of a region. Weights begin as N(0, 0.023), or as init_method(weight) makes them, the bias as zeros.

    return_bias: forward gives y without the bias, and the bias; minimize_memory: backward casts the weight again; name: in messages, and what the random numbers of stochastic
    rounding are drawn by. Arguments of several processes are taken where they ask for nothing; others raise ValueError."""
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
        begin(self.weight, init_method)
        if self.bias is not None:
            begin(self.bias, torch.nn.init.zeros_)
        self.return_bias = return_bias
        weight = _modules.Weight(name or f"te.Linear({in_features}, {out_features})", "weight", "Linear", self, "weight")
        _attached.Attached(weight, "habana", minimize_memory)  # the region says the recipe

    def forward(self, inp: torch.Tensor, weight: typing.Optional[torch.Tensor] = None,  # type: ignore[override]
                bias: typing.Optional[torch.Tensor] = None, is_first_microbatch: typing.Optional[bool] = None) -> Result:
        """is_first_microbatch: True casts the weight and keeps it, False uses the kept one."""
        if weight is not None or bias is not None:
            name = "weight" if weight is not None else "bias"
            raise ValueError(f"te.Linear: {name}: found a tensor, allowed: None (its own parameter has the scales)")
        with _region.microbatch(is_first_microbatch):
            return (torch.nn.functional.linear(inp, self.weight), self.bias) if self.return_bias else super().forward(inp)


def begin(weight: torch.Tensor, init_method: Init) -> None:
    """The values that a weight begins with."""
    with torch.no_grad():
        (init_method or (lambda weight: weight.normal_(0.0, 0.023)))(weight)
