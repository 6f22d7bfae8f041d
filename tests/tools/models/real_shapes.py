# SPDX-License-Identifier: Apache-2.0
"""Published models' shapes with random weights, one layer: logits as transformers', and memory.

    real_shapes.py --binary build/bin/fp8 [--subset] [NAME ...]

Each row of MODELS is a published config.json (widths, heads, rotary embedding, vocabulary) with one layer. Printed:
KL(transformers || fp8 evaluate --dtype f32), the mean over positions in nats, at most 1e-7, and the peak memory of
`measure` and `quantize` as a multiple of the checkpoint's bytes (bf16). Rows with "tokens" go past the window or the
original context, with a small vocabulary, since logits are kept, and a narrow MLP, which their positions do not see.
--subset, for every day: of two rows that differ in sizes alone the quicker one.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TQDM_DISABLE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

MOST_KL = 1e-7
TOKENS = 48
MIB = 2**20
# What measuring and quantizing may hold, beside the program's own: the model once (tied or not) in bf16, as much again
# for the calibration's activations and logits, and where scores have caps two matrices of them, f32.
PROGRAM_BYTES, MOST_COPIES = 700 * MIB, 2

LONG_FACTORS = [
    1.08, 1.11, 1.14, 1.34, 1.59, 1.6, 1.62, 2.62, 3.23, 3.23, 4.79, 7.4, 7.7, 9.09, 12.2, 17.67, 24.46, 28.57, 30.42,
    30.84, 32.59, 32.93, 42.32, 44.96, 50.34, 50.45, 57.55, 57.93, 58.21, 60.14, 62.61, 62.62, 62.71, 63.14, 63.14,
    63.77, 63.93, 63.96, 63.97, 64.03, 64.07, 64.08, 64.12, 64.41, 64.48, 64.51, 64.53, 64.84]
SHORT_FACTORS = [
    1.0, 1.02, 1.03, 1.03, 1.05, 1.05, 1.05, 1.05, 1.05, 1.07, 1.1, 1.11, 1.16, 1.16, 1.17, 1.29, 1.34, 1.68, 1.79,
    1.82, 1.85, 1.88, 1.91, 1.94, 1.99, 2.02, 2.02, 2.02, 2.02, 2.02, 2.02, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03, 2.03,
    2.03, 2.03, 2.08, 2.09, 2.19, 2.22, 2.59, 2.73, 2.75, 2.84]

GEMMA_2_2B = {
    "model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True}
PHI_3_MINI_4K = {
    "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "sliding_window": 2047, "tie_word_embeddings": False, "pad_token_id": 32000}
PHI_3_MINI_128K = PHI_3_MINI_4K | {
    "max_position_embeddings": 131072, "sliding_window": 262144,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS}}
LLAMA_3_2_1B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"}}
QWEN_2_5_0_5B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 24,
    "tie_word_embeddings": True}
SMALL = {"vocab_size": 1024, "pad_token_id": 0}
LONG = SMALL | {"intermediate_size": 1024}

MODELS = {
    "Qwen2.5-0.5B": {"config": QWEN_2_5_0_5B},
    "Gemma-2-2B": {"config": GEMMA_2_2B},
    "Phi-3-mini-4k": {"config": PHI_3_MINI_4K},
    "Phi-3-mini-128k": {"config": PHI_3_MINI_128K},
    "Llama-3.2-1B": {"config": LLAMA_3_2_1B},
    "Gemma-2-2B, few words": {"config": GEMMA_2_2B | SMALL},
    "Phi-3-mini-128k, few words": {"config": PHI_3_MINI_128K | SMALL},
    "Llama-3.2-1B, few words": {"config": LLAMA_3_2_1B | SMALL},
    # Past the window, and past the context that the rotary embedding was made for.
    "Gemma-2-2B, past its window": {"config": GEMMA_2_2B | LONG, "tokens": 4200},
    "Phi-3-mini-4k, past its window": {"config": PHI_3_MINI_4K | LONG, "tokens": 2200},
    "Phi-3-mini-128k, past 4096": {"config": PHI_3_MINI_128K | LONG, "tokens": 4200},
    "Llama-3.2-1B, 4200 tokens": {"config": LLAMA_3_2_1B | LONG, "tokens": 4200},
}
SUBSET = ["Qwen2.5-0.5B", "Gemma-2-2B, few words", "Phi-3-mini-128k, few words", "Llama-3.2-1B, few words",
          "Gemma-2-2B, past its window", "Phi-3-mini-128k, past 4096", "Llama-3.2-1B, 4200 tokens"]


def fill(model):
    """Products that keep a vector's length, norms about 1, and logits that say something."""
    generator = torch.Generator().manual_seed(1)
    adds_one = "gemma" in model.config.model_type
    for name, tensor in model.state_dict().items():
        if tensor.dim() < 2:
            mean, most = 1 if "norm" in name else 0, 0.2
            if name == "model.norm.weight" and model.config.tie_word_embeddings:
                mean, most = 0, 1.7  # of either sign, or each token would say itself again
            tensor.uniform_(mean - most, mean + most, generator=generator)
            if "norm" in name and adds_one:
                tensor -= 1
            continue
        tied = "embed" in name and model.config.tie_word_embeddings
        tensor.normal_(0, (3 if tied or "lm_head" in name else 1) / math.sqrt(tensor.shape[1]), generator=generator)


