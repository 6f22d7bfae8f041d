# SPDX-License-Identifier: Apache-2.0
"""All benchmarks at 1 and 2 threads, with the machine they ran on, into a file of tools/benchmarks/results.

    ./tools/bench --record NAME [FILTER...]      e.g. ./tools/bench --record zen4-2-cores gemm gemv

Without a filter every case of fp8_bench runs (about half an hour on two cores), and 'model' also with 1.1 billion
weights. The first line of the file is the machine; each further one is a case, as fp8_bench prints it, and its date. A
case that is not measured anew keeps its line.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

import peers

RESULTS = pathlib.Path(__file__).parent / "results"
FILTERS = ("limits", "amax", "attention", "cast", "checkpoint", "data", "decode e4m3", "decode e5m2", "gemm", "gemv", "model decode 0.1B",
           "model decode 1.1B", "model prefill 0.1B", "model prefill 1.1B", "overhead", "startup", "training")


def case_of(line):
    """What one line of a file measured."""
    return line["kernel"], line["case"], line.get("simd"), line["threads"]


def measured(text, threads):
    """The lines that fp8_bench prints for a filter, at a number of threads, by case."""
    command = [os.environ["FP8_BENCH"], text, "--threads", str(threads)]
    print(f"record: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"record: error: fp8_bench '{text}' ended with {done.returncode}")
    today = datetime.date.today().isoformat()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {case_of(line): {**line, "date": today} for line in lines}


def recorded(path, machine):
    """The cases of a file of this machine, by case, each with its date."""
    if not path.exists():
        return {}
    head, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if head["machine"] != machine:
        sys.exit(f"record: error: {path.name} is of another machine: {head['machine']}, this is {machine}")
    return {case_of(line): {"date": head.get("date"), **line} for line in lines}


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --record", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the file: of the machine")
    parser.add_argument("filters", nargs="*", default=FILTERS)
    options = parser.parse_args()
    machine = peers.cpu()
    path = RESULTS / f"{options.name}.jsonl"
    cases = recorded(path, machine)
    for threads in (1, 2):
        for text in options.filters:
            cases |= measured(text, threads)
    RESULTS.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    lines = [{"machine": machine}, *sorted(cases.values(), key=lambda line: line["threads"])]
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    temporary.replace(path)
    print(f"record: wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
