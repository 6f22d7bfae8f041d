#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One SIGTERM ends each command wherever it stands: stop.py --binary build/bin/fp8

Every case is started, sent the signal after so many seconds, must have ended soon after it, with 143, or 0 where it
was faster, and leaves nothing hidden; what can go on is then gone on with. The program gives its commands one second;
BOUND is wider by what a machine that has other work to do takes to get round to them.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

DEMO = pathlib.Path(__file__).resolve().parents[4] / "tools" / "demo_data"
MODEL, TEXT, SHORT = DEMO / "kjv-byte-1.7M", DEMO / "kjv_calib.txt", DEMO / "kjv_heldout_16k.txt"
BOUND = 4


@dataclasses.dataclass
class Case:
    """{} in an argument is the folder that the command may write to."""
    name: str
    delays: tuple
    arguments: tuple
    stuck: bool = False  # nobody reads what it prints
    environment: dict = dataclasses.field(default_factory=dict)
    then: tuple = ()  # arguments that are added to go on


def write_tensors(folder, count, rows, columns):
    folder.mkdir()
    size = 2 * rows * columns
    header = {f"model.layers.{i // 500}.mlp.experts.{i % 500}.up_proj.weight":
              {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [i * size, (i + 1) * size]}
              for i in range(count)}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in header:
            file.write(b"\x80\x3f" * (size // 2))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}))


def write_inputs(folder):
    """What makes phases long."""
    text = TEXT.read_text()
    (folder / "long.txt").write_text(text * (100_000_000 // len(text)))
    nodes = {f"module.{i}": {"inputs": [[1.0]], "weight": [[1.0]]} for i in range(400_000)}
    (folder / "stats_hooks_maxabs.json").write_text(
        json.dumps({"GlobalRank": None, "LocalRank": -1, "Mode": "DynamicRange", "Nodes": nodes}))
    names = [str(i) for i in range(1_000_000)]
    (folder / "quant.json").write_text(json.dumps({"mode": "QUANTIZE", "allowlist": {"names": names}}))
    write_tensors(folder / "many", 50_000, 8, 16)
    write_tensors(folder / "large", 24, 1024, 2048)


def cases(folder):
    data, out = ("--model", MODEL, "--data"), ("--out", "{}/out")
    train = ("train", "--init", MODEL, "--seq-len", "32", "--batch", "4", *out, "--data")
    long, many, large = folder / "long.txt", folder / "many", folder / "large"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free.getsockname()[1])}
    yield Case("standard input", (0.01, 0.1, 0.5), ("evaluate", *data, "-"))
    yield Case("a stuck reader", (0.3,), ("completion", "bash"), stuck=True)
    yield Case("a page", (0.05, 0.6), ("inspect", many, "--html", "{}/page.html"))
    yield Case("a long text", (0.2, 0.5), ("evaluate", *data, long))
    yield Case("a large forward", (1,), ("evaluate", *data, TEXT, "--batch", "312"))
    yield Case("measuring", (0.5, 1.5), ("measure", *data, TEXT, "--samples", "120", *out), then=("--resume",))
    yield Case("block by block", (0.5,), ("measure", *data, TEXT, "--block-wise", *out))
    yield Case("vectors", (0.3, 0.8), ("embed", "--model", MODEL, "--data", long, "--out", "{}/v.safetensors"))
    yield Case("generating", (0.4,), ("generate", "--model", MODEL, "--prompt", "In", "--tokens", "500"))
    yield Case("planning", (0.1, 0.4, 1.2), ("quantize", "--model", many, "--dynamic", *out))
    yield Case("quantizing", (0.02, 0.05, 0.2), ("quantize", "--model", large, "--dynamic", *out, "--resume"))
    yield Case("converting", (0.05, 0.2), ("convert", "--model", large, "--format", "bf16", *out))
    yield Case("a large config", (0.3, 1), ("config", "check", folder / "quant.json"))
    yield Case("measurements", (0.3, 1), ("measurements", "show", folder / "stats"))
    yield Case("the machine", (0.02, 0.2), ("doctor",))
    yield Case("training", (0.5, 1.5), (*train, TEXT, "--steps", "100"), then=("--resume",))
    yield Case("a validation", (1, 2), (*train, TEXT, "--steps", "2", "--eval", SHORT, "--eval-batch", "1"),
               then=("--resume",))
    yield Case("a text to train on", (0.5,), (*train, long, "--steps", "9"))
    yield Case("the other rank", (1.5,), (*train, TEXT, "--steps", "9"), environment=ranks)


def start(binary, folder, arguments, **more):
    return subprocess.Popen([binary, *(str(a).replace("{}", str(folder)) for a in arguments)],
                            stderr=subprocess.PIPE, text=True, **more)


def stop(process):
    """Sends the signal: how many seconds it took."""
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    try:
        process.wait(BOUND)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return time.monotonic() - begin


def hidden(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def check(binary, case, delay):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        process = start(binary, folder, case.arguments, stdin=subprocess.PIPE, env={**os.environ, **case.environment},
                        stdout=subprocess.PIPE if case.stuck else subprocess.DEVNULL, pipesize=4096 if case.stuck else -1)
        time.sleep(delay)
        seconds = stop(process)
        said = process.stderr.read()
        assert process.returncode in (0, 143, -signal.SIGTERM), (process.returncode, said)  # the last: before main()
        goes_on = case.then or "--resume" in case.arguments
        if process.returncode == 143:
            assert said.endswith(("interrupted\n", "nothing is kept\n")) or goes_on and "--resume" in said, said
        assert goes_on or not hidden(folder), hidden(folder)
        if goes_on and process.returncode != 0:
            process = start(binary, folder, (*case.arguments, *case.then), stdout=subprocess.DEVNULL)
            said = process.communicate()[1]
            assert process.returncode == 0, said
            assert not hidden(folder), hidden(folder)
        return seconds


def check_shares(binary, model):
    """Of two processes that share the work one stands still and the other waits; a third does the work of both."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = ("quantize", "--model", model, "--dynamic", "--out", "{}/out", "--shares", "3", "--join", "--wait")
        first = start(binary, folder, command, stdout=subprocess.DEVNULL)
        while first.poll() is None and not list(folder.rglob("*.lease-0")):
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        second = start(binary, folder, command, stdout=subprocess.DEVNULL)
        time.sleep(1)
        seconds = stop(second)
        first.send_signal(signal.SIGCONT)
        seconds = max(seconds, stop(first))
        assert {first.returncode, second.returncode} <= {0, 143}, (first.stderr.read(), second.stderr.read())
        third = start(binary, folder, command, stdout=subprocess.DEVNULL)
        said = third.communicate()[1]
        assert third.returncode == 0 and not hidden(folder), (said, hidden(folder))
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    options, _ = parser.parse_known_args()
    failed = False
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = pathlib.Path(name)
        write_inputs(folder)
        runs = [(f"{case.name}, after {delay} s", pool.submit(check, options.binary, case, delay))
                for case in cases(folder) for delay in case.delays]
        runs.append(("shares", pool.submit(check_shares, options.binary, folder / "large")))
        for what, run in runs:
            problem = run.exception()
            bad = problem is not None or run.result() >= BOUND
            failed = failed or bad
            said = repr(problem) if problem else f"{run.result():.2f} s"
            print(f"{what}: {said}{' FAILED' if bad else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
