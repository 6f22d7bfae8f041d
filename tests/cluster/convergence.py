# SPDX-License-Identifier: Apache-2.0
"""fp8 on 1, 2 and 4 ranks with one global batch: the mean of the last 20 steps' losses over 3 seeds, within 1 %."""

import statistics

import training

STEPS, SEEDS, GLOBAL_BATCH = 300, (1, 2, 3), 8
RECIPES = ("habana", "nvidia", "current")


def last_losses(tools, out, ranks, recipe, seed, steps):
    command = training.command(tools.binary, out, steps, "--recipe", recipe, "--seed", seed, batch=GLOBAL_BATCH // ranks, precision="fp8")
    if ranks > 1:
        tools.launchers.mpirun(command + ["--strategy", "hpu_ddp"], ranks, timeout=3600).must_be_ok(out.name)
    else:
        tools.run(command)
    return statistics.fmean(training.losses(out)[-20:])


def of_seeds(tools, folder, ranks, recipe, steps):
    return [tools.notes.get(f"{recipe}, {steps} steps, {ranks} ranks, seed {seed}",
                            lambda: last_losses(tools, folder / f"{recipe}-{ranks}-{seed}", ranks, recipe, seed, steps)) for seed in SEEDS]


def rows(tools, folder):
    found = []
    steps = tools.options.steps or STEPS
    for recipe in RECIPES:
        losses = {ranks: of_seeds(tools, folder, ranks, recipe, steps) for ranks in (1, 2, 4)}
        means = {ranks: statistics.fmean(of_seed) for ranks, of_seed in losses.items()}
        apart = max(abs(means[ranks] / means[1] - 1) for ranks in (2, 4))
        seeds = max(losses[1]) / min(losses[1]) - 1
        text = ", ".join(f"{ranks}: {mean:.4f}" for ranks, mean in means.items())
        found.append((f"fp8 {recipe}, {steps} steps, ranks: last 20 losses, mean of {len(SEEDS)} seeds",
                      f"{text} ({100 * apart:.2f} % apart; one rank's seeds {100 * seeds:.2f} %)", apart <= 0.01))
    return found
