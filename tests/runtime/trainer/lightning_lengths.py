#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many steps Lightning makes of 60 sets of options, and after which of them it validates.

    lightning_lengths.py             counts again and compares with lightning_lengths.json, which run_length_test reads
    lightning_lengths.py --write     writes it

15 batches of training data, 2 of validation. "steps": of each epoch; "validations": the steps done at each;
"estimated": Trainer.estimated_stepping_batches before the first step, null with a schedule of accumulations;
"within_a_step": a validation came between two batches of one step; "refused": Lightning ended with an error.
"""
import importlib.util
import itertools
import json
import logging
import pathlib
import sys
import warnings

TABLE = pathlib.Path(__file__).with_suffix(".json")
BATCHES = 15


def option_sets():
    """Pairs of what decides about a length, and some of three."""
    epochs = [{"max_epochs": 2}, {"max_epochs": 3, "max_steps": 20}]
    limits = [{}, {"limit_train_batches": 1}, {"limit_train_batches": 0.2}, {"limit_train_batches": 4},
              {"overfit_batches": 2}, {"overfit_batches": 0.4}]
    accumulations = [{}, {"accumulate_grad_batches": 3}, {"accumulate_grad_batches": {"1": 4}}]
    for parts in itertools.product(epochs, limits, accumulations):
        yield {key: value for part in parts for key, value in part.items()}
    for validation in ({"val_check_interval": 0.5}, {"val_check_interval": 5}, {"val_check_interval": 20},
                       {"val_check_interval": 1}, {"check_val_every_n_epoch": 2}, {"limit_val_batches": 0},
                       {"val_check_interval": 4, "check_val_every_n_epoch": None},
                       {"val_check_interval": 20, "check_val_every_n_epoch": None}):
        for more in ({"max_epochs": 3}, {"max_epochs": 3, "accumulate_grad_batches": 5},
                     {"max_steps": 17, "limit_train_batches": 10}):
            yield {**more, **validation}


def count(options):
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Counter(pl.Callback):
        def __init__(self):
            self.row = {"steps": [], "validations": [], "estimated": None, "within_a_step": False}

        def on_train_start(self, trainer, _):
            if not scheduled:
                self.row["estimated"] = trainer.estimated_stepping_batches

        def on_train_epoch_start(self, trainer, _):
            self.row["steps"].append(-trainer.global_step)

        def on_train_epoch_end(self, trainer, _):
            self.row["steps"][-1] += trainer.global_step

        def on_validation_start(self, trainer, _):
            self.row["validations"].append(trainer.global_step)
            self.row["within_a_step"] |= trainer.fit_loop._should_accumulate()

    options = dict(options)
    accumulate = options.get("accumulate_grad_batches")
    scheduled = isinstance(accumulate, dict)
    counter = Counter()
    callbacks = [counter]
    if scheduled:
        del options["accumulate_grad_batches"]
        callbacks.append(pl.callbacks.GradientAccumulationScheduler({int(k): v for k, v in accumulate.items()}))
    data = DataLoader(TensorDataset(torch.ones(BATCHES, 1)), batch_size=1)
    val = DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=1)
    try:
        pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                   enable_model_summary=False, num_sanity_val_steps=0, callbacks=callbacks,
                   **options).fit(Module(), data, val)
    except (ValueError, pl.utilities.exceptions.MisconfigurationException):
        return {"refused": True}
    return counter.row


def main():
    if importlib.util.find_spec("lightning") is None:
        print("SKIPPED: no lightning here, tools/setup --python installs it")
        return 0
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows = [{"options": options, **count(options)} for options in option_sets()]
    text = "[" + ",\n ".join(json.dumps(row) for row in rows) + "]\n"
    if "--write" in sys.argv:
        TABLE.write_text(text)
        return 0
    wrong = [(was, now) for was, now in zip(json.loads(TABLE.read_text()), rows) if was != now]
    for was, now in wrong:
        print("written:", was, "\ncounted:", now)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
