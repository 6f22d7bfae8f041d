# SPDX-License-Identifier: Apache-2.0
"""vLLM's own look-ups on written checkpoints. Run by vllm_lookups.py with a Python that has vLLM:

  vllm_rules.py JOBS.json      [{"folder", "model", "class", "experts": [gate, down, up], "linears": [module, ...]}, ...]

For each checkpoint the real vLLM is asked, module by module, whether it would build an fp8 layer, and which parameter
each expert's tensor would be loaded into; that must agree with what the file holds. Prints one JSON list of problems."""

import ast
import json
import pathlib
import sys


def class_tables(model, class_name):
    """packed_modules_mapping and hf_to_vllm_mapper's arguments of a model class, from vLLM's source: importing the
    multi-modal classes would need torchvision, and a minute."""
    import importlib.util
    root = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    tree = ast.parse((root / "model_executor" / "models" / f"{model}.py").read_text())
    found = {"packed_modules_mapping": {}, "hf_to_vllm_mapper": {}}
    wanted = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    for node in wanted.body:
        if not isinstance(node, ast.Assign) or node.targets[0].id not in found:
            continue
        name = node.targets[0].id
        if name == "packed_modules_mapping":
            found[name] = ast.literal_eval(node.value)
        elif isinstance(node.value, ast.Call):
            found[name] = {word.arg: ast.literal_eval(word.value) for word in node.value.keywords}
    return found["packed_modules_mapping"], found["hf_to_vllm_mapper"]


class Checkpoint:
    """What one written folder holds, in vLLM's names."""

    def __init__(self, job):
        from safetensors import safe_open
        from vllm.model_executor.models.utils import WeightsMapper
        self.folder = pathlib.Path(job["folder"])
        self.config = json.loads((self.folder / "config.json").read_text())
        self.packed, renames = class_tables(job["model"], job["class"])
        text = self.config.get("text_config", self.config)
        if "deepseek" in self.config["model_type"] and text.get("q_lora_rank"):
            # added by DeepseekV2ForCausalLM.__init__
            self.packed["fused_qkv_a_proj"] = ["q_a_proj", "kv_a_proj_with_mqa"]
        self.mapper = WeightsMapper(**renames).get_rename_mapper()
        self.dtypes = {}
        for file in self.folder.glob("*.safetensors"):
            with safe_open(file, "pt") as reader:
                for name in reader.keys():
                    self.dtypes[name] = reader.get_slice(name).get_dtype()
        linears = set(job["linears"])
        self.fp8 = {name.removesuffix(".weight"): dtype == "F8_E4M3" for name, dtype in self.dtypes.items() if name.endswith(".weight")}
        self.linears = {name: fp8 for name, fp8 in self.fp8.items() if name in linears and ".experts." not in name}

    def layers(self):
        """{vLLM's name of a layer: {module of the checkpoint: is it fp8}}; q, k and v share one."""
        layers = {}
        for module, fp8 in self.linears.items():
            name = self.mapper.map_name(module + ".weight").removesuffix(".weight")
            parent, _, leaf = name.rpartition(".")
            fused = next((group for group, parts in self.packed.items() if leaf in parts), leaf)
            layers.setdefault(f"{parent}.{fused}" if parent else fused, {})[module] = fp8
        return layers

    def experts(self):
        """{vLLM's name of a layer's experts: {tensor: dtype}}"""
        found = {}
        for name, dtype in self.dtypes.items():
            if ".experts." in name:
                prefix, _, _ = self.mapper.map_name(name).partition(".experts.")
                found.setdefault(prefix + ".experts", {})[name] = dtype
        return found


