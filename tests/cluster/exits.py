# SPDX-License-Identifier: Apache-2.0
"""Ranks that train and end, again and again. What goes at the end of a process (works nobody waited for, groups, the
threads of Gloo, of the heartbeat and of the kernels) goes in an order that chance decides: no run may end but with 0."""

import collections
import json
import pathlib

import launch
import training

RANKS = 2
STRATEGIES = ("hpu_ddp", "fast_ddp", "hpu_parallel")


def ended_with(codes, what):
    """(what, found, right) of the exit codes of many processes."""
    others = {code: count for code, count in sorted(collections.Counter(codes).items()) if code != 0}
    return (what, "each ends with 0" if not others else f"exit codes and how many processes: {others}", not others)


def program(tools, folder, runs):
    """fp8 train, a few steps, the strategies in turn."""
    codes = []
    with tools.hosts(False):
        for run in range(runs):
            command = training.command(tools.binary, folder / "out", 3, "--overwrite", "--strategy", STRATEGIES[run % len(STRATEGIES)], batch=1)
            codes += tools.launchers.two_hosts(command, RANKS).codes
    return ended_with(codes, f"fp8 train, {RANKS} ranks, {runs} times in a row")


def script(tools, folder, runs):
    """torch.distributed and DistributedDataParallel from Python, and a work that nobody waits for."""
    library = tools.binary.parent.parent / "lib/libfp8_transformer_engine.so"
    version = [tools.options.python, "-c", "import torch; print(torch.__version__.rsplit('.', 1)[0])"]
    command = [tools.options.python, str(pathlib.Path(__file__).parent / "ddp_script.py"), str(library), str(folder),
               launch.ended(version, launch.environment(), 60).must_be_ok("torch's version").out.strip(), str(runs)]
    codes = json.loads(launch.ended(command, launch.environment(), 600 + 30 * runs).must_be_ok("ddp_script.py").out)
    return ended_with(codes, f"DistributedDataParallel on hpu from Python, {RANKS} ranks, {runs} times in a row")


def rows(tools, folder):
    runs = tools.options.exits
    return [program(tools, folder, runs), script(tools, folder, runs)]
