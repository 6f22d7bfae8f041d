# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while ranks train: at random moments one of them is killed, stopped, has a full disk or other data, the
cable is cut, the store is gone, alone or with torchrun. Every rank that can run must end in time, not with 0, naming whom
it lost; and nothing is half-written."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import launch
import orphans
import training

TIMEOUT = 10  # seconds that a call waits for another rank
LAUNCHER_WAITS = 30  # seconds that torchrun gives a process to end, after which it is killed


class Ranks:
    """Ranks of one run, started by hand on one host or two."""

    def __init__(self, tools, out, count, *more, command_of=None):
        command = training.command(tools.binary, out, 100000, "--strategy", "hpu_ddp", "--save-every", 20, "--rank-timeout", TIMEOUT, *more)
        self.processes = tools.launchers.by_hand(command, count) if command_of is None else command_of(command)
        self.out = out

    def wait_for_steps(self, seconds=60):
        """Until the log has a step."""
        end = time.monotonic() + seconds
        path = self.out / "log.jsonl"
        while time.monotonic() < end and not (path.exists() and path.stat().st_size > 0):
            if any(p.poll() is not None for p in self.processes):
                break
            time.sleep(0.05)

    def end(self, but=(), seconds=TIMEOUT + 5):
        """Per rank: (exit code or None while it still runs, seconds, what it said last)."""
        start, results = time.monotonic(), {}
        for rank, process in enumerate(self.processes):
            if rank in but:
                continue
            try:
                process.wait(max(0.1, start + seconds - time.monotonic()))
                results[rank] = (process.returncode, time.monotonic() - start)
            except subprocess.TimeoutExpired:
                results[rank] = (None, seconds)
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        texts = [process.communicate()[1].strip().splitlines()[-1:] for process in self.processes]
        return {rank: (*result, "".join(texts[rank])) for rank, result in results.items()}


def named(lost):
    """What a rank must say: the ranks it lost, all of them."""
    return lambda rank, text: all(re.search(rf"\branks? [\d, and]*\b{r}\b", text) for r in lost if r != rank)


def wrong(results, lost, out):
    """What of the results is not as it must be. lost: ranks, which each names, or a text that each says."""
    says = (lambda _, text: lost in text) if isinstance(lost, str) else named(lost)
    found = []
    for rank, (code, seconds, text) in results.items():
        if code is None:
            found.append(f"rank {rank} still runs after {seconds:.0f} s")
        elif code == 0:
            found.append(f"rank {rank} ended with 0")
        elif not says(rank, text):
            found.append(f"rank {rank} does not name {lost}: {text!r}")
    return found + [f"half-written: {name}" for name in training.half_written(out) if not name.endswith((".lock", ".lease"))]


def killed(tools, out, count, rng, how):
    lost = rng.randrange(count)
    ranks = Ranks(tools, out, count)
    ranks.wait_for_steps()
    time.sleep(rng.random())
    os.killpg(ranks.processes[lost].pid, how)
    return wrong(ranks.end(but=(lost,)), {lost}, out)


def cut(tools, out, count, rng):
    """Ranks on two hosts; each side must name the other."""
    ranks = Ranks(tools, out, count)
    ranks.wait_for_steps()
    time.sleep(rng.random())
    try:
        tools.pair.cut()
        results = ranks.end()
    finally:
        tools.pair.join()
    found = []
    for side in (0, 1):
        here = {rank: result for rank, result in results.items() if rank % 2 == side}
        found += wrong(here, {rank for rank in range(count) if rank % 2 != side}, out)
    return found


STORE_GONE = "the store does not answer: the launcher serves it"
STORE = "import sys, time, torch.distributed as d; s = d.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False); time.sleep(3600)"


def store_gone(tools, out, count, rng):
    """A process that does nothing but serve the store, as torchrun's agent does, is killed."""
    port = launch.free_port()
    server = subprocess.Popen([tools.options.python, "-c", STORE, str(port)])
    try:
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = Ranks(tools, out, count, command_of=lambda c: [tools.launchers.one_by_hand(c, rank, count, port, agent) for rank in range(count)])
        ranks.wait_for_steps()
        time.sleep(rng.random())
    finally:
        server.kill()
        server.wait()
    return wrong(ranks.end(), STORE_GONE, out)


