# SPDX-License-Identifier: Apache-2.0
"""Numbers of README.md and the pages that stand in tools/benchmarks/results: each is the file's, rounded to the digits
that the page shows. A table of a page is of the file that is named last before it."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
RESULTS = ROOT / "tools/benchmarks/results"
sys.path.insert(0, str(ROOT / "tools/benchmarks"))
import readme  # noqa: E402

# What the first cell of a row calls what a file calls "who".
WHO = {
    "fp8, dynamic scales of tokens": "fp8", "the same model in bf16": "fp8's own bf16", "llama.cpp Q8_0": "llama.cpp Q8_0",
    "llama.cpp BF16": "llama.cpp BF16", "transformers 5.17 in bf16": "transformers bf16", "torchao 0.18, fp8 weights": "torchao weight-only",
    "transformers of a compressed-tensors checkpoint (decompressed to bf16)": "compressed-tensors",
    "`fp8 quantize --dynamic`": "fp8 --dynamic", "`fp8 quantize --weights-only`": "fp8 --weights-only", "`cp`": "cp", "`cp` and `sync`": "cp, sync",
    "compressed-tensors 0.19": "compressed-tensors", "torchao 0.18, weight-only": "torchao weight-only",
    "llm-compressor 0.14 oneshot": "llm-compressor oneshot", "llm-compressor 0.14 model_free_ptq": "llm-compressor model_free_ptq",
    "fp8, packed": "fp8, packed weight", "fp8, row-major": "fp8, row_major weight", "torch in bf16": "torch bf16",
    "torchao with fp8 weights": "torchao weight-only", "torchao with fp8 weights, compiled": "torchao weight-only compiled",
}
SWEEP = {"fp8": "fp8", "fp8's own bf16": "bf16", "llama.cpp Q8_0": "llama.cpp Q8_0", "llama.cpp BF16": "llama.cpp BF16"}
# What a head of a column shows: (case, quantity, what it is divided by, threads).
COLUMNS = {
    "decode, 1 / 2 threads": ("decode 1.1B", "tokens_per_second", 1, (1, 2)),
    "prefill of 128 tokens, 1 / 2 threads": ("prefill 1.1B", "tokens_per_second", 1, (1, 2)),
    "seconds": ("convert 1.1B", "seconds", 1, (1, 2)),
    "without imports": ("convert 1.1B", "seconds_without_imports", 1, (1, 2)),
    "1 row": ("linear M=1", "microseconds", 1000, (1,)), "16 rows": ("linear M=16", "microseconds", 1000, (1,)),
    "512 rows": ("linear M=512", "microseconds", 1000, (1,)),
    **{size: (f"parameters {size}", "peak_rss", 1e9, (2,)) for size in ("0.1B", "1.1B", "3B")},
}
MACHINES = {"Zen 4": "zen4-2-cores", "Zen 5": "zen5-2-cores", "Emerald Rapids": "emerald-rapids-2-cores"}
RECIPES = {"habana HYBRID": "habana HYBRID", "E5M2": "habana E5M2", "nvidia": "nvidia", "current": "current", "block": "block", "mxfp8": "mxfp8"}


def lines_of(name):
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def same(shown, values):
    """Is each of the numbers "a / b" that value, rounded to as many digits?"""
    texts = [text.strip() for text in shown.split("/")]
    if len(texts) != len(values):
        return False
    if not all(re.fullmatch(r"\d[\d,]*(\.\d+)?", text) for text in texts):
        return False
    halves = [0.5001 * 10 ** -len(text.partition(".")[2]) for text in texts]
    return all(abs(float(text.replace(",", "")) - value) <= half for text, value, half in zip(texts, values, halves))


def tables(text):
    """[(number of the head's line, file named last before it, cells of the head, [cells of a row])]"""
    found, file = [], None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for name in re.findall(r"results/([\w.-]+\.jsonl)", line):
            file = name
        if line.startswith("|") and number < len(lines) and re.match(r"\|\s*:?-", lines[number]):
            rows = []
            for row in lines[number + 1:]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip().strip("|").split("|")])
            found.append((number, file, [cell.strip() for cell in line.strip().strip("|").split("|")], rows))
    return found


