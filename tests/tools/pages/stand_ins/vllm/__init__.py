# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM where it is not installed: reads a checkpoint's folder as vLLM reads it, and lets fp8 write the
text. What it refuses, vLLM would refuse or misread: an fp8 weight without its scale, a scale of another shape, a weight
in high precision for which the config promises codes, a product of several weights of which some are fp8.

The real one judges the same folders in tests/families/vllm_lookups.py (FP8_TEST_VLLM)."""

import json
import pathlib
import re
import struct
import subprocess
import types

# What vLLM runs as one product: all in fp8, or none.
TOGETHER = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]
NO_LINEAR = re.compile(r"embed|norm|patch|conv|ln_")


def tensors_of(folder):
    """{name: (dtype, shape)} of every *.safetensors, from the headers alone."""
    tensors = {}
    for file in pathlib.Path(folder).glob("*.safetensors"):
        with open(file, "rb") as opened:
            header = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
        tensors |= {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return tensors


def matches(entry, module):
    """As vLLM matches an entry of "ignore": a name, or a regular expression from its beginning."""
    return re.match(entry[3:], module) is not None if entry.startswith("re:") else entry == module


def arguments_of(config):
    """(is a module left alone, name of a weight's scale, are inputs static, block) of a quantization_config"""
    method = config["quant_method"]
    if method == "compressed-tensors":
        groups = list(config["config_groups"].values())
        if len(groups) != 1 or groups[0]["targets"] != ["Linear"]:
            raise ValueError(f"config_groups {groups}: one group of Linear is expected")
        weights, inputs = groups[0]["weights"], groups[0].get("input_activations")
        for values in filter(None, (weights, inputs)):
            if (values["num_bits"], values["type"]) != (8, "float"):
                raise ValueError(f"no fp8 scheme of vLLM fits {values}")
        return (lambda module: any(matches(entry, module) for entry in config.get("ignore", [])), "weight_scale",
                bool(inputs) and not inputs["dynamic"], weights.get("block_structure"))
    if method == "fp8":
        kept = config.get("ignored_layers") or config.get("modules_to_not_convert") or []
        block = config.get("weight_block_size")
        return (lambda module: any(entry in module for entry in kept), "weight_scale_inv" if block else "weight_scale",
                config["activation_scheme"] == "static", block)
    raise ValueError(f"quant_method {method}: compressed-tensors and fp8 are read here")


def problems_of(folder):
    """What vLLM would not load, as lines."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    if "quantization_config" not in config:
        return []
    kept, scale, static, block = arguments_of(config["quantization_config"])
    tensors, problems, fp8 = tensors_of(folder), [], {}
    for name, (dtype, shape) in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf != "weight" or len(shape) != 2 or NO_LINEAR.search(module):
            continue
        fp8[module] = dtype == "F8_E4M3"
        if fp8[module] == kept(module):
            problems.append(f"{module}: {'in fp8, and' if fp8[module] else dtype + ', and not'} in the list of what is not quantized")
        if not fp8[module]:
            continue
        tiles = [-(-size // side) for size, side in zip(shape, block)] if block else None
        allowed = [tiles] if block else [[], [1], [shape[0]], [shape[0], 1]]
        if tensors.get(f"{module}.{scale}", (0, None))[1] not in allowed:
            problems.append(f"{module}.{scale}: found {tensors.get(f'{module}.{scale}')}, expected one of {allowed}")
        if static and f"{module}.input_scale" not in tensors:
            problems.append(f"{module}.input_scale is missing")
    for module in fp8:
        parent, _, leaf = module.rpartition(".")
        for parts in TOGETHER:
            states = {fp8[f"{parent}.{part}"] for part in parts if f"{parent}.{part}" in fp8}
            if leaf == parts[0] and len(states) > 1:
                problems.append(f"{parent}: of {', '.join(parts)} some are fp8 and some are not")
    if not any(fp8.values()):
        problems.append("no weight is in fp8")
    return problems


class SamplingParams:
    def __init__(self, max_tokens=16, temperature=1.0):
        self.max_tokens, self.temperature = max_tokens, temperature


class LLM:
    def __init__(self, model, **_):
        problems = problems_of(model)
        if problems:
            raise ValueError("\n".join([f"{model}: vLLM would not load it:", *problems]))
        self.model = model

    def generate(self, prompts, sampling_params):
        answers = []
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            done = subprocess.run(["fp8", "generate", "--model", self.model, "--prompt", prompt, "--tokens", str(sampling_params.max_tokens), "--json", "--quiet"],
                                  check=True, capture_output=True, text=True)
            output = types.SimpleNamespace(text=json.loads(done.stdout)["text"].removeprefix(prompt))
            answers.append(types.SimpleNamespace(prompt=prompt, outputs=[output]))
        return answers