def agent_gone(tools, out, count, rng):
    """torchrun, which serves the store, is killed: its ranks are nobody's."""
    logs = out.parent / f"{out.name}.logs"
    agents = []

    def start(command):
        more = ["--log-dir", str(logs), "--redirects", "3"]
        agents.append(subprocess.Popen(tools.launchers.torchrun_command(command, count, more), env=launch.environment(), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL))
        return []

    with orphans.adopting():
        ranks = Ranks(tools, out, count, command_of=start)
        ranks.wait_for_steps()
        time.sleep(rng.random())
        try:
            ranks.processes = orphans.of_agent(agents[0], logs)
        except BaseException:
            agents[0].terminate()  # it ends its ranks
            agents[0].wait()
            raise
        agents[0].kill()
        agents[0].wait()
        return wrong(ranks.end(), STORE_GONE, out)


def one_differs(tools, out, count, rng, word, other):
    """One rank has `other` where the rest have `word`."""
    lost, port = rng.randrange(count), launch.free_port()

    def start(command):
        return [tools.launchers.one_by_hand([other if w == word and rank == lost else w for w in command], rank, count, port) for rank in range(count)]

    return wrong(Ranks(tools, out, count, command_of=start).end(seconds=60), f"rank {lost or 1} differs from rank 0", out)


def other_data(tools, out, count, rng):
    """One rank reads another text."""
    other = out.parent / f"{out.name}.txt"
    other.write_text(training.TEXT.read_text()[1000:])
    return one_differs(tools, out, count, rng, str(training.TEXT), str(other))