class CompressedTensors:
    def __init__(self, checkpoint):
        from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
        self.config = compressed_tensors.CompressedTensorsConfig.from_config(checkpoint.config["quantization_config"])
        self.config.packed_modules_mapping = checkpoint.packed
        self.config.apply_vllm_mapper(checkpoint.mapper)

    def quantized(self, layer, name):
        scheme = self.config.get_scheme_dict(layer, layer_name=name)
        weights, inputs = (scheme or {}).get("weights"), (scheme or {}).get("input_activations")
        if weights is None:
            return False
        weights_only = inputs is None and self.config._is_fp8_w8a16(weights, inputs)
        if not self.config._is_fp8_w8a8(weights, inputs) and not self.config._is_mxfp8(weights) and not weights_only:
            raise ValueError(f"no fp8 scheme of vLLM fits {name}")
        return True

    def experts_quantized(self, layer, name, names):
        """Makes vLLM's method for the experts, which refuses schemes; no kernel of this machine is looked for."""
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe as moe
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe_w8a8_fp8 as fp8
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe_w8a8_mxfp8 as mxfp8
        plain = type("Plain", (), {"__init__": lambda self, config: None})
        moe.UnquantizedFusedMoEMethod = plain
        fp8.select_fp8_moe_backend = mxfp8.select_mxfp8_moe_backend = lambda **keys: (None, None)
        layer.ckpt_gate_proj_name, layer.ckpt_down_proj_name, layer.ckpt_up_proj_name = names
        layer.moe_config = None
        try:
            return not isinstance(moe.CompressedTensorsMoEMethod.get_moe_method(self.config, layer, name), plain)
        except (AssertionError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{type(error).__name__}: {str(error)[:80]}") from error


class ModelOpt:
    """MXFP8: left out are the excluded modules, and towers by their names."""

    def __init__(self, checkpoint):
        from vllm.model_executor.layers.quantization.modelopt import ModelOptMxFp8Config
        quantization = checkpoint.config["quantization_config"]
        if ModelOptMxFp8Config.override_quantization_method(quantization, None) != "modelopt_mxfp8":
            raise ValueError("vLLM takes it for another algorithm than MXFP8")
        beside = json.loads((checkpoint.folder / "hf_quant_config.json").read_text())
        for config in (beside, quantization):
            self.config = ModelOptMxFp8Config.from_config(config)
        self.config.packed_modules_mapping = checkpoint.packed
        self.config.apply_vllm_mapper(checkpoint.mapper)

    def quantized(self, layer, name):
        towers = ("vision_tower", "vision_model", "vit_large_projector")
        return not self.config.is_layer_excluded(name) and not any(tower in name for tower in towers)

    def experts_quantized(self, layer, name, names):
        return self.quantized(layer, name)


class Fp8:
    def __init__(self, checkpoint):
        from vllm.model_executor.layers.quantization.fp8 import Fp8Config
        self.config = Fp8Config.from_config(checkpoint.config["quantization_config"])
        self.config.packed_modules_mapping = checkpoint.packed
        self.config.apply_vllm_mapper(checkpoint.mapper)

    def quantized(self, layer, name):
        from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
        return not is_layer_skipped(prefix=name, ignored_layers=self.config.ignored_layers, fused_mapping=self.config.packed_modules_mapping)

    def experts_quantized(self, layer, name, names):
        return self.quantized(layer, name)


class Quark:
    """Stacked experts in MXFP4 are loaded by GptOssModel._load_weights_quark, under these names."""
    PARAMETERS = {"w13_weight", "w13_weight_scale", "w13_bias", "w2_weight", "w2_weight_scale", "w2_bias"}

    def __init__(self, checkpoint):
        from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig
        self.config = QuarkConfig.from_config(checkpoint.config["quantization_config"])
        self.config.packed_modules_mapping = checkpoint.packed
        self.config.apply_vllm_mapper(checkpoint.mapper)

    def quantized(self, layer, name):
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.model_executor.layers.quantization.quark.quark import QuarkLinearMethod
        from vllm.model_executor.layers.quantization.quark.schemes import QuarkW8A8Fp8
        _, _, method = self.config.get_quant_method_target(name, LinearBase)
        if method is not QuarkLinearMethod:
            return False
        if self.config.get_scheme_cls(LinearBase, name)[2] is not QuarkW8A8Fp8:
            raise ValueError(f"no fp8 scheme of vLLM fits {name}")
        return True

    def problems_of_experts(self, checkpoint):
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.quantization.quark.quark_moe import QuarkOCP_MX_MoEMethod
        from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Static
        problems = []
        for prefix, tensors in checkpoint.experts().items():
            target = self.config.get_quant_method_target(prefix, RoutedExperts)
            if target != (kMxfp4Static, None, QuarkOCP_MX_MoEMethod):
                problems.append(f"{prefix}: in MXFP4, vLLM builds {target}")
            names = {checkpoint.mapper.map_name(name).rpartition(".")[2] for name in tensors}
            if names != self.PARAMETERS:
                problems.append(f"{prefix}: vLLM has the parameters {sorted(self.PARAMETERS)}, the file {sorted(names)}")
        return problems


def problems_of_experts(checkpoint, reader, job, layer):
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    problems, names = [], job["experts"]
    for prefix, tensors in checkpoint.experts().items():
        states = {dtype == "F8_E4M3" for name, dtype in tensors.items() if "scale" not in name and "bias" not in name}
        if len(states) != 1:
            problems.append(f"{prefix}: some experts are fp8 and some are not")
            continue
        count = len({name.partition(".experts.")[2].split(".")[0] for name in tensors})
        mapping = RoutedExperts.build_expert_params_mapping(names[0], names[1], names[2], count, routed_experts_prefix="",
                                                            include_fused=states == {False})
        for name in tensors:
            mapped = checkpoint.mapper.map_name(name)
            if not any(weight in mapped for _, weight, _, _ in mapping):
                problems.append(f"{name}: no expert parameter of vLLM takes it")
        try:
            quantized = reader.experts_quantized(layer, prefix, names)
        except ValueError as error:
            problems.append(f"{prefix}: {error}")
            continue
        if {quantized} != states:
            problems.append(f"{prefix}: vLLM builds {'fp8' if quantized else 'plain'} experts, the file has {'plain' if quantized else 'fp8'} ones")
    return problems


def problems_of(job):
    import torch
    linear = type("ColumnParallelLinear", (torch.nn.Module,), {})()
    moe = type("RoutedExperts", (torch.nn.Module,), {})()
    head = type("ParallelLMHead", (torch.nn.Module,), {})()
    checkpoint = Checkpoint(job)
    method = checkpoint.config["quantization_config"]["quant_method"]
    reader = {"fp8": Fp8, "modelopt": ModelOpt, "quark": Quark}.get(method, CompressedTensors)(checkpoint)
    problems = []
    for name, modules in checkpoint.layers().items():
        try:
            is_head = name.endswith("lm_head")
            quantized = False if is_head and method == "fp8" else reader.quantized(head if is_head else linear, name)
            if set(modules.values()) != {quantized}:
                problems.append(f"{name}: vLLM {'builds an fp8 layer' if quantized else 'leaves it'}, the file has {modules}")
        except ValueError as error:
            problems.append(f"{name}: {error}")
    problems += reader.problems_of_experts(checkpoint) if method == "quark" else problems_of_experts(checkpoint, reader, job, moe)
    return problems, len(checkpoint.linears), sum(checkpoint.fp8.values())


def main(path):
    answers = []
    for job in json.loads(pathlib.Path(path).read_text()):
        problems, linears, fp8 = problems_of(job)
        answers.append({"name": job["name"], "problems": problems, "linears": linears, "fp8": fp8})
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
