# SPDX-License-Identifier: Apache-2.0
"""What transformers asks a quantized model for: save_pretrained() and push_to_hub() write the scales and the config, and
from_pretrained() of such a folder onto hpu gives the converted model again."""

import copy
import json
import pathlib
import typing
import warnings

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose, WeightConverter, revert_weight_conversion
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.quantizers import auto
from transformers.quantizers.base import MODULES_TO_PATCH_FOR_QUANTIZATION, HfQuantizer
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.utils.quantization_config import CompressedTensorsConfig

from fp8 import quant, saving
from fp8.parameter import Fp8Parameter


def _check_reader(model: torch.nn.Module, config: CompressedTensorsConfig) -> None:
    """transformers refuses whole families in this form, whatever the file holds: then none is written."""
    reader = CompressedTensorsHfQuantizer.__new__(CompressedTensorsHfQuantizer)
    reader.quantization_config, reader.pre_quantized, reader.use_fp8_kernel = config, True, False
    try:
        get_model_conversion_mapping(model, None, reader)
    except ValueError as error:
        raise RuntimeError(f"save: {type(model).__name__}: transformers {transformers.__version__} can't read this family in fp8: {error}") from None


def check_linears(model: torch.nn.Module, ignored: typing.Sequence[str]) -> None:
    """The reader makes a Linear with a scale of each that the config does not leave out: they are those with codes."""
    linears = {name: module for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, torch.nn.Linear)}
    in_fp8 = [name for name, module in linears.items() if isinstance(module._parameters.get("weight"), Fp8Parameter)]
    torch.ops.fp8.require_linears(ignored, list(linears), in_fp8, list(saving.once(model, saving.state_of(model))))


def write_config(model: torch.nn.Module, folder: pathlib.Path) -> None:
    """Of a model that came from no folder: its own config beside the quantization_config that lies there."""
    path = folder / "config.json"
    own = {"architectures": [type(model).__name__], "dtype": str(model.dtype).removeprefix("torch.")}
    keys = {**json.loads(model.config.to_json_string()), **own, **json.loads(path.read_text(encoding="utf-8"))}
    path.write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


class _Instead:
    """Stands in the place of a model's conversions for the one time that transformers asks for them."""

    def __init__(self, model: torch.nn.Module, conversions: typing.Sequence[typing.Any]) -> None:
        self._model, self._own, self._conversions = model, model.__dict__.get("_weight_conversions"), conversions
        model.__dict__["_weight_conversions"] = self

    def restore(self) -> None:
        self._model.__dict__["_weight_conversions"] = self._own  # None is as if it had none

    def __getitem__(self, which: slice) -> typing.Any:
        self.restore()
        return self._conversions[which]


