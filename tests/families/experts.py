#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Experts that are stacked in one tensor: cast one by one, and read back as transformers computes with them.

  experts.py --binary build/bin/fp8                      all types below
  experts.py --binary build/bin/fp8 --types llama4,mixtral

Each type's tiny model is saved with its experts stacked (for most families transformers does so only where it is asked to:
save_original_format=False) and quantized. Then

  values    every expert's codes times scales, by name, are its matrices: which part of the stack is gate, which is up, and
            which axis is the output is asked of transformers' own class (is_transposed, is_concatenated) or of its forward
            pass (Llama 4), not of the tool's table
  size      an expert's codes with scales take at most 0.52 of its bf16 bytes, where rows are long enough (256)
  loading   where transformers reads experts one by one, it loads the output: its matrices are those of the source, and the
            logits agree"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
warnings.filterwarnings("ignore")

import build  # noqa: E402
import check  # noqa: E402
import reference  # noqa: E402

# What an expert's weights are called in the output (gate, up, down), and whether transformers reads them so.
GATE, NUMBERS = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")
TYPES = {
    "llama4_text": (GATE, True), "qwen3_moe": (GATE, True), "deepseek_v3": (GATE, True), "mixtral": (NUMBERS, True), "phimoe": (NUMBERS, True),
    "olmoe": (GATE, True), "jamba": (GATE, True), "hunyuan_v1_moe": (GATE, True), "ernie4_5_moe": (GATE, True), "minimax": (NUMBERS, True),
    "lfm2_moe": (NUMBERS, True), "qwen3_next": (GATE, True), "glm4_moe": (GATE, True),
    "qwen3_vl_moe": (GATE, False), "granitemoe": (GATE, False), "granitemoehybrid": (GATE, False), "aria": (GATE, False),
}
SUBSET = ["llama4_text", "qwen3_moe", "mixtral", "qwen3_vl_moe", "granitemoe"]

COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token")


def stacked_modules(model):
    """{name: module} of the modules that hold all experts of a layer."""
    return {name: module for name, module in model.named_modules() if getattr(module, "gate_up_proj", None) is not None
            and getattr(module.gate_up_proj, "dim", lambda: 0)() == 3}


def matrices(module):
    """[(gate, up, down), ...] of every expert, each [out, in], as the module's class computes with them."""
    llama4 = type(module).__name__.startswith("Llama4")  # bmm(x, gate_up).chunk(2): says nothing of it
    transposed, halves = getattr(module, "is_transposed", llama4), getattr(module, "is_concatenated", True)
    experts = []
    for both, down in zip(module.gate_up_proj.detach(), module.down_proj.detach()):
        if transposed:
            both, down = both.T, down.T
        gate, up = both.chunk(2) if halves else (both[::2], both[1::2])
        experts.append((gate, up, down))
    return experts


def decoded(tensors, module):
    codes, scales = tensors[module + ".weight"], tensors[module + ".weight_scale"]
    return codes.float() * scales.float(), codes.numel() + 4 * scales.numel()


def compare_values(model, out, names):
    """Problems, one line each."""
    tensors, problems, compared = reference.saved_tensors(out), [], 0
    for path, module in stacked_modules(model).items():
        layer = ".".join(re.search(r"layers\.\d+", path).group(0).split("."))
        for index, experts in enumerate(matrices(module)):
            for name, want in zip(names, experts):
                found = [key[:-7] for key in tensors if key.endswith(f"experts.{index}.{name}.weight") and f"{layer}." in key and "vision" not in key]
                if len(found) != 1:
                    problems.append(f"{path}: expert {index}, {name}: {len(found)} tensors in the output")
                    continue
                have, size = decoded(tensors, found[0])
                error = float((have - want.float()).norm() / want.float().norm()) if have.shape == want.shape else f"shape {tuple(have.shape)}"
                if isinstance(error, str) or not error <= 0.04:
                    problems.append(f"{found[0]}: differs from transformers' matrix: {error}")
                if want.shape[1] >= 256 and size > 0.52 * 2 * want.numel():
                    problems.append(f"{found[0]}: {size} bytes of {2 * want.numel()}")
                compared += 1
    return problems if compared else ["no expert was compared"]


