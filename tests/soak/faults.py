# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults. Each function of KINDS chooses one fault for a command: when, where, how long."""

import dataclasses
import errno
import functools
import os
import resource
import shutil
import signal
import subprocess
import typing

# Calls that may fail, by what their failing means.
FULL = ("write", "pwrite64", "fallocate", "ftruncate", "mkdir", "rename", "fsync")
BROKEN = (
    "read",
    "pread64",
    "write",
    "pwrite64",
    "openat",
    "fsync",
    "ftruncate",
    "rename",
    "newfstatat",
    "fstat",
    "getdents64",
    "readlink",
    "flock",
    "lseek",
)
LITTLE = ("mmap", "mremap")
TRACED = sorted({*FULL, *BROKEN, *LITTLE, "open", "mkdirat", "unlink", "renameat"})
LEAST = 32 << 20  # bytes of address space that every process has when main() begins
CLOCKS_READ = 40  # readings of the clock among which one is chosen


@dataclasses.dataclass
class Fault:
    what: str
    prefix: tuple = ()  # before the command line
    environment: dict = dataclasses.field(default_factory=dict)
    limit: int | None = None  # bytes of address space
    acts: list = dataclasses.field(default_factory=list)  # (seconds after the start, f(processes))
    undo: typing.Callable = lambda: None
    dies: frozenset = frozenset()  # signals by which a process may end
    loses: bool = False  # what it computes with is lost: it may not end with 0, and need not end well
    aborts: bool = False  # LibTorch may end the process by itself
    silent: bool = False  # its message may be what could not be written
    changed: bool = False  # an input was another one, or elsewhere, for a time
    stays: bool = False  # and is so until undo()
    met: bool = True  # it came before the command was over


def at(fault, seconds, act):
    """act(processes) once the command has run so long; the fault counts if it still runs then."""
    fault.met = False

    def when(processes):
        if any(one.poll() is None for one in processes):
            fault.met = True
            act(processes)

    fault.acts.append((seconds, when))
    return fault


def kill(case):
    number, seconds = case.rng.randrange(case.command.ranks), case.moment()
    return at(Fault(f"SIGKILL after {seconds:.3f} s", dies=frozenset({signal.SIGKILL})), seconds, lambda all: all[number].send_signal(signal.SIGKILL))


def end(case):
    how, seconds = case.rng.choice((signal.SIGTERM, signal.SIGINT)), case.moment()
    return at(Fault(f"{how.name} after {seconds:.3f} s", dies=frozenset({how})), seconds, lambda all: all[0].send_signal(how))


def stop(case):
    number, seconds, pause = case.rng.randrange(case.command.ranks), case.moment(), case.rng.choice((0.02, 0.1, 0.6, 2.0))
    fault = at(Fault(f"SIGSTOP after {seconds:.3f} s for {pause} s"), seconds, lambda all: all[number].send_signal(signal.SIGSTOP))
    fault.acts.append((seconds + pause, lambda all: all[number].send_signal(signal.SIGCONT)))
    return fault


@functools.cache
def can_trace():
    """strace is there, and may look into processes."""
    tried = shutil.which("strace") and subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True)
    return bool(tried) and tried.returncode == 0


def failing_call(case, names, errors, **more):
    """One call of `names`, or each from it on, ends with an error. Of those that the program makes after it first looked at an input."""
    seen = [(name, *case.known.calls.get(name, (0, 0))) for name in names]
    calls = [(name, before, count) for name, before, count in seen if count > before]
    if not calls or not can_trace():
        return None
    name, before, count = case.rng.choice(calls)
    number, error, on = case.rng.randint(before + 1, count), case.rng.choice(errors), case.rng.choice(("", "+"))
    rule = f"inject={name}:error={errno.errorcode[error]}:when={number}{on}"
    prefix = ("strace", "-f", "-qq", "--seccomp-bpf", "-o", str(case.folder / "trace"), "-e", f"trace={name}", "-e", rule)
    fault = Fault(rule, prefix=prefix, silent=name == "write", **more)
    fault.met = False

    def look():
        trace = case.folder / "trace"
        fault.met = trace.exists() and "(INJECTED)" in trace.read_text(errors="replace")

    fault.undo = look
    return fault


def full_disk(case):
    return failing_call(case, FULL, (errno.ENOSPC, errno.EDQUOT))


def broken_disk(case):
    return failing_call(case, BROKEN, (errno.EIO,))


def short_moves(case):
    seed = case.rng.randrange(1, 1 << 30)
    return Fault(f"SOAK_SHORT={seed}", environment=case.preload({"SOAK_SHORT": str(seed)}))


def clock(case):
    reading, back = case.rng.randint(1, CLOCKS_READ), case.rng.choice((1, 60, 86400, 10**9))
    return Fault(f"SOAK_CLOCK={reading},{back}", environment=case.preload({"SOAK_CLOCK": f"{reading},{back}"}))



