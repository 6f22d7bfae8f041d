# SPDX-License-Identifier: Apache-2.0
"""Weights that FSDP2 gathers in fp8: each rank casts its part with the scale of the whole, and codes are sent in the place of values.

    forward in fp8_autocast     all amaxes in one message for each region; codes, which the product takes as they are
    backward                    codes, as in the last forward
    elsewhere                   values, as without

torch asks the part of a weight for fsdp_pre_all_gather and fsdp_post_all_gather. What stands for the gathered weight in autograd has its
sizes and no memory while codes are there."""

from typing import Any

import torch

from fp8.te import _attached, _region


class _Step:
    """What the weights of a model have in common: the ranks, and the region whose amaxes they have."""

    def __init__(self, group: Any) -> None:
        self.group, self.weights, self.region = group, list[_Gathered](), 0

    def amax(self, weight: "_Gathered") -> float:
        if self.region != _region.outermost:
            parts = torch._foreach_norm([w.part() for w in self.weights], float("inf"))
            amaxes = torch.stack([amax.float() for amax in parts]).cpu()
            torch.distributed.all_reduce(amaxes, torch.distributed.ReduceOp.MAX, self.group)
            for w, found in zip(self.weights, amaxes.tolist()):
                w.amax = found
            self.region = _region.outermost
        return weight.amax


class _Gathered:
    """A weight: what FSDP knows of it (param), and its fp8 state."""

    def __init__(self, param: Any, attached: _attached.Attached, step: _Step) -> None:
        self.param, self.attached, self.step, self.dtype = param, attached, step, param.mp_policy.param_dtype
        self.codes, self.amax, self.plain = False, 0.0, -1
        step.weights.append(self)
        local = param._sharded_local_tensor
        local.fsdp_pre_all_gather, local.fsdp_post_all_gather = self.before, self.after
        param._init_extensions()
        param.all_gather_outputs = []
        param.free_unsharded_param = self.free
        param._module_info.module.register_forward_pre_hook(self.note)

    def part(self) -> torch.Tensor:
        """This rank's, with zeros up to the size of the others'."""
        values = self.param._sharded_param_data.detach().view(self.param.padded_sharded_param_size)
        return values.to(self.dtype) if self.dtype else values

    def version(self) -> int: return int(self.param.sharded_param._version)

    def note(self, *_: Any) -> None:
        """A forward in high precision, whose backward will want values."""
        if torch.is_grad_enabled() and not _region.is_fp8_enabled():
            self.plain = self.version()

    def before(self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> tuple[tuple[torch.Tensor], bool]:
        backward = torch._C._current_graph_task_id() >= 0
        if not backward:
            self.codes = _region.is_fp8_enabled() and self.attached.live
        codes = self.codes and not (backward and self.plain == self.version())
        part = self.part()
        return (self.attached.state.cast_part(part, self.step.amax(self), backward) if codes else part,), codes

    def after(self, outputs: tuple[torch.Tensor], codes: bool, dtype: torch.dtype, *, out: Any = None) -> Any:
        self.param.all_gather_outputs = []  # codes live on in what backward keeps, and the next gather may be one of values
        size = self.param._orig_size
        whole = outputs[0].view(-1)[:size.numel()].view(size)
        if codes:
            self.attached.state.set_gathered(whole)
        if out is None:
            return (torch.empty(size, dtype=dtype, device=whole.device) if codes else whole), []
        if not codes:
            out.untyped_storage().resize_(out.numel() * out.itemsize)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
                out.copy_(whole)

    def free(self) -> None:
        """In the place of FSDPParam's."""
        if self.attached.live:
            self.attached.state.set_gathered(None)
        if hasattr(self.param, "_unsharded_param"):
            self.param._unsharded_param.untyped_storage().resize_(0)


def gather_in_fp8(model: torch.nn.Module) -> list[str]:
    """Weights of converted modules are gathered as fp8 codes from now on, where they were taken by fully_shard(). Products keep their bits.
    Recipes with one scale for a tensor: habana, nvidia, current. Returns the modules' names. Raises ValueError naming a module whose weight
    can't be, RuntimeError in a region of another recipe."""
    from torch.distributed.fsdp import FSDPModule
    groups = [group for m in model.modules() if isinstance(m, FSDPModule) for group in m._get_fsdp_state()._fsdp_param_groups]
    owners = {(id(module), attached.parameter): attached for module, attached in _attached.within(model)}
    found = [(param, attached) for group in groups for param in group.fsdp_params
             if (attached := owners.get((id(param._module_info.module), param._module_info.param_name)))]
    if not found:
        raise ValueError("gather_in_fp8: found no converted module that FSDP2 has: call convert_modules(), then fully_shard(), then this")
    ranks = found[0][0].mesh_info.shard_process_group
    for param, attached in found:
        reasons = {"its class multiplies by itself": not attached.multiplies or attached.transposed, "it is offloaded": param.offload_to_cpu,
                   "several modules share it": bool(param._module_info.shared_modules), "tensor parallel has it too": param.is_dtensor,
                   "it is gathered in fp8 already": hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather"),
                   "its ranks are others than those of the first": param.mesh_info.shard_process_group is not ranks,
                   "reshard_after_forward is a number": param.post_forward_mesh_info not in (None, param.mesh_info)}
        if reason := next((reason for reason, there in reasons.items() if there), ""):
            raise ValueError(f"gather_in_fp8: {attached.name}: {reason}: keep it out of the conversion")
    step = _Step(ranks)
    for param, attached in found:
        _Gathered(param, attached, step)
    return [attached.name for _, attached in found]