def peers_of(file, head, row):
    """[(cell, values)] of a row about programs."""
    if file is None or row[0] not in WHO:
        return
    lines = [line for line in lines_of(file) if line.get("who") == (SWEEP.get(WHO[row[0]]) if "-sweep" in file else WHO[row[0]])]
    for name, cell in zip(head[1:], row[1:]):
        if name in COLUMNS and cell:
            case, key, by, threads = COLUMNS[name]
            yield cell, [line[key] / by for t in threads for line in lines if case in (line["case"], f"{line['case']} {line.get('size')}") and line["threads"] == t and key in line]


def training_of(head, row):
    """[(cell, values)] of a row about a training step on a machine."""
    if row[0] not in MACHINES or not set(RECIPES) & set(head):
        return
    lines = [line for line in lines_of(f"{MACHINES[row[0]]}.jsonl") if line.get("kernel") == "training"]
    for name, cell in zip(head[1:], row[1:]):
        yield cell, [line["step_ratio"] for t in (1, 2) for line in lines if line["case"] == RECIPES.get(name) and line["threads"] == t]


def families_of(head, row):
    """[(cell, values)] of a row about a family of models."""
    if head[0] != "model_type":
        return
    ratios = {line["case"]: line["per_flop"] for line in lines_of("families.jsonl") if line.get("kernel") == "families"}
    for name, cell in zip(head, row):
        if name in ("decode", "prefill") and cell:
            yield cell, [ratios[f"{name} {row[0]}"]] if f"{name} {row[0]}" in ratios else []


def table_problems(text):
    for number, file, head, rows in tables(text):
        for at, row in enumerate(rows, number + 2):
            for cell, values in (*peers_of(file, head, row), *training_of(head, row), *families_of(head, row)):
                if not same(cell, values):
                    there = " / ".join(f"{value:.5g}" for value in values) or "nothing"
                    yield at, f"'{row[0]}': shows {cell}, the file of results has {there}"


def matrix_counts():
    """{verdict: rows} of the matrix of families: a line of its table has the forms of one verdict."""
    counts = {}
    for line in (ROOT / "tests/families/table.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 4 and cells[0] not in ("type", "---"):
            counts[cells[2]] = counts.get(cells[2], 0) + len(cells[3].split())
    return counts


def readme_problems(text):
    """What README.md says of the matrix of families and of speed."""
    counts = matrix_counts()
    wanted = (f"{counts['right']:,} forms load and compute what the model does, {counts['unread']} do not, as `--check` says, "
              f"and {counts['refused']} are refused by name")
    if counts.get("wrong"):
        yield 1, f"tests/families/table.md: {counts['wrong']} forms are wrong"
    if wanted not in " ".join(text.split()):
        yield 1, f"expected '{wanted}', which tests/families/table.md counts"
    shown = text.partition(readme.BEGIN)[2].partition(readme.END)[0]
    if shown != readme.table(*readme.stored()):
        yield 1, "the table of 'Measured' is not that of tools/benchmarks/results/readme.jsonl: ./tools/bench --readme --stored prints it"


def self_test(found):
    if not same("22.1 / 28", [22.087, 27.606]) or same("22.1", [22.16]) or same("22.1 / 28", [22.087]):
        found.append("check_numbers: same() is wrong")
    text = "`results/zen4-2-cores-peers.jsonl`\n\n| | decode, 1 / 2 threads |\n|---|---|\n| llama.cpp Q8_0 | 18.3 / 21.6 |\n"
    if [line for line, _ in table_problems(text)] != [5]:
        found.append("check_numbers: a wrong cell is not found")
