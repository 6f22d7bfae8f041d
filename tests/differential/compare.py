#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same input to our readers and to other people's: both read the same, or both refuse.

    python3 compare.py BUILD/bin [READER ...] [--cases 100000] [--seed 1] [--json]

Half of the cases are made right, half have been changed at random. What the two do differently is told by table
(differences.py says which differences are meant, and why); another difference is an error, and shown. Exit code 1 then.
Needs numpy, safetensors, PyYAML and torch; a reader whose reference is missing is named and left out."""

import argparse
import collections
import importlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import differences  # noqa: E402
import readers  # noqa: E402

MEMORY, SECONDS = 4 << 30, 5  # of the reference, more than it has: it may take a changed size at its word


def ours(binaries, reader, cases):
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as found:
        for case in cases:
            given.write(struct.pack("<I", len(case)) + case)
        given.seek(0)
        subprocess.run([binaries / "differential_answers", reader], stdin=given, stdout=found, check=True)
        found.seek(0)
        for _ in cases:
            (size,) = struct.unpack("<I", found.read(4))
            yield found.read(size)


REFUSED, DIED = 0xFFFFFFFF, b"died"


def theirs(reference, cases):
    """What the reference makes of each case: DIED where a process of it does (numpy does, of some pickles)."""
    begin = 0
    while begin < len(cases):
        ends = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            with open(ends[1], "wb") as out:
                for case in cases[begin:]:
                    signal.alarm(SECONDS)
                    value = reference(case)
                    out.write(struct.pack("<I", REFUSED) if value is None else struct.pack("<I", len(value)) + value)
                    out.flush()
            os._exit(0)
        os.close(ends[1])
        with open(ends[0], "rb") as found:
            while begin < len(cases):
                head = found.read(4)
                if len(head) < 4:
                    yield DIED
                    begin += 1
                    break
                (size,) = struct.unpack("<I", head)
                yield None if size == REFUSED else found.read(size)
                begin += 1
        os.waitpid(child, 0)


def judge(reader, case, mine, other):
    """(how it is counted, whether it is meant)."""
    accepted = mine[:1] == b"V"
    if accepted and mine[1:] == other:
        return "both read the same", True
    if not accepted and other in (None, DIED):
        return "both refuse" if other is None else "we refuse, the reference dies", True
    message = "" if accepted else mine[1:].decode(errors="replace")
    if accepted and other == DIED:
        return "we read it, the reference dies", True
    way = "we refuse" if not accepted else "they refuse" if other is None else "other values"
    for one in differences.MEANT.get(reader, []):
        if one.way == way and re.search(one.pattern, message if way == "we refuse" else case.decode("latin-1"), re.DOTALL):
            return f"{way}: {one.why}", True
    return f"{way}: {re.sub('[0-9]+', 'N', message)[:80]}", False


def compare(reader, options):
    rng = random.Random(f"{options.seed}:{reader}")
    make, reference = readers.READERS[reader]
    cases = []
    while len(cases) < options.cases:
        cases.extend(make(rng))
    cases = cases[: options.cases]
    counts, shown = collections.Counter(), collections.Counter()
    start = time.monotonic()
    bad = 0
    for case, mine, other in zip(cases, ours(options.binaries, reader, cases), theirs(reference, cases), strict=True):
        how, meant = judge(reader, case, mine, other)
        counts[how] += 1
        if not meant:
            bad += 1
            shown[how] += 1
            if shown[how] <= options.show:
                sides = (("input", case), ("ours", mine), ("theirs", other))
                lines = (f"\n  {side:6} {None if data is None else data[: options.width]!r}" for side, data in sides)
                print(f"{reader}: {how}{''.join(lines)}", file=sys.stderr)
    return {"cases": len(cases), "differ": bad, "seconds": round(time.monotonic() - start), "counts": dict(counts.most_common())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=2, help="cases of each difference")
    parser.add_argument("--width", type=int, default=200, help="bytes shown of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for reader in options.readers or readers.READERS:
        missing = [name for name in readers.NEEDS.get(reader, ()) if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{reader}: left out: no {', '.join(missing)}", file=sys.stderr)
            continue
        results[reader] = compare(reader, options)
        if not options.json:
            row = results[reader]
            print(f"{reader}: {row['cases']} cases, {row['differ']} differ, {row['seconds']} s", flush=True)
            for how, count in row["counts"].items():
                print(f"  {count:8} {how}")
    if options.json:
        print(json.dumps(results))
    return 1 if any(row["differ"] for row in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
