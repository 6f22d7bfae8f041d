# SPDX-License-Identifier: Apache-2.0
"""Optimizers on hpu, with the names and defaults of Habana's: each step is one operator on all parameters of a group.

    >>> import torch, fp8
    >>> layer = torch.nn.Linear(64, 32).to("hpu")
    >>> optimizer = fp8.optim.FusedAdamW(layer.parameters(), lr=1e-3, weight_decay=0.01)
    >>> layer(torch.randn(4, 64).to("hpu")).square().mean().backward()
    >>> norm = fp8.optim.FusedClipNorm(layer.parameters(), max_norm=1.0).clip_norm(layer.parameters())
    >>> optimizer.step()

Formulas: runtime/kernels/optim.h. Parameters are f32, bf16 or f16, on hpu. Muon is torch's own, which runs there as it is."""

import copy
import math
from typing import Any, Callable, Iterable, Sequence, cast

import torch
from torch.optim import Muon as Muon

from fp8 import graphs
from fp8._trainers import expect

Tensors = Sequence[torch.Tensor]
Closure = Callable[[], Any] | None
Group = dict[str, Any]
_OPS = torch.ops.hpu
_MOMENTS = ("exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale")
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# Option of a group: whether it is right, and what is allowed.
_ALLOWED: dict[str, tuple[Callable[[Any, Group], bool], str]] = {
    **dict.fromkeys(("lr", "weight_decay", "momentum"), (lambda value, _: 0 <= value < math.inf, "0 or more")),
    "eps": (lambda value, _: 0 < value < math.inf, "more than 0"),
    "betas": (lambda value, _: all(0 <= beta < 1 for beta in value), "two from 0 up to 1, without 1"),
    "eps_mode": (lambda value, _: value in ("habana", "torch"), "habana, torch"),
    "nesterov": (lambda value, group: not value or (group["momentum"] > 0 and group["dampening"] == 0), "False without momentum, or with dampening")}


def _scalar(value: float) -> torch.Tensor: return torch.tensor([value], dtype=torch.float32, device="hpu")


class _Fused(torch.optim.Optimizer):
    """step() is _begin() with the gradients of all groups, then _update() for each group that has some."""
    _update: Callable[[Group, Tensors, list[torch.Tensor], list[torch.Tensor]], None]  # values: what is stepped, in place

    def add_param_group(self, param_group: Group) -> None:
        options = {**self.defaults, **param_group}
        for key, (right, allowed) in _ALLOWED.items():
            expect(key not in options or right(options[key], options), type(self).__name__, key, options.get(key), allowed)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if graphs.is_current_stream_capturing():
            raise RuntimeError(f"{type(self).__name__}: step() within a capture, expected it outside: a replay would keep its rate and its number")
        learning = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        for p in (p for _, params in learning for p in params if p.device.type != "hpu"):
            raise RuntimeError(f"{type(self).__name__}: found a parameter of sizes {list(p.shape)} on {p.device}, expected it on hpu")
        self._begin([p.grad for _, params in learning for p in params])
        for group, params in ((group, params) for group, params in learning if params):
            values = [torch.ops.fp8.dequantize(p) if p.dtype in _FP8 else p for p in params]  # codes are of te.quantized_model_init
            self._update(group, params, values, [p.grad for p in params])
            for p, value in zip(params, values):
                if value is not p:
                    torch.ops.fp8.assign_held(p, value)
        return loss

    def _begin(self, grads: list[torch.Tensor]) -> None: """Of all groups."""

    def _moments(self, params: Tensors, values: list[torch.Tensor], **dtypes: torch.dtype | None) -> list[list[torch.Tensor]]:
        """A list for each name, of tensors that begin as zeros; None: of the dtype of the values."""
        for state, value in [(self.state[p], value) for p, value in zip(params, values)]:
            for name, dtype in dtypes.items():
                if state.get(name) is None:  # of torch's where it has not begun
                    state[name] = torch.zeros_like(value, dtype=dtype)
                    if dtype in _FP8:
                        state[name + "_scale"] = _scalar(1.0)
        return [[self.state[p][name] for p in params] for name in dtypes]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moments keep their dtype: torch would give them that of the parameter."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, p in zip(saved, [p for group in self.param_groups for p in group["params"]]):
            self.state[p].update({name: value.detach().to(p.device, copy=True) for name, value in state_dict["state"].get(number, {}).items()
                                  if name in (*_MOMENTS, "momentum_buffer") and value is not None})


