# SPDX-License-Identifier: Apache-2.0
"""The table "Measured" of README.md: measures its rows; tools/benchmarks/results/readme.jsonl holds them.

    ./tools/bench --readme [ROW...] [--rounds 3] [--text FILE]    measures and prints rows as README.md has them
    ./tools/bench --readme [ROW...] --write                       also writes them to the file and to README.md
    ./tools/bench --readme --stored                               prints the table of the file, measures nothing

Rows: convert, decode, prefill, memory, training, demo, smollm2, chat. The last two need --text: WikiText-2 (raw,
validation), or any text of 1 MB. Programs run in turns; numbers are medians of the rounds, and the spread is the
largest round by the smallest. A test compares README.md and the pages with the files of results.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tools/benchmarks/results"
STORED = RESULTS / "readme.jsonl"
SIZE = "1.1B"
BEGIN, END = "<!-- table: ./tools/bench --readme --write -->\n", "<!-- end of table -->\n"

# --- what the table shows


def number(value, digits=3):
    """Three digits: 1.05, 22.1, 179."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text or value >= 100 else text + "0" * (value >= 1 and "." in text and len(text) < 4)


def both(lines, who, key, write=number):
    """That quantity on one thread and on two: "1.05 / 0.68"; "not run" where neither did."""
    found = [write(line[key]) for threads in (1, 2) for line in lines if line["who"] == who and line["threads"] == threads and key in line]
    return " / ".join(found) or "not run"


def size(value):
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def most(lines, who):
    found = [line["peak_rss"] for line in lines if line["who"] == who and "peak_rss" in line]
    return f", {size(max(found))}" if found else ""


def spread(lines):
    """Of fp8's own lines."""
    found = [line["spread"] for line in lines if line["who"].startswith("fp8") and "spread" in line]
    return f"{max(found):.2f}" if found else "exact" if "perplexity" in lines[0] else "-"


def convert_row(lines):
    others = [f"{shown} {both(lines, who, 'seconds')} s{most(lines, who)}" for who, shown in (
        ("cp, sync", "`cp` and `sync`"), ("llm-compressor oneshot", "llm-compressor"), ("torchao weight-only", "torchao"),
        ("compressed-tensors", "compressed-tensors"))]
    return ["converting 2.2 GB of bf16", both(lines, "fp8 --dynamic", "seconds") + " s" + most(lines, "fp8 --dynamic"), "; ".join(others)]


def rate_row(lines, what):
    others = [f"{shown} {both(lines, who, 'tokens_per_second')}" for who, shown in (
        ("llama.cpp Q8_0", "llama.cpp Q8_0"), ("llama.cpp BF16", "BF16"), ("fp8's own bf16", "fp8 in bf16"),
        ("transformers bf16", "transformers in bf16"), ("torchao weight-only", "torchao in fp8"))]
    return [what, both(lines, "fp8", "tokens_per_second"), "; ".join(others)]


def memory_row(lines):
    found = {line["who"]: size(line["peak_rss"]) for line in lines}
    return ["memory of `fp8 generate`", found["fp8"],
            f"llama.cpp Q8_0 {found['llama.cpp Q8_0']}, BF16 {found['llama.cpp BF16']}; fp8 in bf16 {found['bf16']}"]


def training_row(lines):
    def ratios(*recipes):
        found = [sorted(line["step_ratio"] for line in lines if line["threads"] == threads and line["case"] in recipes) for threads in (1, 2)]
        return " / ".join(f"{values[0]:.2f} to {values[-1]:.2f}" if len(values) > 1 else f"{values[0]:.2f}" for values in found)

    return ["a training step, in units of bf16 autocast's", f"one scale per tensor {ratios('habana HYBRID', 'habana E5M2', 'nvidia', 'current')}",
            f"blocks {ratios('block')}; MXFP8 {ratios('mxfp8')}"]


def change(line, before):
    return f"{100 * (line['perplexity'] / before['perplexity'] - 1):+.2f} %"


def kl_of(line):
    """With its 95 % interval, where evaluate gave one."""
    around = line.get("intervals", {}).get("kl")
    return f"{line['kl']:.4f}" + (f" ({around[0]:.4f} to {around[1]:.4f})" if around else "")


def demo_row(lines):
    changes, kl = [100 * (line["perplexity"] / line["reference_perplexity"] - 1) for line in lines], [line["kl"] for line in lines]
    return ["perplexity of the demo model, 16 KB of text in chunks of 64 to 256; KL",
            f"static {min(changes):+.2f} to {max(changes):+.2f} %; {min(kl):.4f} to {max(kl):.4f}", "bf16 is 0"]


def quality_row(lines, what):
    found = {line["who"]: line for line in lines}
    before, plain, best = found["bf16"], found["fp8 --dynamic"], found["fp8 --dynamic, gptq and mse"]
    return [f"{what}, {before['tokens']:,} tokens: perplexity, KL",
            f"{plain['perplexity']:.3f} ({change(plain, before)}), {kl_of(plain)}; with both roundings {best['perplexity']:.3f} ({change(best, before)}), {kl_of(best)}",
            f"bf16 {before['perplexity']:.3f}"]


ROWS = {
    "convert": convert_row,
    "decode": lambda lines: rate_row(lines, "decoding, tokens a second"),
    "prefill": lambda lines: rate_row(lines, "prefill of 128 tokens, tokens a second"),
    "memory": memory_row,
    "training": training_row,
    "demo": demo_row,
    "smollm2": lambda lines: quality_row(lines, "SmolLM2-135M at 2048"),
    "chat": lambda lines: quality_row(lines, "SmolLM2-135M, chats by its template"),
}

