# SPDX-License-Identifier: Apache-2.0
"""What transformers asks a quantized model for: save_pretrained() and push_to_hub() write the scales and the config."""

import json
import pathlib
import typing

import torch
import transformers
from transformers.quantizers import HfQuantizer
from transformers.utils.quantization_config import CompressedTensorsConfig



class Fp8HfQuantizer(HfQuantizer):
    """Of a model that fp8.quant.convert() converted. The config is made when the model is saved."""

    requires_calibration = True
    requires_parameters_quantization = False

    def __init__(self) -> None:
        self.quantization_config = CompressedTensorsConfig()
        self.pre_quantized = True

    def is_serializable(self, *args: typing.Any, **kwargs: typing.Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    def get_state_dict_and_metadata(self, model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """On the host, with scales."""
        from fp8 import saving
        written = json.loads(torch.ops.fp8.quantization_config(*saving._columns(model), "compressed-tensors", saving._source(model)))
        self.quantization_config = model.config.quantization_config = _Config(written)
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, {}


class _Config(CompressedTensorsConfig):
    """The quantization_config as the library writes it: byte for byte what save() puts into config.json."""

    def __init__(self, written: dict[str, typing.Any]) -> None:
        self.__dict__.update(written)
        self._written = written

    def to_dict(self) -> dict[str, typing.Any]:
        return json.loads(json.dumps(self._written))

    to_diff_dict = to_dict


def install(model: torch.nn.Module) -> None:
    if isinstance(model, transformers.PreTrainedModel):
        model.hf_quantizer = Fp8HfQuantizer()


def empty_model(folder: pathlib.Path, **kwargs: typing.Any) -> torch.nn.Module:
    """The class that config.json names, with memory on hpu and no values yet."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    name = (config.architectures or [""])[0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise RuntimeError(f"load: {folder}/config.json: found class '{name}', allowed: those of transformers {transformers.__version__}")
    dtype = kwargs.pop("dtype", getattr(config, "dtype", None) or torch.bfloat16)
    return cls._from_config(config, dtype=dtype, **kwargs).to("hpu").eval()
