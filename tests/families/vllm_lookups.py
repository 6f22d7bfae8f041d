#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the real vLLM see the tool's checkpoints as they are? Its look-ups (is_layer_skipped, compressed-tensors' scheme
search, the names of experts' weights) on tiny models, without running them.

  FP8_TEST_VLLM=VENV/bin/python vllm_lookups.py --binary build/bin/fp8

Without FP8_TEST_VLLM (a Python that can import vllm) it says SKIPPED. Written with vLLM 0.32 at hand."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
warnings.filterwarnings("ignore")

import build  # noqa: E402
import check  # noqa: E402

GATED, MIXTRAL = ["gate_proj", "down_proj", "up_proj"], ["w1", "w2", "w3"]
# type: (vLLM's source file, its class, names of an expert's three weights, as vLLM looks for them)
MODELS = {
    "llama@wide": ("llama", "LlamaForCausalLM", GATED),
    "qwen3@wide": ("qwen3", "Qwen3ForCausalLM", GATED),
    "qwen3_moe@wide": ("qwen3_moe", "Qwen3MoeForCausalLM", GATED),
    "mixtral@wide": ("mixtral", "MixtralForCausalLM", MIXTRAL),
    "mixtral@wide-stacked": ("mixtral", "MixtralForCausalLM", MIXTRAL),
    "deepseek_v3@ragged": ("deepseek_v2", "DeepseekV2ForCausalLM", GATED),
    "llama4@wide": ("mllama4", "Llama4ForConditionalGeneration", GATED),
    "qwen2_5_vl@wide": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", GATED),
    "ernie4_5_vl_moe@wide": ("ernie45_vl", "Ernie4_5_VLMoeForConditionalGeneration", GATED),
    "gemma3@wide": ("gemma3_mm", "Gemma3ForConditionalGeneration", GATED),
}
FORMS = {
    "dynamic": ["--dynamic", "--format", "compressed-tensors"],
    "block": ["--dynamic", "--scheme", "block", "--format", "compressed-tensors"],
    "fp8-block": ["--dynamic", "--scheme", "block", "--format", "fp8"],
}


def jobs_of(binary, work):
    """(jobs for vllm_rules.py, lines about checkpoints that the tool refused)"""
    jobs, refused = [], []
    for model_type, (model, class_name, experts) in MODELS.items():
        folder = build.prepare(model_type)
        roles = json.loads((folder / "roles.json").read_text())
        linears = [name.removesuffix(".weight") for name, (role, _) in roles.items() if role in ("linear", "merged", "router", "head")]
        linears += [name.removesuffix(".weight") for name, (role, module) in roles.items()
                    if role == "tower" and name.endswith((".weight",)) and is_linear(name)]
        for form, options in FORMS.items():
            out = pathlib.Path(work) / f"{model_type}-{form}"
            command = [binary, "quantize", "--model", str(folder), "--out", str(out), *options, "--quiet"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                refused.append(f"refused   {model_type:20} {form:10} {(done.stderr.strip().splitlines() or [''])[-1]}")
                continue
            jobs.append({"name": f"{model_type:20} {form:10}", "folder": str(out), "model": model, "class": class_name,
                         "experts": experts, "linears": linears})
    return jobs, refused


def is_linear(name):
    """Weights of towers that vLLM reads into its linear layers: not embeddings, convolutions and norms."""
    return not any(word in name for word in ("embed", "norm", "patch", "conv", "ln_"))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    parser.add_argument("--subset", action="store_true", help="ignored: these are few")
    parser.add_argument("--jobs", type=int, default=1, help="ignored")
    options = parser.parse_args(arguments)
    python = os.environ.get("FP8_TEST_VLLM")
    if not python:
        print("SKIPPED: FP8_TEST_VLLM names no Python with vllm")
        return 0
    import transformers
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as work:
        jobs, refused = jobs_of(str(pathlib.Path(options.binary).resolve()), work)
        path = pathlib.Path(work) / "jobs.json"
        path.write_text(json.dumps(jobs))
        rules = pathlib.Path(__file__).parent / "vllm_rules.py"
        done = subprocess.run([python, str(rules), str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-3000:])
            return 1
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    for answer in answers:
        print(f"{'wrong' if answer['problems'] else 'right':9} {answer['name']} {answer['fp8']} modules in fp8, {answer['linears']} linear layers and the experts asked for")
        for problem in answer["problems"][:6]:
            print("          " + problem)
    print("\n".join(refused))
    return 1 if refused or any(answer["problems"] for answer in answers) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
