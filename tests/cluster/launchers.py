# SPDX-License-Identifier: Apache-2.0
"""torchrun, mpirun, srun on two nodes and two hosts joined by a cable: the same weights, bit for bit; and in f32 with half
the batch per rank the losses of one process with the whole batch."""

import training


def rows(tools, folder):
    """Per strategy and launcher: (what, found, right)."""
    found = []
    for strategy in ("hpu_parallel", "hpu_ddp", "fast_ddp"):
        more = ("--strategy", strategy)
        sums = {}
        for name in ("torchrun", "mpirun", "srun", "two_hosts"):
            out = folder / f"{strategy}-{name}"
            run = getattr(tools.launchers, name)(training.command(tools.binary, out, 15, *more), 2)
            sums[name] = training.weights(out) if run.ok else run.why
        same = len(set(sums.values())) == 1 and all(len(s) == 64 for s in sums.values())
        found.append((f"{strategy}, 2 ranks: torchrun, mpirun, srun, two hosts", "equal weights" if same else str(sums), same))
        if strategy == "hpu_ddp":
            found.append(against_one(tools, folder, folder / f"{strategy}-torchrun"))
    return found


def against_one(tools, folder, two):
    out = folder / "one"
    tools.run(training.command(tools.binary, out, 15, batch=4))
    apart = [abs(a - b) for a, b in zip(training.losses(out), training.losses(two), strict=True)]
    return ("losses of 15 steps in f32, 2 x batch 2 against batch 4", f"at most {max(apart):.1e} apart", max(apart) <= 1e-6)
