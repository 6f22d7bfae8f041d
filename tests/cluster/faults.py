# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while ranks train: at random moments one of them is killed, stopped, has a full disk or other data, the
cable is cut, the store is gone, alone or with torchrun. Every rank that can run must end in time, not with 0, naming whom
it lost; and nothing is half-written."""

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
    """What a rank must say: one of the ranks it lost."""
    return lambda rank, text: any(re.search(rf"\branks? [\d, and]*\b{r}\b", text) for r in lost if r != rank)


def wrong(results, lost, out):
    """What of the results is not as it must be. lost: ranks, one of which each names, or a text that each says."""
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
    """Ranks on two hosts; each side must name one of the other."""
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


def other_data(tools, out, count, rng):
    """One rank reads another text."""
    lost = rng.randrange(count)
    other = out.parent / "other.txt"
    other.write_text(training.TEXT.read_text()[1000:])
    processes = []

    def start(command):
        port = launch.free_port()
        for rank in range(count):
            c = [str(other) if word == str(training.TEXT) and rank == lost else word for word in command]
            processes.append(tools.launchers.one_by_hand(c, rank, count, port))
        return processes

    ranks = Ranks(tools, out, count, command_of=start)
    return wrong(ranks.end(seconds=60), set(range(count)), out)


def full_disk(tools, out, count, rng):
    """Rank 0's folder has no room for its checkpoint: all ranks end."""
    del rng
    out.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(out)], check=True)
    try:
        ranks = Ranks(tools, out, count)
        results = ranks.end(seconds=60 + TIMEOUT)
        found = [f"rank {rank} ended with {code} after {s:.0f} s" for rank, (code, s, _) in results.items() if not code]
        if results[0][0] and "space" not in results[0][2]:
            found.append(f"rank 0: {results[0][2]!r}")
        return found + [f"half-written: {name}" for name in training.half_written(out)]
    finally:
        subprocess.run(["umount", str(out)], check=True)


def at_moment(tools, folder, name, case, two_hosts, count, moment):
    out = folder / f"{name.replace(' ', '_')}-{count}-{moment}"
    with tools.hosts(two_hosts):
        problems = case(tools, out, count, random.Random(moment))
    shutil.rmtree(out, ignore_errors=True)
    return problems


def rows(tools, folder):
    moments = tools.options.moments
    found = []
    cases = [("SIGKILL", lambda *a: killed(*a, signal.SIGKILL), False), ("SIGSTOP", lambda *a: killed(*a, signal.SIGSTOP), False),
             ("other data on one rank", other_data, False), ("a full disk on rank 0", full_disk, False),
             ("the store gone", store_gone, False), ("torchrun killed", agent_gone, False), ("a cut cable", cut, True)]
    for name, case, two_hosts in cases:
        for count in (2, 3):
            problems, runs = [], 1 if case in (other_data, full_disk) else moments
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
