#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether TensorBoard itself reads what `fp8 train --logger` writes: log.jsonl, metrics.csv and the event file hold the
same numbers. --binary: the program."""
import argparse
import csv
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

DEMO = pathlib.Path(__file__).resolve().parents[4] / "tools" / "demo_data"


def flat(entry, prefix=""):
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        elif value is not None and not isinstance(value, str):
            yield prefix + key, float(value)


def f32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    options, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        subprocess.run([options.binary, "train", "--init", DEMO / "kjv-byte-1.7M", "--data", DEMO / "kjv_calib.txt",
                        "--eval", DEMO / "kjv_heldout_16k.txt", "--out", out, "--steps", "4", "--batch", "2",
                        "--seq-len", "32", "--precision", "fp8", "--stats-every", "2", "--quiet",
                        "--logger", "csv", "--logger", "tensorboard"], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        events = EventAccumulator(str(out / "tensorboard"))
        events.Reload()
        with open(out / "metrics.csv", newline="") as file:
            table = list(csv.DictReader(file))
        assert len(rows) == len(table) == 4, (len(rows), len(table))
        expected = {}
        for row, cells in zip(rows, table):
            for name, number in flat(row):
                assert float(cells[name]) == number, (name, cells[name], number)
                if name != "step":
                    expected.setdefault(name, []).append((row["step"], f32(number)))
        found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        found.pop("step", None)
        assert found == expected, (sorted(found), sorted(expected))
        print(f"{len(expected)} numbers of 4 steps: log.jsonl, metrics.csv and the event file agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