def other_config(tools, out, count, rng):
    """One rank's model is another one, of the same sizes."""
    other = out.parent / f"{out.name}.model"
    shutil.copytree(training.DEMO, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    return one_differs(tools, out, count, rng, str(training.DEMO), str(other))


def stopped_under_torchrun(tools, out, count, rng):
    """A rank is stopped: the others end by themselves, and torchrun ends it, 30 s after its SIGTERM."""
    lost, logs = rng.randrange(count), out.parent / f"{out.name}.logs"
    agents = []

    def start(command):
        more = ["--log-dir", str(logs), "--redirects", "3"]
        agents.append(subprocess.Popen(tools.launchers.torchrun_command(command, count, more), env=launch.environment(), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL))
        return []

    ranks = Ranks(tools, out, count, command_of=start)
    ranks.wait_for_steps()
    time.sleep(rng.random())
    workers = orphans.of_agent(agents[0], logs)
    os.kill(workers[lost].pid, signal.SIGSTOP)
    found = []
    try:
        if agents[0].wait(TIMEOUT + 5 + LAUNCHER_WAITS + 5) == 0:
            found.append("torchrun ended with 0")
    except subprocess.TimeoutExpired:
        found.append("torchrun still runs")
        os.kill(workers[lost].pid, signal.SIGKILL)
        agents[0].kill()
        agents[0].wait()
    # torchrun ends them all once one has failed: the first says why, another may be told to stop before it can.
    said = {rank: "".join(worker.errors.read_text().strip().splitlines()[-1:]) for rank, worker in enumerate(workers) if rank != lost}
    if not any(named({lost})(rank, text) for rank, text in said.items()):
        found.append(f"nobody names {lost}: {said}")
    if os.path.exists(f"/proc/{workers[lost].pid}"):
        found.append(f"rank {lost} is still there")
    return found + [f"half-written: {name}" for name in training.half_written(out) if not name.endswith((".lock", ".lease"))]


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder):
    """Nothing more fits."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def full_disk_of_first(tools, out, count, rng):
    """Rank 0 alone writes: its disk is full from some moment on. All end, it says why, the others name it."""
    with small_disk(out, "64m"):
        ranks = Ranks(tools, out, count)
        ranks.wait_for_steps()
        time.sleep(2 * rng.random())
        fill(out)
        results = ranks.end()
        found = wrong({rank: result for rank, result in results.items() if rank > 0}, {0}, out)
        return found + wrong({0: results[0]}, "space", out)


def full_disk_of_another(tools, out, count, rng):
    """Of ranks that train the first alone writes; of ranks that quantize each does. One whose disk gets full, sooner or
    later, says so; the others have their shares, and --join names it."""
    lost, port, disk = rng.randrange(1, count), launch.free_port(), out.parent / f"{out.name}.disk"

    def command(place, *more):
        return [str(tools.binary), "quantize", "--model", str(training.DEMO), "--dynamic", "--out", str(place), *more]

    with small_disk(disk, f"{rng.randrange(64, 400)}k"):
        processes = [tools.launchers.one_by_hand(command(disk / "out" if rank == lost else out, "--rank", f"{rank}/{count}"), rank, count, port)
                     for rank in range(count)]
        texts = [process.communicate(timeout=60)[1] for process in processes]
        found = [f"rank {rank} ended with {process.returncode}: {texts[rank]!r}" for rank, process in enumerate(processes)
                 if (process.returncode == 0) == (rank == lost) or (rank == lost and "space" not in texts[rank])]
        found += [f"half-written: {name}" for name in training.half_written(disk)]
    join = subprocess.run(command(out, "--join", str(count)), env=launch.environment(), capture_output=True, text=True)
    if join.returncode == 0 or f"missing: {lost}" not in join.stderr:
        found.append(f"--join ended with {join.returncode}: {join.stderr!r}")
    return found


def at_moment(tools, folder, name, case, two_hosts, count, moment):
    out = folder / f"{name.replace(' ', '_')}-{count}-{moment}"
    with tools.hosts(two_hosts):
        problems = case(tools, out, count, random.Random(moment))
    shutil.rmtree(out, ignore_errors=True)
    return problems


def rows(tools, folder):
    moments = tools.options.moments
    found = []
    # (what, case, on two hosts, at how many of the moments)
    cases = [("SIGKILL", lambda *a: killed(*a, signal.SIGKILL), False, moments), ("SIGSTOP", lambda *a: killed(*a, signal.SIGSTOP), False, moments),
             ("SIGSTOP under torchrun", stopped_under_torchrun, False, min(moments, 2)), ("other data on one rank", other_data, False, min(moments, 2)),
             ("other config on one rank", other_config, False, min(moments, 2)), ("a full disk on rank 0", full_disk_of_first, False, min(moments, 10)),
             ("a full disk on another rank", full_disk_of_another, False, min(moments, 5)), ("the store gone", store_gone, False, moments),
             ("torchrun killed", agent_gone, False, moments), ("a cut cable", cut, True, moments)]
    for name, case, two_hosts, runs in cases:
        for count in (2, 3):
            problems = []
            for moment in range(runs):
                problems += tools.notes.get(f"{name}, {count} ranks, moment {moment}", lambda: at_moment(tools, folder, name, case, two_hosts, count, moment))
            found.append((f"{name}, {count} ranks, {runs} times", "; ".join(dict.fromkeys(problems))[:300] or "all end in time and name it", not problems))
    return found + [restarted(tools, folder)]


def restarted(tools, folder):
    """torchrun starts all again after a death: the weights of a run that nobody disturbed."""
    quiet, killed_out = folder / "quiet", folder / "restarted"
    more = ("--strategy", "hpu_ddp", "--save-every", 10)
    tools.launchers.torchrun(training.command(tools.binary, quiet, 60, *more), 2).must_be_ok("torchrun")
    command = tools.launchers.torchrun_command(training.command(tools.binary, killed_out, 60, *more, "--resume"), 2, ["--max-restarts", "3"])
    process = subprocess.Popen(command, env=launch.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    rng, kills = random.Random(5), 0
    while process.poll() is None and kills < 2:
        log = killed_out / "log.jsonl"
        if log.exists() and log.read_text().count('"loss"') > 15 * (kills + 1):
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            os.kill(int(rng.choice(children)), signal.SIGKILL)
            kills += 1
        time.sleep(0.05)
    process.communicate()
    same = process.returncode == 0 and training.weights(quiet) == training.weights(killed_out)
    return (f"torchrun --max-restarts 3, {kills} kills, --resume", "the undisturbed run's weights" if same else f"other weights, exit {process.returncode}", same)
