#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What several machines must give, on one: Slurm with two nodes, two hosts in network namespaces, mpirun and torchrun.

  sudo ./tools/test --cluster                                all of it (about an hour on 2 cores)
  sudo ./tools/test --cluster --only launchers,shares
  sudo ./tools/test --cluster --table tools/benchmarks/results/cluster.md --machine "Intel Emerald Rapids"

A table that is there keeps the rows of parts that do not run, and the lines between its head and its rows. Root only: it
adds network namespaces and mounts a small disk. What it starts it ends, by pid."""

import argparse
import contextlib
import importlib
import os
import pathlib
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import hosts  # noqa: E402
import launch  # noqa: E402
import notes  # noqa: E402
import results  # noqa: E402
import slurm  # noqa: E402

PARTS = ("launchers", "examples", "convergence", "faults", "exits", "shares", "links")
WITH_SLURM, WITH_HOSTS = {"launchers", "examples", "shares"}, {"launchers", "examples", "faults", "links"}


class Tools:
    """What the parts run with."""

    def __init__(self, options, cluster, pair):
        self.options, self.binary, self.cluster, self.pair = options, pathlib.Path(options.binary).resolve(), cluster, pair
        self.notes = notes.Notes(options.notes)
        self.both = launch.Launchers(options.python, cluster, pair)
        self.launchers = self.both

    def run(self, command, timeout=3600):
        """One process alone; throws with its last line."""
        return launch.ended(command, launch.environment(), timeout).must_be_ok(" ".join(command[1:4]))

    @contextlib.contextmanager
    def hosts(self, two):
        """Ranks started by hand lie on this host, or on two."""
        self.launchers = launch.Launchers(self.options.python, self.cluster, self.pair if two else None)
        try:
            yield
        finally:
            self.launchers = self.both


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./tools/test --cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    parser.add_argument("--python", default=sys.executable, help="one with torch, for torchrun")
    parser.add_argument("--only", default=",".join(PARTS), help="default %(default)s")
    parser.add_argument("--moments", type=int, default=20, help="random moments per fault (default 20)")
    parser.add_argument("--steps", type=int, help="of the long runs (default 300)")
    parser.add_argument("--exits", type=int, default=200, help="runs in a row that must end well (default 200)")
    parser.add_argument("--notes", metavar="FILE", help="what finished long runs found is noted there, and they are not run again")
    parser.add_argument("--table", help="file for the table (Markdown)")
    parser.add_argument("--machine", help="how the table calls this machine's CPU, if not as /proc/cpuinfo does")
    return parser.parse_args(arguments)


def check(options):
    parts = options.only.split(",")
    if set(parts) - set(PARTS):
        sys.exit(f"cluster: --only: found {options.only}, allowed: {', '.join(PARTS)}")
    if os.geteuid() != 0:
        sys.exit("cluster: needs root: it adds network namespaces and mounts a small disk")
    missing = [name for name in ("slurmctld", "slurmd", "munged", "mpirun", "ip", "tc", "pgrep") if shutil.which(name) is None]
    if missing:
        sys.exit(f"cluster: missing: {', '.join(missing)}")
    return parts


def rows_of(part, tools, folder):
    start = time.monotonic()
    try:
        found = importlib.import_module(part).rows(tools, folder)
    except Exception as error:  # noqa: BLE001: one part's trouble must not hide the others
        found = [(part, f"{type(error).__name__}: {error}"[:300], False)]
    for what, text, right in found:
        print(f"{'right' if right else 'WRONG'}  {what}: {text}", flush=True)
    print(f"cluster: {part}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def main(arguments):
    options = parse(arguments)
    parts, rows = check(options), {}
    with tempfile.TemporaryDirectory(prefix="fp8c-") as temporary:
        folder = pathlib.Path(temporary)
        folder.chmod(0o755)  # munged reads its own below it
        with contextlib.ExitStack() as stack:
            cluster = pair = None
            if WITH_SLURM & set(parts):
                (folder / "slurm").mkdir(mode=0o755)
                cluster = stack.enter_context(slurm.Slurm(folder / "slurm"))
            if WITH_HOSTS & set(parts):
                pair = stack.enter_context(hosts.Hosts())
            tools = Tools(options, cluster, pair)
            for part in parts:
                (folder / part).mkdir()
                rows[part] = rows_of(part, tools, folder / part)
                if options.table:  # who is cut off keeps what is done
                    results.write(pathlib.Path(options.table), rows, PARTS, options.machine)
    return 0 if all(right for part in rows.values() for _, _, right in part) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
