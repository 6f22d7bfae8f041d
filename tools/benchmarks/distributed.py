# SPDX-License-Identifier: Apache-2.0
"""Commands on two ranks beside one, each rank on a core of its own: what sharing the work costs.

    ./tools/bench distributed [--rounds 3]

One JSON line per case. `independent`: two processes at once that know nothing of each other, each with all of the work
or its own batch: what this machine's two cores can do at best. Rounds go in turns; medians are printed.

    train       seconds of a step of the embedded model, batch 8 per rank, hpu_ddp and hpu_parallel
    amaxes      the same in fp8 with hidden 1024: amaxes shared by the ranks against each rank's own
    measure     seconds of the command, 1 rank by 2 ranks that take shares, the last of which joins them
    quantize    the same by 2 ranks that write a share each, and a third process that joins them; on the disk, and in memory
                (/dev/shm), where no disk decides

`compute_by_message` of train: a step by what a message after backward adds to it (hpu_parallel less independent). What is not shared (a start, the join) counts the less the longer the work is.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from peers import FP8
from peer_packages import random_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "tools/demo_data/kjv-byte-1.7M"
TEXT = ROOT / "tools/demo_data/kjv_calib.txt"
STEPS = 12


def environment(rank, ranks, port):
    """One thread for each; without ranks the process is alone."""
    variables = dict(os.environ, OMP_NUM_THREADS="1", FP8_THREADS="1", OMP_WAIT_POLICY="passive")
    if ranks > 1:
        variables.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return variables


def run(commands, ranks):
    """Seconds until all have ended, each pinned to a core."""
    port = 29000 + os.getpid() % 1000
    start = time.monotonic()
    processes = [subprocess.Popen(["taskset", "-c", str(i % os.cpu_count()), *map(str, command)], env=environment(i, ranks, port),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for i, command in enumerate(commands)]
    errors = [process.communicate()[1] for process in processes]
    for process, error in zip(processes, errors):
        if process.returncode:
            sys.exit(f"distributed: exit {process.returncode}: {error.strip().splitlines()[-1:]}")
    return time.monotonic() - start


def train_command(out, *more, init=DEMO, precision="32-true", batch=8, seq_len=256):
    return [FP8, "train", "--init", init, "--tokenizer", DEMO, "--data", TEXT, "--out", out, "--steps", STEPS, "--warmup", 2, "--batch", batch,
            "--seq-len", seq_len, "--precision", precision, "--quiet", *more]


def step_seconds(out):
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    return statistics.median(row["seconds"] for row in rows[2:])


def hidden_1024(folder):
    made = folder / "hidden-1024"
    made.mkdir()
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    (made / "config.json").write_text(json.dumps(json.loads((DEMO / "config.json").read_text()) | sizes))
    return made


class Rounds:
    """Cases in turns."""

    def __init__(self, folder, rounds):
        self.folder, self.rounds, self.count = folder, rounds, 0

    def new(self):
        self.count += 1
        return self.folder / str(self.count)

    def medians(self, cases):
        found = {name: [] for name in cases}
        for _ in range(self.rounds):
            for name, case in cases.items():
                found[name].append(case())
        return {name: statistics.median(values) for name, values in found.items()}


def trained(rounds, ranks, *more, **sizes):
    """ranks 0: two independent processes."""
    outs = [rounds.new() for _ in range(2 if ranks == 0 else 1)]
    if ranks == 0:
        run([train_command(out, *more, **sizes) for out in outs], 1)
    else:
        run([train_command(outs[0], *more, **sizes)] * ranks, ranks)
    return max(step_seconds(out) for out in outs)


def say(case, times, **ratios):
    print(json.dumps({"kernel": "distributed", "case": case} | {f"{name}_s": round(value, 4) for name, value in times.items()} |
                     {name: round(value, 3) for name, value in ratios.items()}), flush=True)


def train_cases(rounds):
    times = rounds.medians({
        "one": lambda: trained(rounds, 1), "independent": lambda: trained(rounds, 0),
        "hpu_ddp": lambda: trained(rounds, 2, "--strategy", "hpu_ddp"), "hpu_parallel": lambda: trained(rounds, 2, "--strategy", "hpu_parallel")})
    message = max(times["hpu_parallel"] - times["independent"], 1e-4)
    say("train", times, ddp_by_independent=times["hpu_ddp"] / times["independent"], ddp_by_one=times["hpu_ddp"] / times["one"],
        compute_by_message=times["independent"] / message)
    large = dict(init=hidden_1024(rounds.folder), precision="fp8", batch=2, seq_len=128)
    times = rounds.medians({name: lambda more=more: trained(rounds, 2, "--strategy", "hpu_ddp", "--reduce-amax", more, **large)
                            for name, more in (("shared", "all"), ("own", "off"))})
    say("amaxes, hidden 1024", times, shared_by_own=times["shared"] / times["own"])


def command_case(rounds, name, command):
    def apart(count):
        outs = [rounds.new() for _ in range(count)]
        seconds = run([command + [out] for out in outs], 1)
        for out in outs:
            shutil.rmtree(out)
        return seconds

    def shared():
        out = rounds.new()
        if name == "measure":
            seconds = run([command + [out, "--shares", 2, "--join", "wait"]] * 2, 2)
        else:  # joined shares are one file, so a copy of all of it; those of ranks become its parts
            seconds = run([command + [out]] * 2, 2) + run([command + [out, "--join"]], 1)
        shutil.rmtree(out)
        return seconds

    times = rounds.medians({"one": lambda: apart(1), "independent": lambda: apart(2), "two": shared})
    say(name, times, speedup=times["one"] / times["two"], at_best=2 * times["one"] / times["independent"])


def command_cases(rounds):
    text = rounds.folder / "text.txt"
    text.write_text(TEXT.read_text() * 4)
    command_case(rounds, "measure", [FP8, "measure", "--model", DEMO, "--data", text, "--samples", 2400, "--seq-len", 256, "--quiet", "--out"])
    model = pathlib.Path(random_model("checkpoint", "1.1B"))
    quantize = [FP8, "quantize", "--dynamic", "--quiet", "--model", model, "--out"]
    command_case(rounds, "quantize", quantize)
    memory = pathlib.Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 3 * sum(file.stat().st_size for file in model.iterdir()):
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            shutil.copytree(model, pathlib.Path(folder) / "model")
            quantize[quantize.index(model)] = pathlib.Path(folder) / "model"
            command_case(Rounds(pathlib.Path(folder), rounds.rounds), "quantize, in memory", quantize)


def main():
    parser = argparse.ArgumentParser(prog="./tools/bench distributed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--only", choices=("train", "commands"),
                        help="train and amaxes, or measure and quantize; default both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rounds = Rounds(pathlib.Path(temporary), options.rounds)
        if options.only != "commands":
            train_cases(rounds)
        if options.only != "train":
            command_cases(rounds)


if __name__ == "__main__":
    main()
