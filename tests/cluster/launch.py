# SPDX-License-Identifier: Apache-2.0
"""One program on several ranks, by each launcher: torchrun, mpirun, srun, and two hosts whose ranks are started by hand."""

import dataclasses
import os
import socket
import subprocess
import sys

import hosts


@dataclasses.dataclass
class Ended:
    """What a run left: exit codes as the launcher (or, by hand, each rank) gave them."""
    codes: list
    out: str
    err: str

    @property
    def ok(self):
        return all(code == 0 for code in self.codes)

    @property
    def why(self):
        """Exit codes and what the ranks said last, without the launcher's own words."""
        lines = [line for line in self.err.strip().splitlines() if line.startswith("fp8:")] or self.err.strip().splitlines()
        return f"exit {self.codes}: {' / '.join(lines[-2:])}"

    def must_be_ok(self, name):
        if not self.ok:
            raise RuntimeError(f"{name}: {self.why}")
        return self


def environment(more=None):
    """One thread a rank: ranks share this machine's cores."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI_", "MASTER_", "TORCHELASTIC_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "QUANT_CONFIG"):
        variables.pop(name, None)
    return variables | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | (more or {})


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ended(command, variables, timeout):
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
    return Ended([run.returncode], run.stdout, run.stderr)


class Launchers:
    """python: one with torch (torchrun). cluster: a slurm.Slurm. pair: hosts.Hosts."""

    def __init__(self, python=sys.executable, cluster=None, pair=None):
        self.python, self.cluster, self.pair = python, cluster, pair

    def torchrun(self, command, ranks, timeout=600, more=()):
        return ended(self.torchrun_command(command, ranks, more), environment(), timeout)

    def torchrun_command(self, command, ranks, more=()):
        return [self.python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
                "--rdzv-endpoint", "127.0.0.1:0", *more, "--no-python", *command]

    def mpirun(self, command, ranks, timeout=600):
        return ended(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command], environment(), timeout)

    def srun(self, command, ranks, timeout=600, nodes=2):
        run = self.cluster.srun(command, tasks=ranks, nodes=min(nodes, ranks), timeout=timeout, env=environment())
        return Ended([run.returncode], run.stdout, run.stderr)

    def one_by_hand(self, command, rank, ranks, port, more=None):
        """One rank, still running: on one of both hosts (even ranks on the first), or (no pair) on this one."""
        place = hosts.NAMES[0] if self.pair else "127.0.0.1"
        variables = environment({"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": place, "MASTER_PORT": str(port)} | (more or {}))
        full = self.pair.command(rank % 2, command) if self.pair else command
        return subprocess.Popen(full, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def by_hand(self, command, ranks):
        port = 29400 if self.pair else free_port()
        return [self.one_by_hand(command, rank, ranks, port) for rank in range(ranks)]

    def two_hosts(self, command, ranks, timeout=600):
        processes = self.by_hand(command, ranks)
        texts = [process.communicate(timeout=timeout) for process in processes]
        return Ended([process.returncode for process in processes], "", "".join(err for _, err in texts))
