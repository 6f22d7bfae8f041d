# SPDX-License-Identifier: Apache-2.0
"""One command with one fault, what it must leave, and how it goes on."""

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import commands
import faults
import proxy

LIMIT, TIMES = 60, 30  # seconds that every run may take, and how often its usual time


@dataclasses.dataclass
class Ended:
    code: int | None  # None: it had to be killed
    out: bytes
    err: str


@dataclasses.dataclass
class Known:
    """An undisturbed run."""

    seconds: float = 0
    results: dict = dataclasses.field(default_factory=dict)
    printed: bytes = b""
    names: frozenset = frozenset()  # all that is in {out}
    peak: int = 0  # bytes of address space
    calls: dict = dataclasses.field(default_factory=dict)  # name: (of the first thread before it looks at an input, at most of a thread)
    inputs: set = dataclasses.field(default_factory=set)


class Bad(Exception):
    """What must not be; `column` of the table."""


class Wrong(Bad):
    column = "wrong"


class Hung(Bad):
    column = "hung"


class Left(Bad):
    column = "left over"


class Case:
    """A command in its folder, and what chooses a fault for it."""

    def __init__(self, folder, binary, library, command, known, rng):
        self.folder, self.binary, self.library, self.command, self.known, self.rng = folder, binary, library, command, known, rng
        self.proxy, self.fault = None, None

    def moment(self):
        return self.rng.random() * self.known.seconds

    def preload(self, more):
        return {"LD_PRELOAD": str(self.library), **more}

    def clear(self):
        for name in ("out", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
        (self.folder / "out" / "neighbour.json").write_text('{"of": "someone else"}')
        (self.folder / "trace").unlink(missing_ok=True)

    def environment(self, rank):
        variables = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM_", "OMPI_", "PMI_", "MASTER_", "TORCHELASTIC_", "FP8_", "SOAK_"))
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "QUANT_CONFIG"):
            variables.pop(name, None)
        variables |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder / "tmp"), "HOME": str(self.folder / "tmp"), "LC_ALL": "C"}
        if self.command.ranks > 1:
            variables |= {"RANK": str(rank), "WORLD_SIZE": str(self.command.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
            if self.proxy:
                variables |= self.preload({"SOAK_RELAY": str(self.folder / "relay")})
        return variables

    def run(self, again=False, fault=None, line=None):
        """Ended of each process. line: another command, of one process."""
        words = line or self.command.line(self.folder, again)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        ranks, processes, files = 1 if line else self.command.ranks, [], []
        for rank in range(ranks):
            files.append((open(self.folder / f"stdout{rank}", "w+b"), open(self.folder / f"stderr{rank}", "w+b")))
            variables = self.environment(rank)
            if line:
                for name in ("RANK", "WORLD_SIZE"):
                    variables.pop(name, None)
            limit = None if fault is None or fault.limit is None else (lambda: faults.limit_memory(fault.limit))
            processes.append(
                subprocess.Popen(
                    [*(fault.prefix if fault else ()), str(self.binary), *words],
                    cwd=self.folder,
                    env=variables | (fault.environment if fault else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=files[-1][0],
                    stderr=files[-1][1],
                    start_new_session=True,
                    preexec_fn=limit,
                )
            )
        codes = self.watch(processes, sorted(fault.acts, key=lambda act: act[0]) if fault else [])
        ended = []
        for code, (out, err) in zip(codes, files, strict=True):
            for file in (out, err):
                file.seek(0)
            ended.append(Ended(code, out.read(), err.read().decode(errors="replace")))
            out.close()
            err.close()
        return ended

    def watch(self, processes, acts):
        start = time.monotonic()
        end = start + LIMIT + TIMES * self.known.seconds
        while any(one.poll() is None for one in processes) and time.monotonic() < end:
            while acts and time.monotonic() - start >= acts[0][0]:
                acts.pop(0)[1](processes)
            if self.known.seconds == 0:
                self.known.peak = max(self.known.peak, peak_of(processes[0].pid))
            if all(one.poll() is not None or stopped(one.pid) for one in processes) and not acts:
                break  # what was stopped for good stays so
            wait = min(0.02, max(0.0005, acts[0][0] - (time.monotonic() - start))) if acts else 0.02
            time.sleep(wait if self.known.seconds else 0.002)
        codes = []
        for one in processes:
            code, was_stopped = one.poll(), stopped(one.pid)
            if code is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
                code = -signal.SIGKILL if was_stopped else None
            codes.append(code)
        left = [pid for pid in alive_in({one.pid for one in processes})]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if left:
            raise Left(f"processes {left}")
        return codes


def peak_of(pid):
    try:
        return int(re.search(r"VmPeak:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) << 10
    except (OSError, AttributeError):
        return 0


def stopped(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def alive_in(sessions):
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) in sessions and fields[0] != "Z":
                yield int(entry.name)


def look(folder):
    """{path: what is there}, by size and time."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (
            (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino) if path.is_file() else status.st_mode
        )
    return found


def digest(results):
    return {name: hashlib.sha256(data).hexdigest()[:12] for name, data in results.items()}


def names_in(folder):
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if not any(part.startswith("backup_") for part in path.parts))


def learn(case, trace):
    """Runs the command undisturbed: twice, and once more under strace if `trace`."""
    known = case.known
    for turn in range(2):
        case.clear()
        start = time.monotonic()
        finish(case, case.run())
        seconds = time.monotonic() - start
        results, printed = commands.results(case.folder, case.command), commands.steady_bytes("stdout", (case.folder / "stdout0").read_bytes())
        if turn and (results, printed) != (known.results, known.printed):
            raise RuntimeError(
                f"{case.command.name}: two runs differ: {set(digest(results).items()) ^ set(digest(known.results).items())} {printed} {known.printed}"
            )
        known.results, known.printed, known.names = results, printed, names_in(case.folder / "out")
        known.seconds = max(seconds, 0.001)
    if case.command.ranks == 1 and trace:
        file = case.folder / "trace"
        case.clear()
        fault = faults.Fault("", prefix=("strace", "-f", "-qq", "-o", str(file), "-e", "trace=" + ",".join(f"?{name}" for name in faults.TRACED)))
        finish(case, case.run(fault=fault))
        count_calls(case, file.read_text(errors="replace").splitlines())


def count_calls(case, lines):
    place, counts, before, main = str(case.folder / "in"), {}, {}, lines[0].split()[0]
    for line in lines:
        found = re.match(r"(\d+) +(\w+)\(", line)
        if not found:
            continue
        thread, name = found.groups()
        if name == "openat" and place in line and " = -1" not in line:
            path = pathlib.Path(re.search(r'"([^"]+)"', line).group(1))
            if path.is_file():
                case.known.inputs.add(path)
        if thread == main and place in line and not before:
            before = dict(counts.get(main, {})) or {"none": 0}
        counts.setdefault(thread, {}).setdefault(name, 0)
        counts[thread][name] += 1
    for name in faults.TRACED:
        most = max((of_thread.get(name, 0) for of_thread in counts.values()), default=0)
        if most:
            case.known.calls[name] = (before.get(name, 0), most)


def finish(case, ended):
    for one in ended:
        if one.code != 0:
            raise RuntimeError(f"{case.command.name}: an undisturbed run ended with {one.code}: {one.err}")
    if case.command.then:
        (one,) = case.run(line=case.command.line(case.folder, words=case.command.then))
        if one.code != 0:
            raise RuntimeError(f"{case.command.name}: joining ended with {one.code}: {one.err}")


def check_ended(case, fault, one, aborts):
    """True if it says that it did its work."""
    if one.code is None:
        raise Hung(f"still runs after {LIMIT + TIMES * case.known.seconds:.0f} s: {one.err[-200:]}")
    if one.code < 0:
        if -one.code in fault.dies:
            return False
        if fault.aborts and -one.code in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
            aborts.append(f"{case.command.name}: {fault.what}: {signal.Signals(-one.code).name} {one.err.strip()[:200]}")
            return False
        raise Wrong(f"ended by {signal.Signals(-one.code).name}: {one.err[-300:]}")
    if one.code == 0:
        return True
    errors = [line for line in one.err.splitlines() if line.startswith("fp8: error:")]
    if one.code not in (1, 128 + signal.SIGINT, 128 + signal.SIGTERM):
        if not (fault.aborts and one.code in (127,)):
            raise Wrong(f"exit {one.code}: {one.err[-300:]}")
        aborts.append(f"{case.command.name}: {fault.what}: exit {one.code} {one.err.strip()[:200]}")
    elif len(errors) != 1 and not (fault.silent and not errors):
        raise Wrong(f"exit {one.code} with {len(errors)} lines of error: {one.err[-300:]!r}")
    if one.out.strip():
        raise Wrong(f"exit {one.code}, and prints {one.out[:100]!r}")
    return False


def check_results(case, printed=None, why=""):
    results = commands.results(case.folder, case.command)
    if results != case.known.results:
        differ = sorted(name for name in results.keys() | case.known.results.keys() if results.get(name) != case.known.results.get(name))
        raise Wrong(f"{why}: other bytes: {differ[:4]} of {len(results)}, {len(case.known.results)} files")
    if printed is not None and commands.steady_bytes("stdout", printed) != case.known.printed:
        raise Wrong(f"{why}: prints {difference(commands.steady_bytes('stdout', printed), case.known.printed)}")


def difference(found, expected):
    """What of a text is another one than expected."""
    at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected)))
    return f"{found[max(0, at - 60) : at + 90]!r}, not {expected[max(0, at - 10) : at + 90]!r}"


def same_results(case):
    return commands.results(case.folder, case.command) == case.known.results


def check_half(case, one):
    """After an end that was no death: its files, if they are there, are all of them."""
    there = [name for name in case.command.files if (case.folder / "out" / name).exists()]
    if not there or case.command.partial or same_results(case):
        return
    for name in there:
        part = {path: data for path, data in commands.results(case.folder, case.command).items() if path.split("/")[0] == name}
        if part and part != {path: data for path, data in case.known.results.items() if path.split("/")[0] == name}:
            raise Wrong(f"half a result stands in {name}: {sorted(part)[:8]}, exit {one.code}")


def check_set(case, one):
    """Of `measure`: all files of a set or none."""
    if not case.command.name.startswith("measure") or case.command.ranks > 1:
        return
    names = {name for name in commands.results(case.folder, case.command) if "/backup_" not in name}
    if names and names != set(case.known.results):
        raise Wrong(f"a part of a set: {sorted(names)}, exit {one.code}")


def trial(case, kind, aborts):
    """The fault, or None where there is none to choose; raises Wrong, Hung, Left."""
    if kind == "network stalled":
        (case.folder / "relay").unlink(missing_ok=True)
        case.proxy = proxy.Proxy(case.folder / "relay")
    try:
        fault = faults.KINDS[kind][0](case)
        if fault is not None:
            meet(case, fault, aborts)
        return fault
    finally:
        if case.proxy:
            if not case.proxy.bytes:
                raise RuntimeError("the ranks did not talk through the proxy")
            case.proxy.close()
            case.proxy = None


def meet(case, fault, aborts):
    """The command with this fault, and what must be true then; raises Wrong, Hung, Left."""
    case.clear()
    case.fault = fault
    before = look(case.folder / "in")
    try:
        ended = case.run(fault=fault)
        of_changed = results_of_changed(case, fault, ended)
    finally:
        fault.undo()
    judge(case, fault, ended, aborts, of_changed)
    after = look(case.folder / "in")
    if not fault.changed and before != after or before.keys() != after.keys():
        raise Wrong(f"inputs were changed: {sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))[:5]}")


def results_of_changed(case, fault, ended):
    """Where it ended well with other results: those of a run that sees the changed input alone; else None."""
    if not fault.stays or any(one.code != 0 for one in ended) or (same_results(case) and printed_same(case, ended[0])):
        return None
    results = commands.results(case.folder, case.command)
    case.clear()
    ended = case.run()
    return results if ended[0].code == 0 and results == commands.results(case.folder, case.command) else "other"


def printed_same(case, one):
    return commands.steady_bytes("stdout", one.out) == case.known.printed


def judge(case, fault, ended, aborts, of_changed):
    done = [check_ended(case, fault, one, aborts) for one in ended]
    died = [one for one in ended if one.code is not None and one.code < 0]
    if fault.loses and fault.met and all(done) and case.command.files:
        check_results(case, why="after a loss")
    elif of_changed is not None:
        if of_changed == "other":
            raise Wrong("exit 0 with results of neither the input nor the changed one")
        case.clear()
        done = [False]
    elif all(done) and not case.command.then:
        says_less = not case.command.files and "fp8: warning:" in ended[0].err  # a report that could not be whole says so
        check_results(case, None if says_less else ended[0].out, "exit 0")
    elif not died:
        check_half(case, ended[0])
        check_set(case, ended[0])
    go_on(case, fault, done)


def go_on(case, fault, done):
    """Runs again what did not end, without a fault; then everything stands as if nothing had been."""
    if not (all(done) and not case.command.then):
        words, again = None, True
        if case.command.files and same_results(case) and not case.command.resume and not case.command.then:
            shutil.rmtree(case.folder / "out" / case.command.files[0], ignore_errors=True)
        if case.command.files and not case.command.resume and not case.command.then:
            words = case.command.line(case.folder) + (
                ["--overwrite"] if any((case.folder / "out" / name).exists() for name in case.command.files) else []
            )
        if case.command.resume and same_results(case) and case.command.name.startswith(("quantize", "convert")):
            words = None  # finished; --resume says so
        ended = case.run(again=again, line=words)
        if any(one.code != 0 for one in ended) and fault.changed and case.command.resume:
            ended = case.run(line=[*case.command.line(case.folder), *(["--overwrite"] if not case.command.name.startswith("measure") else [])])
        for one in ended:
            if one.code is None:
                raise Hung(f"going on still runs: {one.err[-200:]}")
            if one.code != 0:
                raise Wrong(f"going on ended with {one.code}: {one.err[-300:]}")
        if case.command.then:
            (one,) = case.run(line=case.command.line(case.folder, words=case.command.then))
            if one.code != 0:
                raise Wrong(f"joining ended with {one.code}: {one.err[-300:]}")
        check_results(case, None if case.command.files else ended[0].out, "after going on")
    names = names_in(case.folder / "out")
    if names != case.known.names:
        raise Left(f"{sorted(names ^ case.known.names)[:6]}")
    if (case.folder / "out" / "neighbour.json").read_text() != '{"of": "someone else"}':
        raise Wrong("a file beside the result was changed")
    left = [path.name for path in (case.folder / "tmp").iterdir()]
    if left:
        raise Left(f"in TMPDIR: {left[:5]}")
