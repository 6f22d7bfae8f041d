# SPDX-License-Identifier: Apache-2.0
"""The recipes of tools/examples as they stand, by sbatch, mpirun with a hostfile, torchrun on two hosts, and Ray. They call
an fp8 that cuts long runs short; what they leave is compared with one process, and with each other."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

import launch
import training
from shares import files

EXAMPLES = training.ROOT / "tools/examples"
LENGTHS = {"--steps": "20", "--save-every": "10", "--seq-len": "64", "--samples": "64", "--shares": "8"}

FP8 = """#!/bin/bash
words=("$@")
for ((i = 0; i + 1 < ${#words[@]}; ++i)); do
  case ${words[i]} in
CASES  esac
done
exec BINARY "${words[@]}"
"""


def programs(tools, folder):
    """A folder for PATH: fp8 and torchrun."""
    folder.mkdir()
    cases = "".join(f"    {option}) words[i + 1]={value} ;;\n" for option, value in LENGTHS.items())
    texts = {"fp8": FP8.replace("CASES", cases).replace("BINARY", str(tools.binary)),
             "torchrun": f'#!/bin/sh\nexec {tools.options.python} -m torch.distributed.run "$@"\n'}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


class Recipes:
    def __init__(self, tools, folder):
        self.tools, self.folder = tools, folder
        path = f"{programs(tools, folder / 'bin')}:{os.environ['PATH']}"
        self.environment = launch.environment({"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.ones = {}

    def out(self, name):
        made = self.folder / name
        made.mkdir()
        return made

    def arguments(self, name):
        return [str(training.DEMO), str(training.TEXT), str(self.out(name))]

    def one(self, threads):
        """What one process makes of the same, with as many threads as each of theirs."""
        if threads not in self.ones:
            out = self.out(f"one-{threads}")
            environment = self.environment | {"OMP_NUM_THREADS": str(threads)}
            fp8 = [str(self.folder / "bin/fp8")]
            model = ["--model", str(training.DEMO)]
            for command in (["measure", *model, "--data", str(training.TEXT), "--samples", "1024", "--batch", "4", "--out", str(out / "stats")],
                            ["quantize", *model, "--measurements", str(out / "stats"), "--out", str(out / "fp8")]):
                launch.ended(fp8 + command, environment, 600).must_be_ok(command[0])
            self.ones[threads] = out
        return self.ones[threads]

    def is_one(self, name, what, run, threads, parts=("stats", "fp8")):
        out = self.folder / name
        same = run.ok and all(files(self.one(threads) / part).items() <= files(out / part).items() for part in parts)
        return (what, "the bytes of one process" if same else run.why if not run.ok else "other bytes", same)

    def sbatch(self, name, *options):
        environment = dict(self.tools.cluster.environment, **self.environment)
        log = self.folder / f"{name}.log"
        command = ["sbatch", "--wait", f"--output={log}", "--open-mode=append", *options, str(EXAMPLES / f"{name}.sh"), *self.arguments(name)]
        run = launch.ended(command, environment, 1200)
        return launch.Ended(run.codes, log.read_text() if log.exists() else "", run.err + (log.read_text() if log.exists() and not run.ok else ""))

    def slurm_array(self):
        run = self.sbatch("slurm_array", "--array=0-3", "--cpus-per-task=1")
        return self.is_one("slurm_array", "slurm_array.sh by sbatch, 4 tasks on two nodes", run, 1)

    def mpirun(self):
        hosts = self.folder / "hosts"
        hosts.write_text("# one machine\nlocalhost slots=2\n")
        run = launch.ended([str(EXAMPLES / "mpirun.sh"), str(hosts), *self.arguments("mpirun")], self.environment, 1200)
        if run.ok and run.out.count("KL to the reference") != 1:
            return ("mpirun.sh, a hostfile", f"not one evaluation: {run.out[-300:]!r}", False)
        return self.is_one("mpirun", "mpirun.sh with a hostfile, 2 processes", run, 4)

    def slurm_ddp(self):
        """Its four ranks are those of torchrun_two_nodes.sh."""
        return self.sbatch("slurm_ddp", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1")

    def torchrun_two_nodes(self):
        arguments = self.arguments("torchrun_two_nodes")
        options = {"env": self.environment | {"OMP_NUM_THREADS": "1"}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [self.tools.pair.popen(host, [str(EXAMPLES / "torchrun_two_nodes.sh"), "host-a", *arguments], **options) for host in (0, 1)]
        texts = [process.communicate(timeout=1200) for process in processes]
        return launch.Ended([process.returncode for process in processes], "".join(out for out, _ in texts), "".join(err for _, err in texts))

    def training(self):
        slurm, torchrun = self.slurm_ddp(), self.torchrun_two_nodes()
        what = "slurm_ddp.sh by sbatch and torchrun_two_nodes.sh on two hosts, 4 ranks each"
        if not (slurm.ok and torchrun.ok):
            return (what, f"sbatch: {slurm.why}; torchrun: {torchrun.why}"[:600], False)
        if slurm.out.count("perplexity") != 1:
            return (what, f"not one evaluation: {slurm.out[-300:]!r}", False)
        same = training.weights(self.folder / "slurm_ddp") == training.weights(self.folder / "torchrun_two_nodes")
        return (what, "equal weights" if same else "other weights", same)

    def ray(self):
        """In an environment of its own, where pip can make one."""
        what, script = "ray_calibrate.py, 2 tasks", EXAMPLES / "ray_calibrate.py"
        python = self.folder / "ray/bin/python"
        made = subprocess.run([self.tools.options.python, "-m", "venv", str(self.folder / "ray")], capture_output=True, text=True)
        if made.returncode == 0:
            made = subprocess.run([str(python), "-m", "pip", "install", "--quiet", "ray"], capture_output=True, text=True)
        if made.returncode != 0:
            compile(script.read_text(), str(script), "exec")
            return (what, "parsed only: pip can't fetch ray here", True)
        with self.ray_head(python.parent / "ray"):
            run = launch.ended([str(python), str(script), str(training.DEMO), str(training.TEXT), str(self.out("calibrated") / "stats"), "2"],
                               self.environment | {"RAY_ADDRESS": "127.0.0.1:6379"}, 600)
        return self.is_one("calibrated", what, run, 4, parts=("stats",))

    @contextlib.contextmanager
    def ray_head(self, program):
        """A node that says it has 8 cores: a task asks for 4."""
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a short path: of sockets' names
            command = [str(program), "start", "--head", "--block", "--num-cpus=8", "--port=6379", "--include-dashboard=false",
                       "--disable-usage-stats", "--object-store-memory=100000000", f"--temp-dir={folder}"]
            head = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                for _ in range(60):  # until it listens
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 6379), 1):
                        break
                    time.sleep(1)
                yield
            finally:
                os.killpg(head.pid, signal.SIGTERM)
                head.wait(60)


def rows(tools, folder):
    recipes = Recipes(tools, pathlib.Path(folder))
    return [recipes.slurm_array(), recipes.mpirun(), recipes.training(), recipes.ray()]
