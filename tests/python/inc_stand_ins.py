# SPDX-License-Identifier: Apache-2.0
"""What the tests of Intel Neural Compressor import of it and of Habana's package, over fp8.quant, fp8.nn and torch.hpu.

They are thin: a call is handed on. What a test expects of INC beyond that is put in front here:
- a model goes to hpu, and its modules of the classes Matmul, Softmax, ... become those of fp8.nn, as INC goes by the name of a class;
- a module that is measured or in fp8 says so in INC's way (`PatchedLinear`);
- errors of ours keep their type and text, behind the words that INC's errors begin with.
What has no counterpart is a name of INC's internals: to use it raises NotImplementedError."""

import contextlib
import enum
import importlib.abc
import importlib.machinery
import json
import pathlib
import re
import sys
import types

import torch
import transformers

import fp8

DEMO = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_data" / "kjv-byte-1.7M"
ROOTS = ("neural_compressor", "habana_frameworks", "deepspeed")
NC, QUANT = "neural_compressor.torch.", "neural_compressor.torch.algorithms.fp8_quant."
_names: dict[str, dict[str, object]] = {}


def provide(module, **names):
    _names.setdefault(module, {}).update(names)


def internal(name):
    def refuse(*_, **__):
        raise NotImplementedError(f"no stand-in for {name}")
    return type(name, (), {"__init__": refuse})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any module below ROOTS: its names are those of provide(), and for others internal()."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in ROOTS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module):
        module.__dict__.update(_names.get(module.__name__, {}))

        def missing(name):
            if name.startswith("_"):
                raise AttributeError(name)
            return internal(name)
        module.__dict__.setdefault("__getattr__", missing)


def install(source):
    global CONFIGS
    CONFIGS = pathlib.Path(source) / "neural_compressor/torch/algorithms/fp8_quant/custom_config"
    sys.meta_path.insert(0, Finder())


# --- words of a QUANT_CONFIG
QuantMode = enum.Enum("QuantMode", "NONE QUANTIZE MEASURE SHAPE LOAD")
ScaleFormat = enum.Enum("ScaleFormat", "CONST SCALAR")
ScaleGranularity = enum.Enum("ScaleGranularity", "PTS PCS")
ScaleValueType = enum.Enum("ScaleValueType", "MAXABS FIXED_VALUE OPT DUMMY_SCALES")
ScaleRoundMethod = enum.Enum("ScaleRoundMethod", "IDENTITY POW2 HW_ALIGNED HW_ALIGNED_FIXED SCALE_UNIT")
Accelerator = enum.Enum("INCAcceleratorType", "GAUDI2 GAUDI3")
DeviceType = enum.Enum("synDeviceType", "synDeviceGaudi2 synDeviceGaudi3")
CfgStr = enum.Enum("CfgStr", {"WEIGHT": "weight", "ACTIVATION": "activation", "LAYERS_SLASH_PATTERN": r"layers/(\d+)"})

# Method: granularity, value and rounding of weights, then of activations (tools/pages/quant_config.md).
METHODS = {
    "UNIT_SCALE": "PTS FIXED_VALUE SCALE_UNIT PTS FIXED_VALUE SCALE_UNIT",
    "HW_ALIGNED_SINGLE_SCALE": "PTS FIXED_VALUE HW_ALIGNED_FIXED PTS FIXED_VALUE HW_ALIGNED_FIXED",
    "MAXABS_HW": "PTS MAXABS HW_ALIGNED PTS MAXABS HW_ALIGNED",
    "MAXABS_POW2": "PTS MAXABS POW2 PTS MAXABS POW2",
    "MAXABS_ARBITRARY": "PTS MAXABS IDENTITY PTS MAXABS IDENTITY",
    "MAXABS_HW_OPT_WEIGHT": "PTS OPT HW_ALIGNED PTS MAXABS HW_ALIGNED",
    "MAXABS_POW2_OPT_WEIGHT": "PTS OPT POW2 PTS MAXABS POW2",
    "ACT_MAXABS_HW_WEIGHTS_PCS_MAXABS_POW2": "PCS MAXABS POW2 PTS MAXABS HW_ALIGNED",
    "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2": "PCS MAXABS POW2 PTS MAXABS POW2",
    "ACT_MAXABS_HW_WEIGHTS_PCS_OPT_POW2": "PCS OPT POW2 PTS MAXABS HW_ALIGNED",
    "ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2": "PCS OPT POW2 PTS MAXABS POW2",
    "ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW": "PTS MAXABS HW_ALIGNED PCS MAXABS POW2",
    "MAXABS_PCS_POW2": "PCS MAXABS POW2 PCS MAXABS POW2",
}
ScaleMethodString = enum.Enum("ScaleMethodString", list(METHODS))
DYNAMIC_METHODS = [ScaleMethodString.ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW, ScaleMethodString.MAXABS_PCS_POW2]


