#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py BUILD: what the fuzzers of a build with FP8_FUZZ_COVERAGE have done; what ./tools/test --fuzz-report ends in.

A table by target: runs and edges of its last run (tests/fuzz/run), and how many lines of its reader the seeds and all
that was found since reach. Below it stand the functions that nothing reaches, of each reader below 90 %. Exit code 1
where a target has found something, or the seeds are larger than 2 MB."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
MOST_OF_SEEDS, ENOUGH = 2 << 20, 0.9
ZIP, PICKLE, TENSORS = "runtime/io/tensors/zip.cpp", "runtime/io/pickle", "runtime/io/tensors/"
TOKENIZERS = ("tools/text/tokenizer.cpp", "tools/text/words", "tools/text/steps")
FOLDERS = ("quant/checkpoint", "quant/forms", "quant/names", "runtime/io/tensors/checkpoint.cpp")
# What reads the files of each target: sources and folders.
READERS = {
    "json": ("runtime/io/json/json.cpp",),
    "yaml": ("runtime/io/yaml",),
    "idx": ("runtime/io/idx",),
    "image": ("runtime/io/images",),
    "safetensors": (TENSORS + "safetensors.cpp", TENSORS + "tensor_file.cpp"),
    "torch_file": (TENSORS + "torch_file.cpp", TENSORS + "tensor_file.cpp", ZIP, PICKLE),
    "npz": (TENSORS + "npz.cpp", ZIP, PICKLE),
    "pickle": (PICKLE,),
    "quant_config": ("configs/quant_config.cpp", "configs/quant_config_keys.cpp", "configs/name_patterns.cpp"),
    "recipe": ("configs/recipe_config.cpp",),
    "training_config": ("configs/training",),
    "measurement": ("measure/files/measurement_file.cpp", "measure/files/stats_files.cpp"),
    "scales": ("quant/scale_file",),
    "model_config": ("quant/names", "quant/forms/ignore_list.cpp"),
    "tokenizer": TOKENIZERS,
    "vocabulary": ("tools/text/files", *TOKENIZERS),
    "tekken": ("tools/text/files", *TOKENIZERS),
    "chat_template": ("tools/text/jinja",),
    "data_rows": ("tools/text/data", "tools/text/dataset.cpp"),
    "trace": ("tools/commands/inspect/trace_sums.cpp",),
    "checkpoint": FOLDERS,
    "calibrated": (*FOLDERS, "quant/plan", "measure/files"),
    "resumed": ("quant/checkpoint/stream", "runtime/io/json/resumable_file.cpp"),
    "joined": ("runtime/io/shares",),
}


def tool(name):
    found = shutil.which(f"{name}-16") or shutil.which(name)
    if found is None:
        sys.exit(f"fuzz report: no {name}: run ./tools/setup --fuzz")
    return found


def last_run(build, target):
    """(runs, edges) of a log of libFuzzer; None where it has not ended."""
    log = build / "findings" / f"{target}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    runs, edges = re.search(r"number_of_executed_units: (\d+)", text), re.findall(r" cov: (\d+)", text)
    return (int(runs[1]), int(edges[-1])) if runs and edges else (None, None)


def coverage(build, target):
    """What llvm-cov knows of a target's reader, when it has read the seeds and all that was found."""
    binary, folder = build / "bin" / f"fuzz_{target}", build / "coverage"
    folder.mkdir(exist_ok=True)
    raw, merged = folder / f"{target}.profraw", folder / f"{target}.profdata"
    corpora = [one for one in (build / "corpus" / target, FOLDER / "seeds" / target) if one.is_dir()]
    subprocess.run([binary, "-runs=0", "-timeout=60", "-verbosity=0", *corpora], env=os.environ | {"LLVM_PROFILE_FILE": str(raw)}, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", raw, "-o", merged], check=True)
    raw.unlink()
    sources = [ROOT / path for path in READERS[target]]
    for path in sources:
        if not path.exists():
            sys.exit(f"fuzz report: {target}: no {path}: correct the table of readers in {__file__}")
    run = subprocess.run([tool("llvm-cov"), "export", binary, f"-instr-profile={merged}", *sources], check=True, capture_output=True)
    return json.loads(run.stdout)["data"][0]


def lines_of(found):
    files = [one["summary"]["lines"] for one in found["files"]]
    return sum(one["covered"] for one in files), sum(one["count"] for one in files)


def unreached(found):
    """[(lines, file, name)] of functions that no input enters, the longest first."""
    ours = {one["filename"] for one in found["files"]}
    rows = {}
    for one in found["functions"]:
        file, (first, *_), last = one["filenames"][0], one["regions"][0], one["regions"][0][2]
        if file in ours:  # of a template each instance has a row
            count, _, _ = rows.get((file, first), (0, 0, ""))
            rows[file, first] = (max(count, one["count"]), last - first + 1, one["name"])
    names = [(lines, os.path.relpath(file, ROOT), name) for (file, _), (count, lines, name) in rows.items() if count == 0]
    return sorted(names, reverse=True)


def readable(name):
    """A mangled name without its parameters and namespaces."""
    text = subprocess.run(["c++filt", name.split(":")[-1]], capture_output=True, text=True).stdout.strip()
    text = text.replace("(anonymous namespace)::", "").replace("fp8::", "")
    return text.split("(")[0] or name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    build = parser.parse_args().build.resolve()
    targets = sorted(one.name for one in (FOLDER / "seeds").iterdir())
    if targets != sorted(READERS):
        sys.exit(f"fuzz report: targets without readers, or readers without seeds: {sorted(set(targets) ^ set(READERS))}")
    print("| target | runs | edges | lines of its reader | reached |\n|---|---:|---:|---:|---:|")
    rest = []
    for target in READERS:
        runs, edges = last_run(build, target)
        found = coverage(build, target)
        covered, lines = lines_of(found)
        print(f"| {target} | {runs or 'none'} | {edges or 'none'} | {lines} | {100 * covered / lines:.1f} % |", flush=True)
        if covered < ENOUGH * lines:
            rest.append((target, lines - covered, unreached(found)))
    for target, lines, names in rest:
        print(f"\n{target}: {lines} lines are not reached, of them {sum(count for count, _, _ in names)} in functions that nothing enters:")
        for count, file, name in names[:12]:
            print(f"  {count:4} {file} {readable(name)}")
    size = sum(one.stat().st_size for one in (FOLDER / "seeds").rglob("*") if one.is_file())
    print(f"\nseeds: {size} bytes of at most {MOST_OF_SEEDS}")
    findings = [one.name for one in (build / "findings").iterdir() if one.suffix != ".log"] if (build / "findings").is_dir() else []
    if findings:
        print(f"findings: {', '.join(sorted(findings))}")
    return 1 if findings or size > MOST_OF_SEEDS else 0


if __name__ == "__main__":
    sys.exit(main())
