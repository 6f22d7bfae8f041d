# SPDX-License-Identifier: Apache-2.0
"""Time and memory of whole models against parameters, context and threads, beside llama.cpp; numbers and a plot.

    ./tools/bench --sweep NAME [--only parameters,context,threads] [--rounds 3] [--without llama.cpp]

Writes tools/benchmarks/results/NAME-sweep.jsonl, a point as soon as it is measured (a run that is cut short goes on
where it ended; --again measures anew), and NAME-sweep.svg.

    parameters   Llamas of 0.1, 1.1 and 3 billion random weights, 2 threads, context 128
    threads      that of 1.1 billion, 1 and 2 threads, context 128
    context      that of 0.1 billion, 2 threads, 128 to 32768 tokens before the one that is timed

decode and prefill: tokens a second, one at a time and 128 at once, fp8 and bf16 in turns in one process (fp8_bench);
after longer contexts as `fp8 generate` tells it. peak_rss: of `fp8 generate` or llama-bench, from start to end.
of_allowed: that of `fp8 generate` by what it may be: `fp8 doctor` + 1.1 x weights + cache.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile

import peer_packages
import plot
import random_models
from peer_packages import Failed, measured, random_model, run, say
from peers import FP8, cpu, fp8_bench

RESULTS = pathlib.Path(__file__).parent / "results"
CONTEXTS = (128, 1024, 4096, 16384, 32768)
WHO = ("fp8", "bf16", "llama.cpp Q8_0", "llama.cpp BF16")
POINT = ("who", "size", "threads", "context")
STEPS = 32  # tokens that generate adds


def points(only):
    """[(plot, size, threads, context)]"""
    found = [("parameters", size, 2, 128) for size in random_models.SIZES]
    found += [("threads", "1.1B", threads, 128) for threads in (1, 2)]
    found += [("context", "0.1B", 2, context) for context in CONTEXTS]
    found.sort(key=lambda point: (point[3] > 4096, point[1] == "3B"))  # minutes each: last
    return [point for point in found if point[0] in only]


def checkpoint(who, size):
    """The folder of the model, made when it is missing."""
    source = random_model("checkpoint", size)
    if who == "bf16":
        return source
    made = random_models.cache() / f"{size}-fp8"
    if not made.exists():
        run([FP8, "quantize", "--model", source, "--out", made, "--dynamic", "--quiet"])
    return made


def cache_bytes(size, context):
    """Of bf16 keys and values."""
    hidden, _, layers, heads, kv_heads = random_models.SIZES[size]
    return 2 * 2 * layers * hidden // heads * kv_heads * (context + STEPS + 1)


def generate(who, size, threads, context):
    """{"decode", "peak_rss", "of_allowed"} of `fp8 generate`."""
    model = checkpoint(who, size)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write("a" * context)
        prompt.flush()
        text, _, peak = measured([FP8, "generate", "--model", model, "--prompt-file", prompt.name, "--tokens", STEPS + 1,
                                  "--threads", threads, "--json", "--quiet"])
    _, _, doctor = measured([FP8, "doctor", "--quiet"])
    allowed = doctor + 1.1 * (model / "model.safetensors").stat().st_size + cache_bytes(size, context)
    return {"decode": json.loads(text)["tokens_per_second"], "peak_rss": peak, "of_allowed": peak / allowed}


def measure(who, size, threads, context, benched):
    if who.startswith("llama.cpp"):
        kind = who.split()[1].lower()
        found, peak = peer_packages.llama_bench(kind, size, threads, context, prefill=context == 128)
        return {**found, "peak_rss": peak}
    found = generate(who, size, threads, context)
    if context == 128:
        if (size, threads) not in benched:
            benched[size, threads] = fp8_bench(size, threads)
        found |= benched[size, threads][who]
    return found


def measure_in_turns(subjects, size, threads, context, rounds):
    """{who: medians of the rounds, with the spread (largest / smallest) of decode; or why it did not run}"""
    samples, missing = {who: [] for who in subjects}, {}
    for _ in range(rounds):
        benched = {}
        for who in subjects:
            try:
                if who not in missing:
                    samples[who].append(measure(who, size, threads, context, benched))
            except Failed as problem:
                missing[who] = {"not_run": str(problem)}
    result = {}
    for who in subjects:
        if who in missing:
            result[who] = missing[who]
            continue
        medians = {name: statistics.median([found[name] for found in samples[who]]) for name in samples[who][0]}
        decodes = [found["decode"] for found in samples[who]]
        result[who] = {name: float(f"{value:.5g}") for name, value in {**medians, "spread": max(decodes) / min(decodes)}.items()}
    return result


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --sweep", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the files: of the machine")
    parser.add_argument("--only", default="parameters,threads,context")
    parser.add_argument("--without", default="", help="llama.cpp: without it")
    parser.add_argument("--rounds", type=int, default=3, help="in turns; medians are written (default 3)")
    parser.add_argument("--again", action="store_true", help="what stands in the file is measured anew")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{options.name}-sweep.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() and not options.again else []
    if not lines:
        lines = [{"machine": cpu(), "peers": [peer_packages.LLAMA_CPP]}]
    for kind, size, threads, context in points(options.only.split(",")):
        keys = {who: {"kernel": "sweep", "case": kind, "who": who, "size": size, "threads": threads, "context": context}
                for who in WHO if not options.without or options.without not in who}
        for who, key in keys.items():  # the same point of another plot is measured once
            known = [line for line in lines if "peak_rss" in line and all(line[name] == key[name] for name in POINT)]
            if known and not any(line["case"] == kind for line in known):
                lines.append({**known[0], "case": kind})
        left = [who for who, key in keys.items() if not any(line.items() >= key.items() and "not_run" not in line for line in lines)]
        for who, found in measure_in_turns(left, size, threads, context, options.rounds).items():
            say(f"{kind} {size} threads {threads} context {context} {who}: {found}")
            lines = [line for line in lines if not line.items() >= keys[who].items()] + [{**keys[who], **found}]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        os.replace(temporary, path)
    lines = lines[:1] + sorted(lines[1:], key=lambda line: (line["case"], line["threads"], line["context"]))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plot.write(lines, path.with_suffix(".svg"))
    say(f"wrote {path} and {path.with_suffix('.svg').name}")


if __name__ == "__main__":
    main()