class ScaleMethodConfig(types.SimpleNamespace):
    """granularity, scale_value_type, rounding_method"""

    @classmethod
    def of(cls, words):
        granularity, value, rounding = (str(word).upper() for word in words)
        return cls(granularity=ScaleGranularity[granularity], scale_value_type=ScaleValueType[value], rounding_method=ScaleRoundMethod[rounding])


MAPPING = {method: {part: ScaleMethodConfig.of(METHODS[method.name].split()[at:at + 3]) for part, at in ((CfgStr.WEIGHT, 0), (CfgStr.ACTIVATION, 3))}
           for method in ScaleMethodString}


def method_of(pair):
    return next((method for method, known in MAPPING.items() if known == pair), None)


def dumped_methods(path):
    """What SCALE_METHOD_CONFIG_DUMP_PATH has."""
    keys = ("granularity", "scale_value_type", "rounding_method")
    said = json.loads(pathlib.Path(path).read_text())
    return {name: {part: ScaleMethodConfig.of(pair[part.name][key] for key in keys) for part in (CfgStr.WEIGHT, CfgStr.ACTIVATION)}
            for name, pair in said.items()}


# --- errors
@contextlib.contextmanager
def in_incs_words():
    try:
        yield
    except ValueError as error:
        keys = [key for key in ("scale_method", "device_for_scales", "dynamic_quantization") if key in str(error)]
        method = next((name for name in re.findall(r"\w+", str(error).upper()) if name in METHODS), "")
        words = f"Unsupported config: scale_method {method}, Unsupported config: device_for_scales=, Unsupported config: scale method config for: "
        raise ValueError(f"{words if keys else ''}{error}") from None
    except FileNotFoundError as error:
        raise FileNotFoundError(f"Failed to load file {error}") from None


# --- fp8.quant
class FP8Config(fp8.quant.FP8Config):
    def __init__(self, **keys):
        with in_incs_words():
            super().__init__(**keys)

    @classmethod
    def from_json_file(cls, filename):
        with in_incs_words():
            return super().from_json_file(filename)


class Patched(type):
    """The class of a module that is measured or in fp8, for isinstance()."""

    def __instancecheck__(cls, module):
        return getattr(module, "_get_name", str)() == cls.__name__


OPERATIONS = {name: getattr(fp8.nn, name) for name in ("Matmul", "Softmax", "KVCache", "VLLMKVCache", "ModuleFusedSDPA")}
PATCHED = {kind: Patched(f"Patched{kind}", (), {}) for kind in ("Linear", "Conv2d", "Matmul", "Softmax", "KVCache", "VLLMKVCache", "ModuleFusedSDPA")}
STATIC_ONLY = ("Conv2d", "Softmax", "KVCache", "ModuleFusedSDPA")


def on_hpu(model):
    """There, and with fp8.nn's modules."""
    for name, module in list(model.named_modules()):
        kind = OPERATIONS.get(type(module).__name__)
        if name and kind is not None and not isinstance(module, kind):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, kind())
    return model.to("hpu")