def failing_allocation(case, which):
    """which: "12", the 12th alone, or "12+", all from there on."""
    return Fault(f"SOAK_MALLOC={which}", environment=case.preload({"SOAK_MALLOC": which}), aborts=case.command.torch)


def little_memory(case):
    if case.rng.random() < 0.3:
        return failing_call(case, LITTLE, (errno.ENOMEM,), aborts=case.command.torch)
    if case.rng.random() < 0.5:
        number, on = int(1.5 ** case.rng.uniform(0, 32 if case.command.torch else 24)), case.rng.choice(("", "+"))
        return failing_allocation(case, f"{number}{on}")
    bytes_ = int(case.rng.uniform(LEAST, max(1.5 * LEAST, 1.02 * case.known.peak))) & -4096
    return Fault(f"RLIMIT_AS {bytes_}", limit=bytes_, aborts=case.command.torch)


def cut_input(case):
    """An input ends early, or has other bytes, or is gone for good, from some moment on."""
    files = sorted(case.known.inputs)
    if not files:
        return None
    path, seconds, way = case.rng.choice(files), case.moment(), case.rng.choice(("cut", "changed", "grown", "removed"))
    whole, status, share = path.read_bytes(), path.stat(), case.rng.random()
    place = int(share * len(whole))

    def act(_):
        if way == "removed":
            path.rename(path.with_name(path.name + ".away"))
            return
        with open(path, "r+b") as file:
            file.seek(len(whole) if way == "grown" else place)
            if way == "cut":
                file.truncate()
            else:
                file.write(bytes(byte ^ 1 for byte in whole[place : place + 64]) or b"\n")

    def undo():
        away = path.with_name(path.name + ".away")
        if away.exists():
            away.rename(path)
        with open(path, "r+b") as file:
            file.write(whole)
            file.truncate()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return at(Fault(f"{path.relative_to(case.folder)} {way} at {place} after {seconds:.3f} s", undo=undo, changed=True, stays=True), seconds, act)


def moved_folder(case):
    """A folder of inputs or results has another name, for a time or from then on."""
    place, seconds, pause = case.folder / case.rng.choice(("in", "out")), case.moment(), case.rng.choice((0.01, 0.1, 100))
    away = place.with_name(place.name + ".away")

    def back(_=None):
        if away.exists():
            if place.exists():  # somebody has made it anew
                for one in place.iterdir():
                    shutil.move(str(one), str(away / one.name))
                place.rmdir()
            away.rename(place)

    fault = at(Fault(f"{place.name} renamed after {seconds:.3f} s for {pause} s", undo=back, changed=True), seconds, lambda _: place.rename(away))
    fault.acts.append((seconds + pause, back))
    return fault


def lost_rank(case):
    number, seconds, how = case.rng.randrange(case.command.ranks), case.moment(), case.rng.choice((signal.SIGKILL, signal.SIGSTOP))
    dies = frozenset({signal.SIGKILL})
    return at(
        Fault(f"rank {number} gets {how.name} after {seconds:.3f} s", dies=dies, loses=case.command.torch),
        seconds,
        lambda all: all[number].send_signal(how),
    )


def stalled_network(case):
    """No byte goes between the ranks for 10 ms to 5 s; or each connection ends."""
    seconds, pause = case.moment(), case.rng.choice((0.01, 0.1, 1, 5))
    if case.rng.random() < 0.25:
        return at(Fault(f"connections end after {seconds:.3f} s", loses=True), seconds, lambda _: case.proxy.cut())
    fault = at(Fault(f"network stalls after {seconds:.3f} s for {pause} s"), seconds, lambda _: case.proxy.stall())
    fault.acts.append((seconds + pause, lambda _: case.proxy.go_on()))
    fault.undo = case.proxy.go_on
    return fault


def limit_memory(bytes_):
    resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


# name: (how, for which commands)
KINDS = {
    "killed": (kill, lambda c: c.ranks == 1),
    "ended by a signal": (end, lambda c: c.ranks == 1),
    "stopped for a time": (stop, lambda c: True),
    "full disk": (full_disk, lambda c: c.ranks == 1),
    "broken disk": (broken_disk, lambda c: c.ranks == 1),
    "short reads and writes": (short_moves, lambda c: True),
    "input cut or changed": (cut_input, lambda c: c.ranks == 1),
    "folder renamed": (moved_folder, lambda c: c.ranks == 1),
    "clock set back": (clock, lambda c: True),
    "little memory": (little_memory, lambda c: c.ranks == 1),
    "a rank lost": (lost_rank, lambda c: c.ranks > 1),
    "network stalled": (stalled_network, lambda c: c.ranks > 1 and c.torch),
}
