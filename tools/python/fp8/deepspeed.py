# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on hpu. It is DeepSpeed's own (pip install deepspeed); importing this module, before deepspeed itself, gives it the device.

Models that train in fp8 are converted before deepspeed.initialize(), for stages 0 to 2 also after it. tools/pages/several_machines.md has
an example."""

import importlib
import math
import sys
import types
import typing

import torch

from fp8 import _library

_library.require()


class _FusedAdam:
    """The kernel that DeepSpeed's FusedAdam asks its builder for."""

    @staticmethod
    def multi_tensor_adam(_chunk: int, _overflow: torch.Tensor, lists: typing.Sequence[list[torch.Tensor]], lr: float, beta1: float, beta2: float,
                          eps: float, step: int, adam_w_mode: int, bias_correction: int, weight_decay: float, *_: typing.Any) -> None:
        """lists: gradients, parameters, first and second moments. Raises ValueError for weight_decay as a part of the gradient."""
        if weight_decay and not adam_w_mode:
            raise ValueError(f"FusedAdam: adam_w_mode: found False with weight_decay {weight_decay}, allowed: True, or weight_decay 0")
        torch.ops.fp8.adamw_step(*lists, [step] * len(lists[0]), lr, beta1, beta2, eps, weight_decay, bool(bias_correction), True)


class _Quantizer:
    """What ZeRO-3 sends with zero_quantized_weights: E4M3 codes in the place of int8, and a scale for each group of values. Products cast
    the decoded weight again."""
    Symmetric = 0

    @staticmethod
    def quantize(values: torch.Tensor, groups: int, *_: typing.Any) -> typing.Any: return torch.ops.fp8.cast_groups(values, groups)

    @staticmethod
    def dequantize(codes: torch.Tensor, scales: torch.Tensor, *_: typing.Any) -> typing.Any: return torch.ops.fp8.decode_groups(codes, scales)


