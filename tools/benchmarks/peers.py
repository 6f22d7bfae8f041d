# SPDX-License-Identifier: Apache-2.0
"""fp8 beside llama.cpp, torchao, compressed-tensors, llm-compressor and PyTorch, in turns on the same machine.

    ./tools/bench --peers [PART...] [--size 0.1B|1.1B|3B] [--threads 1,2] [--rounds 3] [--without NAME,...]

Parts: all without a word.
    convert   a bf16 Llama of random weights to fp8 without data: seconds of the process and bytes resident at most,
              beside cp, and cp with sync (fp8 syncs what it wrote, the others do not)
    linear    microseconds of 1, 16 and 512 rows with a weight of 4096 x 4096, bf16 activations
    quality   KL divergence of the demo model in fp8 (channel weights, dynamic tokens) from itself, and the seconds that
              rounding took (quality.py)
    model     tokens a second of the same checkpoint: one at a time after a context of 128 (decode), 128 at once (prefill)

Each round runs every program once, in turns. The medians of the rounds are printed as JSON lines and as a table on
stderr, with the spread (largest / smallest) of the rounds; results are compared with the checkpoint or with torch before
they are timed. What can't be had or does not run is a line with the reason. Models, llama.cpp and the Python packages are
kept in the per-user cache (1.1B: 8 GB).
"""

import argparse
import functools
import json
import os
import pathlib
import shutil
import statistics
import sys

import peer_packages
import quality
from peer_packages import Failed, measured, random_model, run, say, worker
from random_models import SIZES, cache

FP8_BENCH = pathlib.Path(os.environ["FP8_BENCH"])
FP8 = FP8_BENCH.parent / "fp8"
PARTS = ("convert", "quality", "linear", "model")


