#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calibration by Ray: as many tasks as the cluster has room for take shares; Ray starts those that die again.

  python tools/examples/ray_calibrate.py MODEL TEXT OUT [TASKS]      OUT on a disk that all nodes see
"""

import shlex
import subprocess
import sys

import ray

TAKE = "fp8 measure {model} -d {text} --samples 1024 --batch 4 -o {out} --threads 4 --shares 64 --rank {rank}/{tasks}"
JOIN = "fp8 measure {model} -d {text} --samples 1024 --batch 4 -o {out} --shares 64 --join"


def command(line, **values):
    return [word.format(**values) for word in shlex.split(line)]


@ray.remote(num_cpus=4, max_retries=5)
def take_shares(values):
    subprocess.run(command(TAKE, **values), check=True)


def main():
    model, text, out = sys.argv[1:4]
    tasks = int(sys.argv[4]) if len(sys.argv) > 4 else 16
    ray.init()
    ray.get([take_shares.remote({"model": model, "text": text, "out": out, "rank": rank, "tasks": tasks}) for rank in range(tasks)])
    subprocess.run(command(JOIN, model=model, text=text, out=out), check=True)


if __name__ == "__main__":
    main()
