# SPDX-License-Identifier: Apache-2.0
"""measure and quantize under srun -n 4 with 16 shares and 10 random kills, then --join: the bytes of one process. Who is
left goes on, with what the killed one had taken; when all are gone, srun starts four again."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import launch
import training

KILLS, SHARES = 10, 16
PAUSES = (0.5, 0.25, 0.12, 0.06, 0.03)  # seconds between kills, at most; shorter where the work was done too soon


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}


def workers_of(binary, out):
    """Processes of `binary` that srun has started and that write `out`; not another test's."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            ours = os.readlink(path / "exe") == str(binary) and str(out).encode() in (path / "cmdline").read_bytes()
            if ours and b"SLURM_PROCID=" in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


def places(out):
    """Where an output's shares stand until they are joined."""
    return out / ".inc_output_hooks_maxabs.shares", out.parent / f".{out.name}.shares"


def disturbed(tools, command, out, rng, pause):
    """srun again and again until it ends by itself; meanwhile, as long as there is something to do, workers die."""
    kills = 0
    for _ in range(60):
        process = subprocess.Popen(tools.cluster.command(command, 4, 2, ["--kill-on-bad-exit=0"]), env=dict(tools.cluster.environment, **launch.environment()),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and kills < KILLS:
            time.sleep(0.02 + pause * rng.random())
            workers = workers_of(tools.binary, out)
            done = sum(len(list(place.glob("*.done"))) for place in places(out))
            if workers and done < SHARES and process.poll() is None:
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
        for pause in PAUSES:
            for place in (many, *places(many)):
                shutil.rmtree(place, ignore_errors=True)
            kills, error = disturbed(tools, [*command, str(many), "--shares", str(SHARES)], many, rng, pause)
            if kills == KILLS:
                break
        join = subprocess.run([*command, str(many), "--shares", str(SHARES), "--join"], capture_output=True, text=True)
        same = not error and join.returncode == 0 and files(one).items() <= files(many).items()
        text = "the bytes of one process" if same else f"differs: {error} {join.stderr[-200:]}"
        found.append((f"{name}, srun -n 4, {SHARES} shares, {KILLS} kills, --join", text if kills == KILLS else f"{text}, after {kills} kills only",
                      same and kills == KILLS))
    return found
