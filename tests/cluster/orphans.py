# SPDX-License-Identifier: Apache-2.0
"""Processes whose parent was killed, and how they end: this one becomes their parent.

  with adopting():
      ranks = of_agent(torchrun, logs)
      torchrun.kill()
      ranks[0].wait(15)"""

import contextlib
import ctypes
import os
import subprocess
import time


@contextlib.contextmanager
def adopting():
    """Processes whose parent ends become children of this one."""
    set_child_subreaper = 36
    prctl = ctypes.CDLL(None).prctl
    prctl(set_child_subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)


class Orphan:
    """A process that its parent has left to this one."""

    def __init__(self, pid, errors):
        self.pid, self.errors, self.returncode = pid, errors, None

    def poll(self):
        if self.returncode is None and (status := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(status[1])
        return self.returncode

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.02)

    def communicate(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(5)
        return "", self.errors.read_text()


def rank_of(pid):
    """RANK in the environment of a process; "" where there is none."""
    with contextlib.suppress(OSError):
        for entry in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"):
            if entry.startswith(b"RANK="):
                return entry[5:].decode()
    return ""


def of_agent(agent, logs):
    """The ranks that torchrun has started with --log-dir logs --redirects 3."""
    children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
    by_rank = {int(rank_of(pid)): int(pid) for pid in children if rank_of(pid)}
    errors = {int(path.parent.name): path for path in logs.rglob("stderr.log")}
    return [Orphan(by_rank[rank], errors[rank]) for rank in range(len(errors))]