def that_add(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The LinearAllreduces of a model that is split over ranks: each adds what its ranks give."""
    return [(name, module) for name, module in model.named_modules() if type(module).__name__ == "LinearAllreduce" and module.mp_group is not None]


def _add_by(module: torch.nn.Module, add: typing.Callable[[torch.Tensor], torch.Tensor], takes: typing.Callable[[torch.Tensor], bool]) -> None:
    """add: what this rank gives -> the sum of all ranks'; of inputs that it takes, of others it is as without."""
    whole = module.forward

    def forward(input: torch.Tensor) -> typing.Any:
        if not takes(input):
            return whole(input)
        y = add(torch.matmul(input, module.weight.transpose(-1, -2)))
        return y if module.bias is None else y + module.bias
    module.forward = forward  # type: ignore[method-assign]


def measure_reduced(module: torch.nn.Module) -> typing.Any:
    """A calibration sees the sum, too, until remove() of what is returned."""
    def add(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        torch.distributed.all_reduce(y, group=module.mp_group)
        torch.ops.fp8.measure_reduced(module.weight, y)
        return y
    _add_by(module, add, lambda _: True)
    return types.SimpleNamespace(remove=lambda: module.__dict__.pop("forward", None))


def reduce_in_fp8(module: torch.nn.Module, scale_inv: typing.Optional[list[float]]) -> None:
    """Ranks add what they have of one token as fp8 codes; of more tokens as they do without. scale_inv: of what this rank adds, and of the
    sum; the largest of all ranks is taken. None, on one of them: each message has its own."""
    largest = torch.tensor(scale_inv or [math.inf, math.inf])
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, module.mp_group)
    given = largest.tolist() if largest.isfinite().all() else None
    _add_by(module, lambda y: torch.ops.fp8.all_reduce(y, module.mp_group.group_name, given), lambda x: x.dim() > 2 and x.shape[1] == 1)


_OURS = {"FusedAdamBuilder": _FusedAdam, "QuantizerBuilder": _Quantizer}


class _OnHpu:
    """hpu for DeepSpeed. Operators of the host (CPU Adam, AsyncIO) are DeepSpeed's, which compiles them; FusedAdam is the runtime's."""

    def __init__(self) -> None:
        """Not the base's, which looks for Habana's package."""
        self._name, self._communication_backend_name, self._compile_backend = "hpu", "hccl", "fp8"
        self.hpu, self.fp16_supported = torch.hpu, torch.hpu.get_device_name() != "GAUDI"

    # Operators have computed when they return, but in lazy mode, where whoever reads waits.
    def is_synchronized_device(self) -> bool: return True
    def use_host_timers(self) -> bool: return True
    def on_accelerator(self, tensor: torch.Tensor) -> bool: return tensor.device.type == "hpu"
    def op_builder_dir(self) -> str: return "deepspeed.ops.op_builder.cpu"
    def default_generator(self, device_index: int) -> torch.Generator: return torch.default_generator
    def visible_devices_envs(self) -> list[str]: return []

    def set_device(self, device_index: int) -> None:
        """What an engine begins with."""
        _commit_together()
        _share_within_stages()
        super().set_device(device_index)  # type: ignore[misc]

    @property
    def Event(self) -> typing.Any: return torch.hpu.Event  # noqa: N802: DeepSpeed's name

    def get_op_builder(self, class_name: str) -> typing.Any:
        # Its operator inference_all_reduce_ reads memory that processes of the CPU share, which tensors on hpu are not in.
        found = super().get_op_builder("NotImplementedBuilder" if class_name == "ShareMemCommBuilder" else class_name)  # type: ignore[misc]
        return type(class_name, (found,), {"load": lambda *_: _OURS[class_name]}) if class_name in _OURS else found

    def create_op_builder(self, class_name: str) -> typing.Any: return self.get_op_builder(class_name)()

    # DeepSpeed asks for memory that is pinned, and the host's is the device's: any is.
    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor: return tensor
    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool: return tensor.device.type == "cpu"


def _commit_together() -> None:
    """DeepSpeed's rank 0 calls a checkpoint the latest as soon as its own part is written. It waits for all parts, so that a rank that is
    killed meanwhile leaves the one before."""
    engine = importlib.import_module("deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine").TorchCheckpointEngine

    def commit(self: typing.Any, info: typing.Any) -> bool:
        torch.distributed.barrier()
        return True
    engine.commit = commit


def _share_within_stages() -> None:
    """Ranks of a group of fp8_autocast share their amaxes module by module, and those of another stage have other modules."""
    from fp8.te import _region
    engine = importlib.import_module("deepspeed.runtime.pipe.engine").PipelineEngine
    given = engine._exec_schedule

    def run(self: typing.Any, schedule: typing.Any) -> typing.Any:
        if name := _region.group():
            ranks = torch.distributed.get_process_group_ranks(torch.distributed.distributed_c10d._resolve_process_group(name))
            if not {*ranks} <= {*self.grid.dp_group}:
                raise RuntimeError(f"fp8_autocast: fp8_group: found ranks {ranks}, allowed for a pipeline: those of one stage "
                                   f"({self.grid.dp_group}), engine.grid.get_data_parallel_group()")
        return given(self, schedule)
    if given.__module__ != __name__:
        engine._exec_schedule = run


def know(real: typing.Any) -> None:
    """real: deepspeed.accelerator.real_accelerator, which runs before DeepSpeed asks for the device."""
    global HPUAccelerator
    base = importlib.import_module("deepspeed.accelerator.hpu_accelerator").HPU_Accelerator
    HPUAccelerator = type("HPUAccelerator", (_OnHpu, base), {"__doc__": _OnHpu.__doc__, "__module__": __name__})
    real.ds_accelerator = HPUAccelerator()


HPUAccelerator: typing.Any = None
importlib.import_module("deepspeed")
_found = sys.modules["deepspeed.accelerator.real_accelerator"].ds_accelerator
if HPUAccelerator is None and _found is not None:
    raise ImportError(f"fp8.deepspeed: found deepspeed on {_found._name}, expected `import fp8.deepspeed` before `import deepspeed`")
if HPUAccelerator is None:  # nobody has asked for the device yet
    know(sys.modules["deepspeed.accelerator.real_accelerator"])
