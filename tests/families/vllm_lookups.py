#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the real vLLM see the tool's checkpoints as they are? Its look-ups (is_layer_skipped, compressed-tensors' scheme
search, the names of experts' weights, the schemes of experts) on tiny models, without running them. It must find a
problem where `fp8 quantize --check` says that vLLM refuses the file, and none where it accepts it.

  FP8_TEST_VLLM=VENV/bin/python vllm_lookups.py --binary build/bin/fp8

Without FP8_TEST_VLLM (a Python that can import vllm) it says SKIPPED. Written with vLLM 0.32 at hand."""

import argparse
import json
import os
import pathlib
import shutil
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
    "mx": ["--dynamic", "--scheme", "mx", "--format", "compressed-tensors"],
    "mx-modelopt": ["--dynamic", "--scheme", "mx", "--format", "modelopt"],
    "fp8-block": ["--dynamic", "--scheme", "block", "--format", "fp8"],
    "weights": ["--weights-only", "--format", "compressed-tensors"],
    "tensor": ["--dynamic", "--scheme", "tensor", "--format", "compressed-tensors"],
    "static": [check.STATIC, "--format", "compressed-tensors"],
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
        unmeasured, stats = check.measure(binary, folder, pathlib.Path(work) / f"{model_type}-stats")
        for form, options in FORMS.items():
            if unmeasured and check.STATIC in options:
                continue
            out = pathlib.Path(work) / f"{model_type}-{form}"
            reason, report = check.quantize(binary, folder, out, [word for o in options for word in ([o, stats] if o == check.STATIC else [o])], [])
            if reason:
                refused.append(f"refused   {model_type:20} {form:11} {reason}")
                continue
            said = next(reader["loads"] for reader in report["readers"] if reader["reader"] == "vLLM")
            jobs.append({"name": f"{model_type:20} {form:11}", "folder": str(out), "model": model, "class": class_name,
                         "experts": experts, "linears": linears, "said": said})
    jobs += mxfp4_jobs(binary, pathlib.Path(work), refused)
    return jobs, refused


def mxfp4_checkpoint(folder):
    """gpt_oss as it is published: experts in MXFP4, 32 codes of 4 bits with one scale. Codes and scales are random."""
    import torch
    from safetensors import torch as files
    source = build.prepare("gpt_oss")
    shutil.copytree(source, folder)
    torch.manual_seed(0)
    tensors = files.load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[name + "_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(118, 124, shape, dtype=torch.uint8)
    files.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return {name: tensor for name, tensor in tensors.items() if ".experts." in name}


def mxfp4_jobs(binary, work, refused):
    """Experts in MXFP4 are carried through byte for byte, beside attention in fp8."""
    import torch
    from safetensors import torch as files
    source, jobs = work / "gpt_oss-mxfp4", []
    experts = mxfp4_checkpoint(source)
    linears = [f"model.layers.{i}.{name}" for i in range(2) for name in
               ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.router")] + ["lm_head"]
    for scheme in ("channel", "tensor"):
        out = work / f"gpt_oss-quark-{scheme}"
        command = [binary, "quantize", "--model", str(source), "--out", str(out), "--dynamic", "--scheme", scheme, "--format", "quark", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            refused.append(f"refused   gpt_oss@mxfp4        {scheme:10} {(done.stderr.strip().splitlines() or [''])[-1]}")
            continue
        written = files.load_file(out / "model.safetensors")
        changed = [name for name, tensor in experts.items() if name not in written or not torch.equal(tensor, written[name])]
        refused += [f"changed   gpt_oss@mxfp4        {scheme:10} {name}" for name in changed]
        jobs.append({"name": f"{'gpt_oss@mxfp4':20} {'quark-' + scheme:10}", "folder": str(out), "model": "gpt_oss",
                     "class": "GptOssForCausalLM", "experts": [], "linears": linears, "said": True})
    return jobs


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
    wrong = len(refused)
    for answer, job in zip(answers, jobs):
        agrees = job["said"] is (not answer["problems"])
        wrong += not agrees
        print(f"{'right' if agrees else 'wrong':9} {answer['name']} {answer['fp8']} modules in fp8, {answer['linears']} linear layers and the experts "
              f"asked for; --check says: {'accepted' if job['said'] else 'refused'}")
        for problem in answer["problems"][:6]:
            print("          " + problem)
    print("\n".join(refused))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