def cpu():
    """What of this machine the numbers depend on."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii")
    fields = dict(line.split("\t: ", 1) if "\t: " in line else (line, "") for line in text.split("\n\n")[0].replace("\t\t:", "\t:").splitlines())
    wanted = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vbmi", "avx512_bf16", "amx_bf16")
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", "").strip(), "cores": os.cpu_count(), "flags": [flag for flag in wanted if flag in flags]}


# --- conversion: {who: {"convert SIZE": {"seconds": s, "peak_rss": bytes}}}

CONVERT = {"fp8 --dynamic": ("fp8", "--dynamic"), "fp8 --weights-only": ("fp8", "--weights-only"), "cp": ("cp",), "cp, sync": ("cp", "sync"),
           "llm-compressor model_free_ptq": ("worker", "model_free_ptq"), "llm-compressor oneshot": ("worker", "oneshot"),
           "compressed-tensors": ("worker", "compressed-tensors"), "torchao weight-only": ("worker", "torchao weight-only")}
CHECKED = set()


def convert(who, size, threads):
    model, out = random_model("checkpoint", size), cache() / "converted"
    shutil.rmtree(out, ignore_errors=True)
    try:
        kind, *words = CONVERT[who]
        inner = {}
        if kind == "worker":
            found, seconds, peak = worker("convert", *words, model, out, threads=threads)
            inner = {"seconds_without_imports": found["seconds"]}
        elif kind == "cp":
            _, seconds, peak = measured(["sh", "-c", 'cp -r "$0" "$1"' + (' && sync "$1"/*' if words else ""), model, out])
        else:
            _, seconds, peak = measured([FP8, "quantize", "--model", model, "--out", out, *words, "--threads", threads, "--quiet"])
        if kind != "cp" and who not in CHECKED:
            CHECKED.add(who)
            run([sys.executable, peer_packages.HERE / "peer_worker.py", "check", model, out])
        return {who: {f"convert {size}": {"seconds": seconds, **inner, "peak_rss": peak}}}
    finally:
        shutil.rmtree(out, ignore_errors=True)


# --- layers: {who: {"linear M=1": {"microseconds": us}}}


def fp8_linear(threads):
    found = {}
    for text in ("gemm bf16 M=1", "gemm bf16 M=512"):
        for line in run([FP8_BENCH, text, "--threads", threads, "--seconds", 2]).splitlines():
            line = json.loads(line)
            _, rows, layout = line["case"].split()
            if rows in ("M=1", "M=16", "M=512"):
                found.setdefault(f"fp8, {layout} weight", {})[f"linear {rows}"] = {"microseconds": line["ns"] / 1000}
    return found


def python_linear(threads):
    found, _, _ = worker("linear", threads, 2, threads=threads)
    return {who: cases if isinstance(cases, str) else {case: {"microseconds": us} for case, us in cases.items()} for who, cases in found.items()}


# --- whole models: {who: {"decode SIZE": {"tokens_per_second": n}}}


def rates(size, found):
    return {f"{phase} {size}": {"tokens_per_second": rate} for phase, rate in found.items()}


def fp8_bench(size, threads):
    """{"fp8": {"decode", "prefill"}, "bf16": ...}, in turns in one process."""
    found = {"fp8": {}, "bf16": {}}
    for line in map(json.loads, run([FP8_BENCH, size, "--threads", threads, "--seconds", 4]).splitlines()):
        phase = line["case"].split()[0]
        found["fp8"][phase] = line["tokens_per_second"]
        found["bf16"][phase] = line["bf16_tokens_per_second"]
    return found


def fp8_model(size, threads):
    found = fp8_bench(size, threads)
    return {"fp8": rates(size, found["fp8"]), "fp8's own bf16": rates(size, found["bf16"])}


def python_model(who, size, threads):
    model = random_model("checkpoint", size)
    if who == "compressed-tensors":  # transformers decompresses it to bf16 at the first call
        source, model = model, cache() / f"{size}-fp8"
        if not model.exists():
            run([FP8, "quantize", "--model", source, "--out", model, "--dynamic", "--quiet"])
    return {who: rates(size, worker("model", who, model, threads, threads=threads)[0])}


def subjects(parts, without, size):
    """[(part, who, a function of the number of threads)]; each gives {who: {case: {quantity: number}} or why not}."""
    rows = []
    if "convert" in parts:
        rows += [("convert", who, lambda threads, who=who: convert(who, size, threads)) for who in CONVERT]
    if "quality" in parts:
        demo = functools.cache(quality.demo)  # once, and only where something runs
        rows += [("quality", who, lambda threads, who=who: quality.measure(FP8, who, demo(), threads)) for who in (*quality.OURS, *quality.PEERS)]
    if "linear" in parts:
        rows += [("linear", "fp8", fp8_linear), ("linear", "torch and torchao", python_linear)]
    if "model" in parts:
        rows.append(("model", "fp8", lambda threads: fp8_model(size, threads)))
        for kind in ("q8_0", "bf16"):
            name = f"llama.cpp {kind.upper()}"
            rows.append(("model", name, lambda threads, kind=kind, name=name: {
                name: rates(size, peer_packages.llama_bench(kind, size, threads, 128)[0])}))
        rows += [("model", who, lambda threads, who=who: python_model(who, size, threads))
                 for who in ("transformers bf16", "torchao weight-only", "compressed-tensors")]
    return [row for row in rows if not any(word and word in row[1] for word in without)]


def in_turns(rows, threads, rounds):
    """({(case, who): what each round found}, {who: why it does not run})"""
    samples, missing = {}, {}
    for _ in range(rounds):
        for _, who, call in (row for row in rows if row[1] not in missing):
            try:
                found = call(threads)
            except Failed as problem:
                found = {who: str(problem)}
            for name, cases in found.items():
                if isinstance(cases, str):
                    missing[name] = cases
                else:
                    for case, quantities in cases.items():
                        samples.setdefault((case, name), []).append(quantities)
    return samples, missing


def medians(rounds):
    """Of each quantity, and the spread of the first."""
    values = [found[next(iter(found))] for found in rounds]
    middle = {key: float(f"{statistics.median([found[key] for found in rounds]):.5g}") for key in rounds[0]}
    return {**middle, "spread": round(max(values) / min(values), 3)}


def print_part(part, threads, samples, missing):
    for (case, who), rounds in sorted(samples.items()):
        first, found = next(iter(rounds[0])), medians(rounds)
        print(json.dumps({"kernel": "peers", "case": case, "who": who, "threads": threads, **found}), flush=True)
        memory = f"{found['peak_rss'] / 1e6:8.0f} MB" if "peak_rss" in found else ""
        if first != "seconds" and "seconds" in found:
            memory = f"{found['seconds']:8.1f} s{memory}"
        say(f"{case:14} {threads} thread(s)  {who:30} {found[first]:10.5g} {first.replace('_', ' ')}{memory}")
    for who, reason in sorted(missing.items()):
        print(json.dumps({"kernel": "peers", "case": part, "who": who, "threads": threads, "not_run": reason}), flush=True)
        say(f"{part:14} {threads} thread(s)  {who:30} not run: {reason}")


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --peers", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--size", choices=SIZES, default="1.1B")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas between them (default 1,2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="peers to leave out, by parts of their names: torchao,llama.cpp")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"found part {', '.join(sorted(unknown))}, allowed: {', '.join(PARTS)}")
    rows = subjects(options.parts or PARTS, options.without.split(","), options.size)
    packages = {name: version for name, _, version in (text.partition("==") for text in (peer_packages.LLAMA_CPP, *peer_packages.PACKAGES))}
    print(json.dumps({"machine": cpu(), "peers": packages}), flush=True)
    for threads in map(int, options.threads.split(",")):
        for part in dict.fromkeys(row[0] for row in rows):
            print_part(part, threads, *in_turns([row for row in rows if row[0] == part], threads, options.rounds))


if __name__ == "__main__":
    main()
