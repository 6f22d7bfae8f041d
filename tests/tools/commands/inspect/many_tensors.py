#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long `fp8 inspect` takes of 10^5 tensors: many_tensors.py --binary build/bin/fp8 --work DIR

50 000 experts' weights of 128 codes with 8 scales each. Prints the best of three runs, and of `--help` of eleven. --limits:
fails where the summary takes more than 2 s or the help more than 30 ms. `./tools/release --check` runs it and ./tools/test
does not: what a busy machine takes says nothing.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import time

EXPERTS, CODES, SCALES = 50_000, 128, 8


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    names = [f"model.layers.{i // 500}.mlp.experts.{i % 500}.down_proj.weight" for i in range(EXPERTS)]
    for name in names:
        header[name] = {"dtype": "F8_E4M3", "shape": [SCALES, CODES // SCALES], "data_offsets": [at, at + CODES]}
        at += CODES
    for name in names:
        header[name + "_scale"] = {"dtype": "F32", "shape": [SCALES, 1], "data_offsets": [at, at + 4 * SCALES]}
        at += 4 * SCALES
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(b"\x38" * (CODES * EXPERTS))
        file.write(struct.pack("<f", 0.5) * (SCALES * EXPERTS))
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "qwen3_moe", "quantization_config": {
            "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}}}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the fp8 program")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="a folder for the checkpoint")
    parser.add_argument("--limits", action="store_true", help="fail where it takes too long")
    options = parser.parse_args()
    write(options.work)
    slow = []

    def take(name, runs, most, *arguments):
        seconds = []
        for _ in range(runs):
            start = time.monotonic()
            subprocess.run([options.binary, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.monotonic() - start)
        print(f"{name}: {min(seconds):.3f} s")
        if most is not None and min(seconds) > most:
            slow.append(f"{name}: {min(seconds):.3f} s, allowed: {most} s")

    take("--help", 11, 0.03, "--help")
    take("inspect", 3, 2, "inspect", options.work)
    for more in ("--all", "--tensors-only", "--json"):
        take("inspect " + more, 3, None, "inspect", options.work, more)
    if options.limits and slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
