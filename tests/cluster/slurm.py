# SPDX-License-Identifier: Apache-2.0
"""Slurm on one machine: munged, slurmctld and two slurmd, in a folder of their own and on ports of their own.

  with slurm.Slurm(folder) as cluster:
      cluster.srun(["hostname"], tasks=2, nodes=2)

Root only. What was started is ended by its pid, never by its name: another Slurm of this machine goes on."""

import contextlib
import os
import pathlib
import pwd
import signal
import subprocess
import time

import started

NODES = ("fp8-n0", "fp8-n1")
HOSTS = pathlib.Path("/etc/hosts")
HOSTS_LINE = f"127.0.0.1 {' '.join(NODES)}  # fp8 cluster test\n"

CONF = """\
ClusterName=fp8test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
InactiveLimit=0
NodeName=fp8-n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1
NodeName=fp8-n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1
PartitionName=all Nodes=fp8-n[0-1] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(started.Started):
    """folder: empty, and below a path short enough for a socket's name (107 bytes)."""

    def __init__(self, folder, port=16817):
        self.folder, self.port, self.processes = pathlib.Path(folder), port, []
        self.environment = dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"))

    def run(self, command, **more):
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
        self.processes.append(process)
        return process

    def start(self):
        self.start_munged()
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        HOSTS.write_text(HOSTS.read_text() + HOSTS_LINE)  # ranks meet at the first node, by its name
        host = os.uname().nodename.split(".")[0]
        text = CONF.format(host=host, folder=self.folder, port=self.port, first=self.port + 1, second=self.port + 2)
        (self.folder / "slurm.conf").write_text(text)
        self.run(["slurmctld", "-D", "-c"])
        for node in NODES:
            self.run(["slurmd", "-D", "-N", node])
        self.wait_for_nodes(time.monotonic() + 30)

    def start_munged(self):
        """munged takes no folder that others may write into, and runs as the user who owns it."""
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        user = pwd.getpwnam("munge")
        for path in (folder, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        self.run(["munged", "--foreground", "--force", f"--socket={folder}/socket", f"--key-file={key}", f"--pid-file={folder}/pid",
                  f"--log-file={folder}/log", f"--seed-file={folder}/seed"], user=user.pw_uid, group=user.pw_gid)
        for _ in range(100):
            if (folder / "socket").exists():
                return
            time.sleep(0.05)
        raise RuntimeError(f"munged did not start, see {folder}/log")

    def wait_for_nodes(self, deadline):
        while time.monotonic() < deadline:
            states = subprocess.run(["sinfo", "-h", "-o", "%D %t"], env=self.environment, capture_output=True, text=True).stdout.split("\n")
            if "2 idle" in states:
                return
            time.sleep(0.2)
        raise RuntimeError(f"the nodes are not idle after 30 s ({states}), see {self.folder}/*.log")

    def command(self, command, tasks=2, nodes=2, more=()):
        return ["srun", f"-N{nodes}", f"-n{tasks}", "--kill-on-bad-exit=1", *more, *command]

    def srun(self, command, tasks=2, nodes=2, more=(), **options):
        environment = dict(self.environment, **options.pop("env", {}))
        return subprocess.run(self.command(command, tasks, nodes, more), env=environment, capture_output=True, text=True, **options)

    def stop(self):
        with contextlib.suppress(OSError):
            HOSTS.write_text(HOSTS.read_text().replace(HOSTS_LINE, ""))
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