def compare_loaded(model, loaded):
    """Problems of the matrices that transformers made of the output."""
    problems, mine = [], stacked_modules(loaded)
    for path, module in stacked_modules(model).items():
        if path not in mine:  # Llama 4: a list of modules, one per expert
            have = [[expert.get_submodule(name).weight.detach() for name in GATE] for expert in loaded.get_submodule(path)]
        else:
            have = matrices(mine[path])
        for index, (wanted, found) in enumerate(zip(matrices(module), have)):
            for name, want, got in zip(GATE, wanted, found):
                error = float((got.float() - want.float()).norm() / want.float().norm())
                if not error <= 0.04:
                    problems.append(f"{path}: expert {index}, {name}: loaded {error:.3g} away")
    return problems


def tiny_config(model_type, uniform):
    """A small config whose routers choose all experts: which ones they choose of some would jump with the last bit of their input."""
    config = build.tiny_config(model_type, uniform)
    text = config.get_text_config()
    count = next(getattr(text, name) for name in COUNTS if isinstance(getattr(text, name, None), int))
    for name in CHOSEN:
        if isinstance(getattr(text, name, None), (int, list)):
            setattr(text, name, min(count, 8))
    return config


def save_stacked(model_type, folder, torch):
    """The tiny model of a type, saved with stacked experts. (class name, model, ids, its logits)."""
    import transformers
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    class_name = build.model_types().get(model_type, (None, None))[1] or causal[model_type]
    ids = torch.arange(3, 27).view(1, -1)
    for uniform in (False, True):
        try:
            torch.manual_seed(1)
            model = getattr(transformers, class_name)(tiny_config(model_type, uniform)).eval().to(torch.bfloat16)
            build.randomize(model, torch, build.hints.EXPERTS_GAIN)
            model.tie_weights()
            with torch.no_grad():
                logits = model(input_ids=ids, use_cache=False).logits.float()
            break
        except (RuntimeError, ValueError):  # not with such sizes
            if uniform:
                raise
    model.save_pretrained(folder, save_original_format=False)
    return class_name, model, ids, logits


def check_type(model_type, binary, work, torch):
    names, reads = TYPES[model_type]
    folder, out = work / model_type, work / (model_type + "-fp8")
    class_name, model, ids, want = save_stacked(model_type, folder, torch)
    reason, _ = check.quantize(binary, folder, out, check.FORMS["weights-only"], [])
    if reason:
        return [reason]
    problems = compare_values(model, out, names)
    if not reads:
        return problems
    loaded, keys = reference.load(class_name, out, torch)
    problems += [f"{kind}: {' '.join(check.fold(found)[:3])}" for kind, found in keys.items()]
    with torch.no_grad():
        have = loaded(input_ids=ids, use_cache=False).logits.float()  # modules that are left in codes are decoded now
    problems += compare_loaded(model, loaded)
    error = float((have - want).norm() / want.norm())
    p, q = torch.log_softmax(want, -1), torch.log_softmax(have, -1)
    kl = float((p.exp() * (p - q)).sum(-1).mean())
    print(f"          {model_type:18} logits: relative error {error:.3g}, KL {kl:.2g}", flush=True)
    if not error <= check.LARGEST_ERROR or not kl <= check.LARGEST_KL:
        problems.append(f"logits: relative error {error:.3g}, KL {kl:.3g}")
    return problems


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    parser.add_argument("--types", help="with commas; default all")
    parser.add_argument("--subset", action="store_true", help="the types that continuous integration runs")
    parser.add_argument("--jobs", type=int, default=1, help="ignored: these are few")
    options = parser.parse_args(arguments)
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for model_type in SUBSET if options.subset else options.types.split(",") if options.types else TYPES:
            try:
                problems = check_type(model_type, pathlib.Path(options.binary).resolve(), pathlib.Path(work), torch)
            except Exception as error:  # noqa: BLE001: whatever the reader says is the cause
                problems = [check.first_line(error)]
            wrong += bool(problems)
            print(f"{'wrong' if problems else 'right':9} {model_type:18} {'; '.join(problems[:3])}".rstrip(), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