def reversed_names(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    given = model.__dict__.get("_weight_conversions")
    if isinstance(given, _Instead):  # of a save that did not come to its end
        given.restore()
    if experts := _of_llama4(model):
        _Instead(model, experts)
        state = revert_weight_conversion(model, state)
    return revert_weight_conversion(model, state)


def _of_llama4(model: torch.nn.Module) -> list[WeightConverter]:
    """transformers gives the place of its experts in a quantized model to a list of modules: they lie one by one there."""
    if not any(type(module).__name__ in MODULES_TO_PATCH_FOR_QUANTIZATION for module in model.modules()):
        return []
    parts = ["experts.*.gate_proj.weight", "experts.*.up_proj.weight"]
    return [WeightConverter(parts, "experts.gate_up_proj", [MergeModulelist(0), Concatenate(1), Transpose(1, 2)]),
            WeightConverter("experts.*.down_proj.weight", "experts.down_proj", [MergeModulelist(0), Transpose(1, 2)])]


def once(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ignored = model._keys_to_ignore_on_save or ()
    return remove_tied_weights_from_state_dict({name: tensor for name, tensor in state.items() if name not in ignored}, model)


class _Config(CompressedTensorsConfig):
    """The quantization_config as the library writes it: byte for byte what save() puts into config.json. With a quant_method
    alone, "fp8_hpu", it stands in the place of a checkpoint's own, of whatever form that is: fp8::load reads it."""

    def __init__(self, **written: typing.Any) -> None:
        self.__dict__.update(written, _written=written)

    def to_dict(self) -> dict[str, typing.Any]:
        return copy.deepcopy(self._written)

    to_diff_dict = to_dict


def install(model: torch.nn.Module) -> None:
    model.hf_quantizer = OnHpu(_Config(quant_method="compressed-tensors"))  # the config is made when the model is saved
    experts = model.get_experts_implementation()
    if {"grouped_mm", "batched_mm"} & set(experts.values()):
        # generate() puts another in the place of "grouped_mm", which copies each token's experts: codes without scales
        model.set_experts_implementation({key: "fp8" if value in ("grouped_mm", "batched_mm") else value for key, value in experts.items()})


ALL_EXPERTS_FUNCTIONS.register("fp8", grouped_mm_experts_forward)


class _AsValues(CompressedTensorsHfQuantizer):
    """transformers' own, which makes values of codes at the first forward: on hpu with a warning."""

    def postprocess_model(self, model: torch.nn.Module, **kwargs: typing.Any) -> typing.Any:
        found = super().postprocess_model(model, **kwargs)
        if _is_fp8(self.quantization_config):
            model.register_forward_pre_hook(_warn_of_values)
        return found


def _warn_of_values(model: torch.nn.Module, args: typing.Any) -> None:
    del args
    if next(model.parameters()).device.type == "hpu":
        for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _warn_of_values]:
            del model._forward_pre_hooks[key]
        warnings.warn(f"{type(model).__name__}: loaded on another device, its fp8 weights become values on hpu: "
                      "from_pretrained(..., device_map=\"hpu\") keeps codes and scales", stacklevel=2)


class OnHpu(CompressedTensorsHfQuantizer):
    """Of models that fp8.quant.convert() converted, and of fp8 checkpoints that go to hpu: their codes and scales stay what they
    are. transformers' own takes all others."""

    def __init__(self, quantization_config: typing.Any, **kwargs: typing.Any) -> None:
        HfQuantizer.__init__(self, quantization_config, **kwargs)
        self.use_fp8_kernel = True  # of inference only

    def validate_environment(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        devices = kwargs.get("device_map")
        places = devices.values() if isinstance(devices, dict) else [devices]  # numbers are devices, "auto" is none
        on_hpu = self.pre_quantized and all(str(torch.device(p) if isinstance(p, int) else p).partition(":")[0] == "hpu" for p in places)
        if not on_hpu or not isinstance(self.quantization_config, _Config) and not _is_fp8(self.quantization_config):
            self.__class__ = _AsValues  # type: ignore[assignment]
            CompressedTensorsHfQuantizer.__init__(self, self.quantization_config, pre_quantized=self.pre_quantized)
            CompressedTensorsHfQuantizer.validate_environment(self, *args, **kwargs)

    def preprocess_model(self, model: torch.nn.Module, *args: typing.Any, **kwargs: typing.Any) -> None:
        """The weights are read as if their codes were values; their scales are no tensors of the model."""
        self._folder = pathlib.Path(kwargs["checkpoint_files"][0]).parent
        ours = r"(_scale(_inv)?|\.scale_(weight|input|inv)|\.(de)?quant_\w+\.(scale|scale_inv|zero_point))$"
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), ours}

    def update_weight_conversions(self, weight_conversions: list[typing.Any], model: torch.nn.Module) -> list[typing.Any]:
        return weight_conversions + _of_llama4(model)

    def get_state_dict_and_metadata(self, model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """On the host, with scales, by the names of the checkpoint. Raises RuntimeError naming the module for what the form
        can't hold; nothing is written then."""
        tensors, names, types = saving.written(model)
        text, beside = torch.ops.fp8.quantization_config(tensors, names, types, "compressed-tensors", saving._source(model))
        written = json.loads(text)
        _check_reader(model, _Config(**written))
        check_linears(model, written["ignore"])
        self.quantization_config = model.config.quantization_config = _Config(**written)
        first = dict(zip(map(id, reversed(tensors)), reversed(names)))  # tied ones stand there once more
        stored = {name: tensor for name, tensor in zip(names, tensors) if first[id(tensor)] == name}
        state = {name: tensor.detach().cpu() for name, tensor in stored.items()}
        for name, tensor in stored.items():
            if torch.ops.fp8.describe(tensor):
                state |= {key: scale.cpu() for key, scale in saving.scales(name, tensor).items()}
        _Instead(model, ())  # what it writes has the names of the checkpoint already
        return state, {"fp8.json": beside}

    def postprocess_model(self, model: torch.nn.Module, **kwargs: typing.Any) -> None:
        """The codes themselves, with their scales."""
        saving.adopt(model, self._folder)
        if isinstance(self.quantization_config, _Config):
            del model.config.quantization_config
        quant._loaded(model)


def _is_fp8(config: CompressedTensorsConfig) -> bool:
    weights = [group.weights for group in (config.quantization_config.config_groups.values() if config.quantization_config is not None else ())]
    return not config.dequantize and bool(weights) and all(w is not None and w.type == "float" and w.num_bits == 8 for w in weights)


auto.AUTO_QUANTIZER_MAPPING["fp8_hpu"] = OnHpu
auto.AUTO_QUANTIZATION_CONFIG_MAPPING["fp8_hpu"] = _Config


def load(folder: pathlib.Path, **kwargs: typing.Any) -> torch.nn.Module:
    """The class that config.json names, on hpu."""
    config = transformers.AutoConfig.from_pretrained(folder)
    name = (config.architectures or [""])[0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise RuntimeError(f"load: {folder}/config.json: found class '{name}', allowed: those of transformers {transformers.__version__}")
    config.quantization_config = {"quant_method": "fp8_hpu"}
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # INC's form has codes of other sizes: what is not in place is looked for below
    try:
        model, info = cls.from_pretrained(folder, config=config, device_map="hpu", ignore_mismatched_sizes=True, output_loading_info=True, **kwargs)
    finally:
        transformers.logging.set_verbosity(verbosity)
    in_fp8 = {name for name, parameter in model.named_parameters(remove_duplicate=False) if isinstance(parameter, Fp8Parameter)}
    lost = {*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])} - in_fp8
    for names, text in ((lost, "has no tensor of the model's '{}'"), (info["unexpected_keys"], "tensor '{}': the model has none of this name")):
        if names:
            raise RuntimeError(f"load: {folder}: {text.format(sorted(names)[0])}")
    return model