def say_patched(model, config, names=None):
    """names: of those in fp8, default all that can be measured. Whose config it is too: get_hqt_config() is asked for it."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in PATCHED and (names is None or name in names):
            module.__dict__["_get_name"] = lambda kind=kind: f"Patched{kind}"
    model.__dict__["_inc_config"] = config
    return model


def prepare(model, quant_config=None):
    with in_incs_words():
        return say_patched(fp8.quant.prepare(on_hpu(model), quant_config), quant_config)


def convert(model, quant_config=None):
    with in_incs_words():
        fp8.quant.convert(on_hpu(model), quant_config)
    report = model.__dict__.get("_fp8_report")
    return say_patched(model, quant_config or model.__dict__.get("_inc_config"), {m.name for m in report.converted} if report else set())


def finish(model):
    if model.__dict__.get("_fp8_calibration") is not None:
        fp8.quant.finalize_calibration(model)


class Fp8cfg:
    def __init__(self, config):
        self.config, self.cfg = config, config.to_dict()
        device = str(self.cfg.get("device_for_scales") or torch.hpu.get_device_name())
        self.cfg["device_for_scales"] = Accelerator[device.upper()]

    @classmethod
    def parse(cls, keys):
        return cls(FP8Config.from_dict(keys))


def with_config(model, config):
    (convert if config.config.mode in ("QUANTIZE", "LOAD") else prepare)(model, config.config)


def should_quantize(config, kind, name):
    return not (str(config.to_dict().get("dynamic_quantization")).lower() == "true" and kind in STATIC_ONLY)


def save(model, checkpoint_dir="saved_results", format="default"):  # noqa: A002
    fp8.quant.save(model, checkpoint_dir, format="huggingface" if format == "default" else format, overwrite=True)


def load(model_name_or_path, format="default", device="hpu", **kwargs):  # noqa: A002
    model = fp8.quant.load(model_name_or_path, format=format, device=device, **kwargs)
    for module in model.modules():  # INC loads tables of angles in the dtype of the model
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(torch.bfloat16))
    return model


def register_patched_module(supported_float_module_types, device_types="hpu"):
    def decorate(patched):
        found = supported_float_module_types if isinstance(supported_float_module_types, list) else [supported_float_module_types]
        for cls in found:
            fp8.quant.register(cls)
        return patched
    return decorate


def registered(device_type="hpu"):
    from fp8 import _modules
    return {cls.__name__ for cls in _modules._registered} | set(_modules.types())


def identity(*_, **__):
    return lambda given: given


def used_mb():
    return torch.hpu.memory_allocated() / 2**20


class QuantizedHpuMatmul:
    def __init__(self, scale_format):
        del scale_format

    def __call__(self, input, other, out_dtype, scale_input_inv, scale_other_inv):  # noqa: A002
        return torch.ops.hpu.fp8_gemm_v2.scalar(input, False, other, False, None, out_dtype, scale_input_inv, scale_other_inv, None, False)


def this_device():
    return DeviceType[f"synDeviceGaudi{torch.hpu.get_device_name()[-1]}"]


# --- models of the hub, which is not asked: small ones of the same families
HUB = {"stas/tiny-random-llama-2": transformers.LlamaForCausalLM, "Qwen/Qwen2-0.5B-Instruct": transformers.Qwen2ForCausalLM}


def from_hub(cls, name, *args, plain, **kwargs):
    if name not in HUB:
        return plain(name, *args, **kwargs)
    if cls is transformers.AutoTokenizer:
        return plain(DEMO)
    made = HUB[name]
    config = made.config_class(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2,
                               vocab_size=16384)
    return made(config).to(kwargs.get("torch_dtype") or torch.float32).eval()


for _cls in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
    _cls.from_pretrained = classmethod(lambda cls, *args, plain=_cls.from_pretrained, **kwargs: from_hub(cls, *args, plain=plain, **kwargs))

METHOD_NAMES = {"ScaleMethodString": ScaleMethodString, "SUPPORTED_DYNAMIC_QUANTIZATION_SCALES": DYNAMIC_METHODS}
NOTHING = """hpu_set_env hpu_initialize hpu_inference_initialize hpu_inference_set_env hpu_set_inference_env hpu_teardown_inference_env
    mark_step""".split()

provide(NC + "quantization", FP8Config=FP8Config, prepare=prepare, convert=convert, finalize_calibration=fp8.quant.finalize_calibration,
        save=save, load=load, get_default_fp8_config=FP8Config)
provide(NC + "utils", get_used_hpu_mem_MB=used_mb, is_hpu_available=lambda: True)
provide(NC + "utils.block_wise", block_wise_calibration=lambda model, data: model(data.to("hpu")),
        cur_accelerator=types.SimpleNamespace(synchronize=lambda: None))
provide(NC + "utils.auto_accelerator", INCAcceleratorType=Accelerator,
        auto_detect_accelerator=lambda: types.SimpleNamespace(get_inc_accelerator_type=lambda: Accelerator[torch.hpu.get_device_name()]))
provide(NC + "algorithms.fp8_quant", finish_measurements=finish, register_patched_module=register_patched_module, register_observer=identity,
        register_scaling_methods=identity, ObserverBase=object, PatchedModuleBase=torch.nn.Module, ScalingMethodBase=object,
        prep_model=lambda model, config_path: with_config(model, Fp8cfg(FP8Config.from_json_file(CONFIGS / config_path))))
provide(QUANT + "prepare_quant.prepare_model", finish_measurements=finish, get_local_rank=lambda: 0, get_world_size=lambda: 0,
        _prep_model_with_predefined_config=lambda model, config: with_config(model, config))
provide(QUANT + "model_configs", get_patched_module_table=registered, OBSERVER_TYPES={}, OBSERVER_PARAMS={}, PATCHED_MODULE_TABLE={})
provide(QUANT + "observer", register_module_config_for_observer=identity)
provide(QUANT + "save_load", process_model_for_scalar_scale=lambda model: model)
provide(QUANT + "_core.patching_common", mod_default_dict={kind: types.SimpleNamespace(patched_module=cls) for kind, cls in PATCHED.items()})
provide(QUANT + "_core.utils", should_quantize=should_quantize, is_re_match=lambda names, target: any(re.search(name, target) for name in names))
provide(QUANT + "_core.common", set_runtime_state=types.SimpleNamespace(cache_clear=lambda: None))
provide(QUANT + "_core.fp_utils", FP8_143_SCALES={
    Accelerator.GAUDI2: [16.0, 1.0, 2.0**-4, 2.0**-8], Accelerator.GAUDI3: [2.0**exponent for exponent in range(7, -56, -1)]})
provide(QUANT + "_core.quantized_func_wrappers.hpu.hpu_quantized_func_wrapper", QuantizedHpuMatmul=QuantizedHpuMatmul)
provide(QUANT + "_core.scale_methods.scale_method_config", **METHOD_NAMES, CfgStr=CfgStr, ScaleGranularity=ScaleGranularity,
        ScaleMethodConfig=ScaleMethodConfig, ScaleRoundMethod=ScaleRoundMethod, ScaleValueType=ScaleValueType, get_scale_method_from_config=method_of,
        scale_method_config_mapping=MAPPING, load_scale_method_config_by_mod_map=dumped_methods)
provide(QUANT + "_quant_common.quant_config", **METHOD_NAMES, Fp8cfg=Fp8cfg, QuantMode=QuantMode, ScaleFormat=ScaleFormat,
        get_hqt_config=lambda model: model.__dict__["_inc_config"])
provide(QUANT + "_quant_common.helper_modules", **OPERATIONS, **{cls.__name__: cls for cls in PATCHED.values()})
provide("habana_frameworks.torch.core", **dict.fromkeys(NOTHING, lambda *_, **__: None))
provide("habana_frameworks.torch.hpu", wrap_in_hpu_graph=lambda model, **_: model, get_device_name=torch.hpu.get_device_name)
provide("habana_frameworks.torch.utils.experimental", synDeviceType=DeviceType, _get_device_type=this_device, _set_scale_attributes=None)
provide("habana_frameworks.torch.utils.version_checker", is_pytorch_at_least=lambda *_: True)
