# SPDX-License-Identifier: Apache-2.0
"""All benchmarks at 1 and 2 threads, with the machine they ran on, into a file of tools/benchmarks/results.

    ./tools/bench --record NAME [FILTER...]      e.g. ./tools/bench --record zen4-2-cores

Without a filter every case of fp8_bench runs (about half an hour on two cores), and 'model' also with 1.1 billion
weights. The first line of the file is the machine; each further one is a case, as fp8_bench prints it.
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
FILTERS = ("amax", "attention", "cast", "checkpoint", "data", "decode e4m3", "decode e5m2", "gemm", "gemv", "model decode 0.1B", "model decode 1.1B",
           "model prefill 0.1B", "model prefill 1.1B", "overhead", "startup", "training")


def lines_of(text, threads):
    """What fp8_bench prints for a filter, at a number of threads."""
    command = [os.environ["FP8_BENCH"], text, "--threads", str(threads)]
    print(f"record: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"record: error: fp8_bench '{text}' ended with {done.returncode}")
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench --record", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the file: of the machine")
    parser.add_argument("filters", nargs="*", default=FILTERS)
    options = parser.parse_args()
    found = [json.dumps({"machine": peers.cpu(), "date": datetime.date.today().isoformat()})]
    for threads in (1, 2):
        for text in options.filters:
            found += lines_of(text, threads)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{options.name}.jsonl"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(line + "\n" for line in dict.fromkeys(found)), encoding="utf-8")
    temporary.replace(path)
    print(f"record: wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
