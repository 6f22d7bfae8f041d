# SPDX-License-Identifier: Apache-2.0
"""measure and quantize under srun -n 4 with 16 shares and random kills, then --join: the bytes of one process."""

import os
import pathlib
import random
import signal
import subprocess
import time

import launch
import training

KILLS = 10


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}


def workers_of(binary):
    """Processes of `binary` that srun has started."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "exe") == str(binary) and b"SLURM_PROCID=" in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


def disturbed(tools, command, rng):
    """srun again and again until it ends by itself; meanwhile workers die."""
    kills = 0
    for _ in range(60):
        process = subprocess.Popen(tools.cluster.command(command, 4, 2), env=dict(tools.cluster.environment, **launch.environment()), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while process.poll() is None and kills < KILLS:
            time.sleep(0.05 + 0.5 * rng.random())
            workers = workers_of(tools.binary)
            if workers and process.poll() is None:
                os.kill(rng.choice(workers), signal.SIGKILL)
                kills += 1
        _, err = process.communicate()
        if process.returncode == 0:
            return kills, ""
    return kills, err.strip().splitlines()[-1:]


def large_model(tools):
    """One that takes long enough to be killed at: 1.1 billion random weights."""
    script = training.ROOT / "tools/benchmarks/random_models.py"
    return subprocess.run([tools.options.python, str(script), "checkpoint", "1.1B"], capture_output=True, text=True, check=True).stdout.strip()


def rows(tools, folder):
    found, rng = [], random.Random(7)
    measure = [str(tools.binary), "measure", "--model", str(training.DEMO), "--data", str(training.TEXT), "--samples", "64", "--out"]
    quantize = [str(tools.binary), "quantize", "--model", large_model(tools), "--dynamic", "--out"]
    for name, command in (("measure", measure), ("quantize", quantize)):
        one, many = folder / f"{name}-one", folder / f"{name}-many"
        tools.run(command + [str(one)])
        kills, error = disturbed(tools, command + [str(many), "--shares", "16"], rng)
        join = subprocess.run(command + [str(many), "--shares", "16", "--join"], capture_output=True, text=True)
        same = not error and join.returncode == 0 and files(one).items() <= files(many).items()
        found.append((f"{name}, srun -n 4, 16 shares, {kills} kills, --join", "the bytes of one process" if same else f"differs: {error} {join.stderr[-200:]}", same))
    return found
