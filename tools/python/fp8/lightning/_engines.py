# SPDX-License-Identifier: Apache-2.0
"""Strategies of several processes. Engines are torch's and DeepSpeed's: what stands here is which device and which precision.
Each class stands before one of Lightning's own (__init__.py)."""

import contextlib
import importlib
import inspect
from typing import Any, ContextManager

import torch

from fp8.lightning import _classes


class _Several(_classes.OnHpu):
    """Of several processes, whose messages are Gloo's. Each has a device of its own: FP8_HPU_DEVICES emulates as many."""
    precision_name = "HPUPrecisionPlugin"

    def __init__(self, *args: Any, process_group_backend: str | None = "hccl", **kwargs: Any) -> None:
        if process_group_backend not in ("hccl", "gloo", None):
            raise ValueError(f"{type(self).__name__}: process_group_backend: found {process_group_backend!r}, allowed: 'hccl', 'gloo'")
        super().__init__(*args, process_group_backend=process_group_backend or "hccl", **kwargs)  # type: ignore[call-arg]

    @property
    def parallel_devices(self) -> Any:
        """Devices that are named without an index are taken in their order."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: Any) -> None:
        self._parallel_devices = devices and [torch.device(d.type, i if d.index is None else d.index) for i, d in enumerate(map(torch.device, devices))]

    def setup_environment(self) -> None:
        from fp8 import quant
        if not isinstance(self.accelerator, _classes.Accelerator):  # type: ignore[attr-defined]
            raise AssertionError(f"{type(self).__name__} requires HPUAccelerator. Found {type(self.accelerator).__name__}.")  # type: ignore[attr-defined]
        if quant._CALIBRATION in getattr(self, "lightning_module", torch.nn.Module()).__dict__:
            raise NotImplementedError(f"{type(self).__name__}: found a model that is being measured, allowed: SingleHPUStrategy, or `fp8 measure` "
                                      "on several ranks (a converted model runs on several)")
        self._begin()

    def _begin(self) -> None:
        super().setup_environment()  # type: ignore[misc]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean of integers is a float: Gloo has none of theirs."""
        whole = isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and reduce_op in ("mean", "avg")
        return super().reduce(tensor.float() if whole else tensor, group, reduce_op)  # type: ignore[misc]


class Ddp(_Several):
    """Strategy for several hpus: DistributedDataParallel, which gives each process the mean of all gradients. Arguments are
    DDPStrategy's, those of DistributedDataParallel too."""
    strategy_name = "hpu_ddp"

    def determine_ddp_device_ids(self) -> None:
        """The model is on its device already."""


class Fsdp(_Several):
    """Strategy for several hpus: FullyShardedDataParallel. Arguments are FSDPStrategy's."""
    strategy_name = "hpu_fsdp"
    precision_name = "HPUFSDPPrecision"

    def _determine_device_ids(self) -> None: """Gloo's barrier takes none."""


class DeepSpeed(_Several):
    """Strategy for several hpus: DeepSpeed. Arguments are DeepSpeedStrategy's, and those of deepspeed.init_inference (here or in `config`), with
    which test, validate and predict split the model."""
    strategy_name = "hpu_deepspeed"
    precision_name = "HPUDeepSpeedPrecisionPlugin"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        importlib.import_module("fp8.deepspeed")
        own = inspect.signature(importlib.import_module(f"{self.package}.strategies").DeepSpeedStrategy).parameters
        self._inference = {key: kwargs.pop(key) for key in _inference_keys() & {*kwargs} - {*own}}
        super().__init__(*args, **kwargs)

    def _begin(self) -> None:
        """Not DeepSpeedStrategy's, which asks for CUDA."""
        importlib.import_module(f"{self.package}.strategies").DDPStrategy.setup_environment(self)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model.to(self.root_device)  # type: ignore[attr-defined]

    def _initialize_deepspeed_train(self, model: torch.nn.Module) -> None:
        """What configure_optimizers() gives is used, and what it does not give is the file's."""
        overridden = importlib.import_module(f"{self.package}.utilities.model_helpers").is_overridden
        if overridden("configure_optimizers", self.lightning_module):  # type: ignore[attr-defined]
            self.config.pop("optimizer", None)  # type: ignore[attr-defined]
        super()._initialize_deepspeed_train(model)  # type: ignore[misc]

    def _init_optimizers(self) -> Any:
        optimizer, scheduler = super()._init_optimizers()  # type: ignore[misc]
        if scheduler is not None:
            self.config.pop("scheduler", None)  # type: ignore[attr-defined]
        return optimizer, scheduler

    def _initialize_deepspeed_inference(self, model: torch.nn.Module) -> None:
        """DeepSpeedStrategy takes all hooks off; those of fp8 go on again."""
        from fp8.te import _attached
        config = self.config  # type: ignore[attr-defined]
        if asked := {**{key: config[key] for key in _inference_keys() & {*config}}, **self._inference}:
            self.model = importlib.import_module("deepspeed").init_inference(model, **asked)
            self.precision_plugin._desired_dtype = asked.get("dtype", torch.float16)  # type: ignore[attr-defined]  # of inputs, as of the model
        else:
            super()._initialize_deepspeed_inference(model)  # type: ignore[misc]
        for module, attached in _attached.within(model):
            attached.hook(module)


def _inference_keys() -> set[str]:
    fields = importlib.import_module("deepspeed.inference.config").DeepSpeedInferenceConfig.model_fields
    return {*fields, *(field.alias for field in fields.values() if field.alias)}


class FsdpPrecision(_classes.Precision):
    """Precision of HPUFSDPStrategy: parameters and messages stay f32. "32-true", "bf16-mixed", "fp8"."""
    allowed = ("32-true", "bf16-mixed", "fp8")
    mixed_precision_config = None
    def convert_input(self, data: Any) -> Any: return data
    def convert_output(self, data: Any) -> Any: return data
    def tensor_init_context(self) -> ContextManager[None]: return contextlib.nullcontext()
    module_init_context = tensor_init_context


class DeepSpeedPrecision(_classes.Precision):
    """Precision of HPUDeepSpeedStrategy. "bf16-mixed" and "16-mixed" are DeepSpeed's own (bf16, fp16), with master weights in f32."""

    def __init__(self, precision: int | str = "32-true", device: str = "hpu") -> None:
        super().__init__(precision, device)
        self.scaler, self._desired_dtype = None, torch.float32 if self.precision == "fp8" else self._desired_input_dtype

    def forward_context(self) -> ContextManager[None]:
        return super().forward_context() if self.precision == "fp8" else contextlib.nullcontext()

    def convert_input(self, data: Any) -> Any:
        return torch.utils._pytree.tree_map(
            lambda found: found.to(self._desired_dtype) if isinstance(found, torch.Tensor) and found.is_floating_point() else found, data)

    def tensor_init_context(self) -> ContextManager[None]: return contextlib.nullcontext()
    module_init_context = tensor_init_context
