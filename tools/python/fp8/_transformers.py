# SPDX-License-Identifier: Apache-2.0
"""What transformers asks a quantized model for: save_pretrained() and push_to_hub() write the scales and the config, and
from_pretrained() of such a folder onto hpu gives the converted model again."""

import json
import pathlib
import re
import typing

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose, WeightConverter, revert_weight_conversion
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.quantizers import auto
from transformers.quantizers.base import MODULES_TO_PATCH_FOR_QUANTIZATION, HfQuantizer
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.utils.quantization_config import CompressedTensorsConfig, QuantizationConfigMixin

from fp8.parameter import Fp8Parameter


class Fp8HfQuantizer(HfQuantizer):
    """Of a model that fp8.quant.convert() converted. The config is made when the model is saved."""

    requires_calibration = True
    requires_parameters_quantization = False

    def __init__(self) -> None:
        self.quantization_config = _Config({"quant_method": "compressed-tensors"})
        self.pre_quantized = True

    def is_serializable(self, *args: typing.Any, **kwargs: typing.Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    def get_state_dict_and_metadata(self, model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """On the host, with scales, by the names of the checkpoint. Raises RuntimeError naming the module for what the form
        can't hold; nothing is written then."""
        from fp8 import _checkpoint, saving
        tensors, names, types = saving._columns(model)
        written = json.loads(torch.ops.fp8.quantization_config(tensors, names, types, "compressed-tensors", saving._source(model)))
        _check_reader(model, _Config(written))
        check_linears(model, written["ignore"])
        self.quantization_config = model.config.quantization_config = _Config(written)
        state: dict[str, torch.Tensor] = {}
        stored: set[int] = set()
        for name, tensor in zip(names, tensors):
            if id(tensor) in stored:  # tied
                continue
            stored.add(id(tensor))
            state[name] = tensor.detach().cpu()
            if torch.ops.fp8.describe(tensor):
                state |= {key: scale.cpu() for key, scale in saving.scales(name, tensor).items()}
        _Reversed(model)
        return state, {_checkpoint.SCHEME: _checkpoint.shared_scheme(tensors)}


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
    if not isinstance(model, transformers.PreTrainedModel):
        return
    from fp8 import _checkpoint
    written = _checkpoint.once(model, _checkpoint.state_of(model))
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, torch.nn.Linear):
            continue
        entry = next((text for text in ignored if (re.match(text[3:], name) if text.startswith("re:") else text == name)), None)
        converted = isinstance(module._parameters.get("weight"), Fp8Parameter)
        if converted and f"{name}.weight" not in written:
            raise RuntimeError(f"save: {name}: has the codes of another module, whose scale transformers reads for that one alone: convert "
                               "without it (blocklist)")
        if converted == (entry is not None):
            raise RuntimeError(f"save: {name}: is in {'fp8' if converted else 'high precision'}, which the quantization_config can't say: it "
                               f"{f'leaves out {entry!r}' if entry else 'does not leave it out'}; convert without it (blocklist)")


class _Reversed:
    """Stands in the place of a model's conversions for the one time that save_pretrained() asks for them: what it writes has the
    names of the checkpoint already."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._own = model, model.__dict__.get("_weight_conversions", _Reversed)
        model.__dict__["_weight_conversions"] = self

    def restore(self) -> None:
        if self._own is _Reversed:
            del self._model.__dict__["_weight_conversions"]
        else:
            self._model.__dict__["_weight_conversions"] = self._own

    def __getitem__(self, _: slice) -> list[typing.Any]:
        self.restore()
        return []


def reversed_names(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(model, transformers.PreTrainedModel):
        return state
    given = model.__dict__.get("_weight_conversions")
    if isinstance(given, _Reversed):  # of a save that did not come to its end
        given.restore()
    return revert_weight_conversion(model, _one_by_one(model, state))


def _one_by_one(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Llama 4's experts, whose place in a quantized model transformers gives to a list of modules; gate and up are columns."""
    for name, module in model.named_modules():
        if type(module).__name__ not in MODULES_TO_PATCH_FOR_QUANTIZATION:
            continue
        if type(module).__name__ != "Llama4TextExperts":
            raise RuntimeError(f"save: {name}: found class {type(module).__name__}, which transformers {transformers.__version__} changes when it "
                               "loads a quantized model; allowed: Llama4TextExperts")
        both, down = state.pop(f"{name}.gate_up_proj"), state.pop(f"{name}.down_proj")
        for e in range(both.size(0)):
            gate, up = both[e].transpose(0, 1).chunk(2)
            state |= {f"{name}.{e}.{part}_proj.weight": tensor for part, tensor in (("gate", gate), ("up", up), ("down", down[e].transpose(0, 1)))}
    return state


def once(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(model, transformers.PreTrainedModel):
        return state
    ignored = model._keys_to_ignore_on_save or ()
    return remove_tied_weights_from_state_dict({name: tensor for name, tensor in state.items() if name not in ignored}, model)


class _Config(CompressedTensorsConfig):
    """The quantization_config as the library writes it: byte for byte what save() puts into config.json."""

    def __init__(self, written: dict[str, typing.Any]) -> None:
        self.__dict__.update(written)
        self._written = written

    def to_dict(self) -> dict[str, typing.Any]:
        return json.loads(json.dumps(self._written))

    to_diff_dict = to_dict


def install(model: torch.nn.Module) -> None:
    if not isinstance(model, transformers.PreTrainedModel):
        return
    model.hf_quantizer = Fp8HfQuantizer()
    experts = model.get_experts_implementation()
    if {"grouped_mm", "batched_mm"} & set(experts.values()):
        # generate() puts another in the place of "grouped_mm", which copies each token's experts: codes without scales
        model.set_experts_implementation({key: "fp8" if value in ("grouped_mm", "batched_mm") else value for key, value in experts.items()})


ALL_EXPERTS_FUNCTIONS.register("fp8", grouped_mm_experts_forward)


class OnHpu(CompressedTensorsHfQuantizer):
    """Of fp8 checkpoints that go to hpu: their codes and scales stay what they are. transformers' own takes all others."""

    def __init__(self, quantization_config: typing.Any, **kwargs: typing.Any) -> None:
        HfQuantizer.__init__(self, quantization_config, **kwargs)

    def validate_environment(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        devices = kwargs.get("device_map")
        on_hpu = all(_is_hpu(device) for device in (devices.values() if isinstance(devices, dict) else [devices])) and self.pre_quantized
        if not on_hpu or not isinstance(self.quantization_config, _AnyForm) and not _is_fp8(self.quantization_config):
            self.__class__ = CompressedTensorsHfQuantizer  # type: ignore[assignment]
            CompressedTensorsHfQuantizer.__init__(self, self.quantization_config, pre_quantized=self.pre_quantized)
            CompressedTensorsHfQuantizer.validate_environment(self, *args, **kwargs)

    def preprocess_model(self, model: torch.nn.Module, *args: typing.Any, **kwargs: typing.Any) -> None:
        """The weights are read as if their codes were values; their scales are no tensors of the model."""
        if not kwargs.get("checkpoint_files"):
            raise ValueError("from_pretrained: found no files of a checkpoint, whose codes go to hpu with their scales")
        self._folder = pathlib.Path(kwargs["checkpoint_files"][0]).parent
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), r"(_scale(_inv)?|\.scale_(weight|input|inv))$"}

    def get_weight_conversions(self) -> list[typing.Any]:
        return []

    def update_weight_conversions(self, weight_conversions: list[typing.Any], model: torch.nn.Module) -> list[typing.Any]:
        """Llama 4's experts lie one by one in a quantized checkpoint."""
        if not any(type(module).__name__ == "Llama4TextExperts" for module in model.modules()):
            return weight_conversions
        parts = ["experts.*.gate_proj.weight", "experts.*.up_proj.weight"]
        return weight_conversions + [
            WeightConverter(parts, "experts.gate_up_proj", [MergeModulelist(0), Concatenate(1), Transpose(1, 2)]),
            WeightConverter("experts.*.down_proj.weight", "experts.down_proj", [MergeModulelist(0), Transpose(1, 2)])]

    def postprocess_model(self, model: torch.nn.Module, **kwargs: typing.Any) -> None:
        """The codes themselves, with their scales."""
        from fp8 import _checkpoint, saving
        converted, _ = _checkpoint.adopt(model, self._folder)
        if isinstance(self.quantization_config, _AnyForm):
            del model.config.quantization_config
        saving.loaded(model, converted)


def _is_hpu(device: typing.Any) -> bool:
    """Of a device_map, which may say "auto"."""
    try:
        return device is not None and torch.device(device).type == "hpu"
    except (RuntimeError, TypeError):
        return False


def _is_fp8(config: CompressedTensorsConfig) -> bool:
    groups = config.quantization_config.config_groups.values() if config.quantization_config is not None else ()
    weights = [group.weights for group in groups]
    return not config.dequantize and bool(weights) and all(w is not None and w.type == "float" and w.num_bits == 8 for w in weights)


class _AnyForm(QuantizationConfigMixin):
    """Stands in the place of a checkpoint's own quantization_config, of whatever form that is: fp8::load reads it."""

    def __init__(self, quant_method: str = "fp8_hpu") -> None:
        self.quant_method = quant_method  # type: ignore[assignment]


auto.AUTO_QUANTIZER_MAPPING["fp8_hpu"] = OnHpu
auto.AUTO_QUANTIZATION_CONFIG_MAPPING["fp8_hpu"] = _AnyForm


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
    lost = {*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])}
    lost -= {name for name, parameter in model.named_parameters(remove_duplicate=False) if isinstance(parameter, Fp8Parameter)}
    for names, text in ((lost, "has no tensor of the model's '{}'"), (info["unexpected_keys"], "tensor '{}': the model has none of this name")):
        if names:
            raise RuntimeError(f"load: {folder}: {text.format(sorted(names)[0])}")
    return model