OF_TEXT = ("smollm2", "chat")


def stored():
    """(what the first line says, {row: lines})"""
    head, *lines = (json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines())
    return head, {row: [line for line in lines if line["row"] == row] for row in ROWS}


def table(head, rows):
    """The table of README.md, and the sentence below it."""
    shown = [[*ROWS[row](lines), spread(lines), f"`./tools/bench --readme {row}{' --text TEXT' if row in OF_TEXT else ''}`"] for row, lines in rows.items() if lines]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in [["what", "fp8", "others", "spread", "command"], ["---"] * 5, *shown])
    when = sorted({(line["date"], line["commit"]) for lines in rows.values() for line in lines})
    versions = ", ".join(f"{name} {version}" for name, version in head["peers"].items())
    dates = ", ".join(f"{date} at {commit}" for date, commit in when)
    return f"{text}\nMachine: {head['machine']['cpu']}, {head['machine']['cores']} cores, {head['machine']['flags'][-1]}.\nMeasured: {dates}.\nBeside: {versions}.\n"


# --- how the rows are measured


def in_turns(rows, rounds, case=None):
    """Lines of the subjects of peers.py, on one thread and on two."""
    import peers

    lines = []
    for threads in (1, 2):
        samples, missing = peers.in_turns(rows, threads, rounds)
        lines += [{"who": who, **peers.medians(found), "threads": threads} for (name, who), found in samples.items() if case in (None, name)]
        lines += [{"who": who, "threads": threads, "not_run": reason} for who, reason in missing.items()]
    return lines


def measure_part(part, case):
    def measure(options):
        import peers

        return in_turns(peers.subjects([part], [], SIZE), options.rounds, case and f"{case} {SIZE}")

    return measure


def measure_memory(options):
    import sweep

    found = sweep.measure_in_turns(sweep.WHO, SIZE, 2, 128, options.rounds)
    return [{"who": who, "threads": 2, **values} for who, values in found.items()]


def measure_training(_):
    import peers

    lines = []
    for threads in (1, 2):
        for line in map(json.loads, peers.run([peers.FP8_BENCH, "training", "--threads", threads]).splitlines()):
            lines.append({"who": "fp8", **{key: line[key] for key in ("case", "threads", "step_ratio", "spread", "torch_spread")}})
    return lines


def measure_demo(_):
    import peers
    import quality

    lines = []
    with tempfile.TemporaryDirectory() as work:
        stats, out = pathlib.Path(work) / "stats", pathlib.Path(work) / "fp8"
        peers.run([peers.FP8, "measure", "--model", quality.DEMO / "kjv-byte-1.7M", "--data", quality.DEMO / "kjv_calib.txt", "--out", stats, "--quiet"])
        peers.run([peers.FP8, "quantize", "--model", quality.DEMO / "kjv-byte-1.7M", "--measurements", stats, "--out", out, "--quiet"])
        for length in (64, 128, 256):
            found = quality.judged(peers.FP8, out, quality.DEMO / "kjv-byte-1.7M", quality.DEMO / "kjv_heldout_16k.txt", "--seq-len", length, "--dtype", "f32")
            lines.append({"who": "fp8 static", "seq_len": length, **found})
    return lines


def measure_quality(chat):
    def measure(options):
        import peers
        import quality

        if options.text is None:
            sys.exit("readme: error: found no --text, allowed: a text of 1 MB or more, such as WikiText-2 (raw, validation)")
        return [{**line, "text": pathlib.Path(options.text).name} for line in quality.smollm2_lines(peers.FP8, pathlib.Path(options.text), chat)]

    return measure


MEASURES = {"convert": measure_part("convert", None), "decode": measure_part("model", "decode"), "prefill": measure_part("model", "prefill"),
            "memory": measure_memory, "training": measure_training, "demo": measure_demo, "smollm2": measure_quality(False),
            "chat": measure_quality(True)}


def write(head, rows):
    STORED.write_text("".join(json.dumps(line) + "\n" for line in [head, *(line for lines in rows.values() for line in lines)]), encoding="utf-8")
    page = ROOT / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    page.write_text(before + BEGIN + table(head, rows) + mark + after, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --readme", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", help="what SmolLM2 is judged on")
    parser.add_argument("--write", action="store_true", help="into results/readme.jsonl and README.md")
    parser.add_argument("--stored", action="store_true", help="print the file's table")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"found row {', '.join(sorted(unknown))}, allowed: {', '.join(ROWS)}")
    head, rows = stored()
    wanted = options.rows or list(ROWS)
    if options.stored:
        print(table(head, {row: rows[row] for row in wanted}), end="")
        return
    import peer_packages
    import peers

    machine = peers.cpu()
    if options.write and machine != head["machine"] and set(wanted) != set(ROWS):
        parser.error(f"the file is of another machine, {head['machine']}; --write all rows")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    made = {"commit": commit, "date": datetime.date.today().isoformat()}
    head = {"machine": machine, "peers": {name: version for name, _, version in (
        text.partition("==") for text in (peer_packages.LLAMA_CPP, *peer_packages.PACKAGES))}}
    for row in wanted:
        rows[row] = [{"row": row, **line, **made} for line in MEASURES[row](options)]
        print(table(head, {row: rows[row]}), flush=True)
        if options.write:
            write(head, rows)


if __name__ == "__main__":
    main()