class FusedAdamW(_Fused):
    """AdamW with eps beside sqrt(v) as it is (eps_mode "habana"), or where torch.optim.AdamW has it ("torch"). It takes the
    state_dict of torch.optim.AdamW.

    moments_dtype: of both moments, or a pair; fp8 ones have a scale each and are rounded stochastically."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.0, bias_correction: bool = True, moments_dtype: Any = None, eps_mode: str = "habana") -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction,
                                  "moments_dtype": moments_dtype, "eps_mode": eps_mode})

    def _update(self, group: Group, params: Tensors, values: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        dtypes = group["moments_dtype"] if isinstance(group["moments_dtype"], (tuple, list)) else (group["moments_dtype"],) * 2
        moments, states = self._moments(params, values, exp_avg=dtypes[0], exp_avg_sq=dtypes[1]), [self.state[p] for p in params]
        for state in states:
            state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).cpu() + 1  # as torch has it
        scales = [[state.get(name, _scalar(1.0)) for state in states] if any(name in state for state in states) else None for name in _MOMENTS[2:]]
        torch.ops.fp8.adamw_step(grads, values, *moments, [int(state["step"]) for state in states], float(group["lr"]), *group["betas"], group["eps"],
                                 float(group["weight_decay"]), group["bias_correction"], group["eps_mode"] == "torch", *scales)


class FusedSGD(_Fused):
    """torch.optim.SGD."""

    def __init__(self, params: Any, lr: float, momentum: float = 0, weight_decay: float = 0, dampening: float = 0, nesterov: bool = False) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "dampening": dampening, "nesterov": nesterov})

    def _update(self, group: Group, params: Tensors, values: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        with_momentum = params if group["momentum"] else []
        first = [self.state[p].get("momentum_buffer") is None for p in with_momentum]
        [buffers] = self._moments(with_momentum, values, momentum_buffer=None)
        torch.ops.fp8.sgd_step(grads, values, buffers, first, float(group["lr"]),
                               float(group["momentum"]), float(group["dampening"]), float(group["weight_decay"]), bool(group["nesterov"]))


class FusedLamb(_Fused):
    """LAMB. Gradients of all groups are divided by their norm / max_grad_norm where that is more than 1 (0: never; the least of the
    groups counts). use_lamb: the trust ratio also where weight_decay is 0."""

    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, amsgrad: bool = False, adam_w_mode: bool = True, grad_averaging: bool = True,
                 set_grad_none: bool = True, max_grad_norm: float = 1.0, use_lamb: bool = False) -> None:
        for key, found, allowed in (("amsgrad", amsgrad, False), ("adam_w_mode", adam_w_mode, True)):
            if found is not allowed:
                raise RuntimeError(f"FusedLamb: {key}: found {found}, allowed: {allowed}")
        self.set_grad_none = set_grad_none
        super().__init__(params, {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm, "use_lamb": use_lamb})

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # type: ignore[override]
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def _begin(self, grads: list[torch.Tensor]) -> None:
        limit = min((float(group["max_grad_norm"]) for group in self.param_groups), default=0.0)
        self._clip = _OPS.optimizer_lamb_fused_norm(grads, limit) if grads and limit > 0 else _scalar(1.0)

    def _update(self, group: Group, params: Tensors, values: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        group["step"] = group.get("step", 0) + 1
        moments = self._moments(params, values, exp_avg=None, exp_avg_sq=None)
        torch.ops.fp8.lamb_step(grads, values, *moments, self._clip, group["step"], float(group["lr"]), *group["betas"], group["eps"],
                                float(group["weight_decay"]), *(bool(group[key]) for key in ("bias_correction", "grad_averaging", "use_lamb")))


class FusedResourceApplyMomentum(_Fused):
    """buffer = momentum * buffer - gradient; p = p + buffer: for gradients that are steps already, as FusedLars makes them. lr and
    weight_decay are FusedLars's to read."""

    def __init__(self, params: Any, lr: float, momentum: float = 0, weight_decay: float = 0, nesterov: bool = False) -> None:
        expect(not nesterov, "FusedResourceApplyMomentum", "nesterov", nesterov, "False")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _update(self, group: Group, params: Tensors, values: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        pairs = zip(values, *self._moments(params, values, momentum_buffer=None))
        _OPS.optimizer_resource_apply_momentum([t for pair in pairs for t in pair], grads, float(group["momentum"]))


class FusedLars(_Fused):
    """LARS around a FusedResourceApplyMomentum: it makes steps of the gradients, which that applies. Groups and states are that
    optimizer's.

    skip_mask: for each parameter, in the order of the groups: 0 where the step is lr * gradient (biases, norms), else 1."""

    def __init__(self, optimizer: FusedResourceApplyMomentum, skip_mask: Sequence[int], eeta: float = 0.001, eps: float = 1e-8) -> None:
        expect(isinstance(optimizer, FusedResourceApplyMomentum), "FusedLars", "optimizer", type(optimizer).__name__,
               "FusedResourceApplyMomentum (others apply lr once more)")
        self.optim, self.eeta, self.eps = optimizer, eeta, eps
        self.skip_mask: list[int] = list(skip_mask)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()

    def _share(self) -> None:
        self.__dict__.update(param_groups=self.optim.param_groups, state=self.optim.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)
        self._share()

    def _begin(self, grads: list[torch.Tensor]) -> None:
        count = sum(len(group["params"]) for group in self.param_groups)
        if count != len(self.skip_mask):
            raise ValueError(f"FusedLars: skip_mask: found {len(self.skip_mask)}, expected {count} (one for each parameter)")

    def _update(self, group: Group, params: Tensors, values: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        masks = dict(zip([id(p) for g in self.param_groups for p in g["params"]], self.skip_mask))
        _OPS.optimizer_lars(values, grads, [masks[id(p)] for p in params], self.eeta, float(group["weight_decay"]), self.eps,
                            _scalar(float(group["lr"])))
        self.optim._update(group, params, values, grads)


class FusedEMA:
    """The average of a model's values: ema, a copy in evaluation. Its decay grows: decay * (1 - exp(-updates / 2000))."""

    def __init__(self, model: torch.nn.Module, decay: float = 0.9999, updates: int = 0) -> None:
        expect(0 <= decay <= 1, "FusedEMA", "decay", decay, "0 to 1")
        self.ema: torch.nn.Module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay: float = decay
        self.updates: int = updates

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / 2000))
        inputs, averages = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (model, self.ema))
        names = [name for name, value in averages.items() if value.is_floating_point()]
        _OPS.optimizer_ema([inputs[name] for name in names], [averages[name] for name in names], _scalar(decay))

    def update_attr(self, model: torch.nn.Module, include: Sequence[str] = (), exclude: Sequence[str] = ("process_group", "reducer")) -> None:
        """Copies attributes of the model: all public ones, or those to include."""
        for name, value in vars(model).items():
            if not name.startswith("_") and name not in exclude and (not include or name in include):
                setattr(self.ema, name, value)


class FusedClipNorm:
    """Scales gradients down where their L2 norm is more than max_norm."""

    def __init__(self, parameters: Iterable[torch.Tensor], max_norm: float) -> None:
        expect(max_norm >= 0, "FusedClipNorm", "max_norm", max_norm, "0 or more")
        del parameters  # clip_norm() gets them
        self.max_norm: float = float(max_norm)

    @torch.no_grad()
    def clip_norm(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
        """Returns the norm before."""
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        grads = [p.grad for p in parameters if p.grad is not None]
        return cast(torch.Tensor, _OPS.fused_clip_norm([*grads, _scalar(0.0)], _scalar(self.max_norm), 2.0))[0]
