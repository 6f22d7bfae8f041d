# SPDX-License-Identifier: Apache-2.0
"""Runs of fp8 train that the cluster's tests compare: small, of the embedded model and text."""

import hashlib
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "tools/demo_data/kjv-byte-1.7M"
TEXT = ROOT / "tools/demo_data/kjv_calib.txt"


def command(binary, out, steps, *more, batch=2, seq_len=64, precision="32-true"):
    """fp8 train from drawn weights."""
    return [str(binary), "train", "--init", str(DEMO), "--data", str(TEXT), "--out", str(out), "--steps", str(steps), "--batch", str(batch),
            "--seq-len", str(seq_len), "--warmup", "2", "--precision", precision, "--save-dtype", "f32", *map(str, more)]


def weights(out):
    """What the run has written, as one sum over all its weights' files."""
    total = hashlib.sha256()
    files = sorted(pathlib.Path(out).rglob("model*.safetensors"))
    files = [f for f in files if "checkpoint" not in str(f.relative_to(out))] or files
    if not files:
        raise FileNotFoundError(f"{out}: no model*.safetensors")
    for path in files:
        total.update(path.read_bytes())
    return total.hexdigest()


def log(out):
    """The rows of log.jsonl that have a loss."""
    rows = [json.loads(line) for line in (pathlib.Path(out) / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def losses(out):
    return [row["loss"] for row in log(out)]


def half_written(folder):
    """Temporary files that a run has left where its outputs are."""
    return [str(path) for path in pathlib.Path(folder).rglob("*") if path.is_file() and (".tmp" in path.name or path.name.startswith("."))]