def make_checkpoint(folder, config):
    """One layer in bf16, and its ids [1, tokens]."""
    config = config | {"num_hidden_layers": 1, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
    config.setdefault("pad_token_id", 0)
    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[config["model_type"]]]
    with torch.device("meta"):  # fill() gives every weight its values
        model = model_class(transformers.CONFIG_MAPPING[config["model_type"]](**config)).to(torch.bfloat16)
    model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        fill(model)
    model.save_pretrained(folder)
    config["architectures"] = [model_class.__name__]
    (folder / "config.json").write_text(json.dumps(config))  # as it is published, not as transformers 5 writes it
    return model_class


def run(binary, *arguments):
    """Peak resident bytes of a command that must succeed: the kernel's mark, read until the process ends (wait4 would
    count this script's own memory, which the child has before it becomes the program)."""
    peak = 0
    with subprocess.Popen([binary, *map(str, arguments)], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            marks = re.findall(r"Name:\s+fp8\n(?:.*\n)*VmHWM:\s+(\d+) kB", status)
            peak = max([peak, *(int(mark) * 1024 for mark in marks)])
            time.sleep(0.005)
    if process.returncode != 0:
        raise ValueError(f"fp8 {arguments[0]}: exit {process.returncode}")
    return peak


def expected_logits(model_class, folder, ids):
    eager = model_class.__name__.startswith("Gemma")  # whose caps sdpa leaves out
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager" if eager else "sdpa")
    with torch.no_grad():
        return model.eval()(ids, use_cache=False).logits[0]


def divergence(expected, found):
    """Mean KL, nats, in f64, some positions at a time."""
    total = 0.0
    for p, q in zip(expected.split(64), found.split(64)):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        total += (p.exp() * (p - q)).sum().item()
    return total / len(expected)


def check(binary, row, scratch):
    """KL, entropy as a part of log V, and peak memory of measure and quantize over the checkpoint's bytes."""
    folder, data, logits = scratch / "model", scratch / "ids.safetensors", scratch / "logits.safetensors"
    torch.manual_seed(0)
    model_class = make_checkpoint(folder, row["config"])
    tokens = row.get("tokens", TOKENS)
    ids = torch.randint(3, row["config"]["vocab_size"], (1, tokens), generator=torch.Generator().manual_seed(2))
    save_file({"input_ids": ids}, data)
    given = ["--model", folder, "--data", data, "--quiet"]
    run(binary, "evaluate", *given, "--seq-len", tokens, "--dtype", "f32", "--device", "cpu", "--dump-logits", logits)
    expected, found = expected_logits(model_class, folder, ids), load_file(logits)["logits"][0]
    kl = divergence(expected, found)
    log_p = expected[:32].double().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean().item() / math.log(expected.shape[-1])
    del expected, found
    peaks = [run(binary, "measure", *given, "--seq-len", tokens, "--out", scratch / "stats"),
             run(binary, "quantize", "--quiet", "--model", folder, "--measurements", scratch / "stats", "--out",
                 scratch / "fp8")]
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return kl, entropy, size, peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments, _ = parser.parse_known_args()
    names = [name for name in arguments.names if name in MODELS] or (SUBSET if arguments.subset else list(MODELS))
    bad = []
    print(f"{'model':<32}{'KL':>10}{'entropy':>9}{'MiB':>7}{'measure MiB':>13}{'quantize MiB':>14}", flush=True)
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            kl, entropy, size, peaks = check(arguments.binary, MODELS[name], pathlib.Path(scratch))
        print(f"{name:<32}{kl:>10.1e}{entropy:>9.2f}{size / MIB:>7.0f}{peaks[0] / MIB:>13.0f}{peaks[1] / MIB:>14.0f}",
              flush=True)
        config, tokens = MODELS[name]["config"], MODELS[name].get("tokens", TOKENS)
        capped = config["num_attention_heads"] if "attn_logit_softcapping" in config else 0
        most = PROGRAM_BYTES + MOST_COPIES * size + 2 * 4 * capped * tokens**2
        if not 0 <= abs(kl) <= MOST_KL or not 0.05 < entropy < 0.95 or max(peaks) > most:
            bad.append(f"{name}: KL {kl:.2e} (allowed {MOST_KL}), entropy {entropy:.2f}, peak "
                       f"{max(peaks) / MIB:.0f} MiB (allowed {most / MIB:.0f})")
    sys.exit("\n".join(bad) if bad else 0)


if __name__ == "__main__":
    main()
