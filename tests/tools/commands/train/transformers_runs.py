#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers' Trainer makes of training arguments: the runs of fp8 train --training-args are compared with them.

    transformers_runs.py             trains again and compares with transformers_runs.json, which train_settings_test reads
    transformers_runs.py --write     writes it

38 samples. "rates": of each step; "evaluations": the steps done at each; "checkpoints": the steps of those that are
left. "key": fp8 train refuses it by name; "refused": so does transformers, for the whole.
"""
import importlib.util
import json
import pathlib
import re
import sys
import tempfile

TABLE = pathlib.Path(__file__).with_suffix(".json")
SAMPLES = 38


def option_sets():
    steps = {"eval_strategy": "steps"}
    for row in (
            {"num_train_epochs": 2}, {"num_train_epochs": 2, "dataloader_drop_last": True}, {"num_train_epochs": 2.1},
            {"num_train_epochs": 0.3}, {"num_train_epochs": 1.5, "gradient_accumulation_steps": 3},
            {"num_train_epochs": 2, "gradient_accumulation_steps": 4, "dataloader_drop_last": True},
            {"num_train_epochs": 1, "per_device_train_batch_size": 16}, {"num_train_epochs": 1, "max_steps": 13},
            {"max_steps": -1, "num_train_epochs": 1}, {"max_steps": 3, "num_train_epochs": 9, "warmup_steps": 3},
            {"num_train_epochs": 2.1, "warmup_steps": 0.15}, {"max_steps": 12, "warmup_steps": 1},
            {"max_steps": 12, "warmup_steps": 5, "lr_scheduler_type": "cosine"},
            {"max_steps": 11, "warmup_steps": 0.25, "lr_scheduler_type": "cosine"},
            {"max_steps": 9, "warmup_steps": 2, "lr_scheduler_type": "cosine_with_min_lr",
             "lr_scheduler_kwargs": {"min_lr": 0.002}},
            {"max_steps": 6, "warmup_steps": 3, "lr_scheduler_type": "constant"},
            {"max_steps": 6, "warmup_steps": 3, "lr_scheduler_type": "constant_with_warmup"},
            {"max_steps": 6, "max_grad_norm": 0, "lr_scheduler_kwargs": None},
            {"max_steps": 10, **steps, "eval_steps": 4}, {"max_steps": 7, **steps, "logging_steps": 3},
            {"num_train_epochs": 1.5, "eval_strategy": "epoch", "gradient_accumulation_steps": 2},
            {"max_steps": 13, "eval_strategy": "epoch"}, {"max_steps": 10, "save_steps": 4},
            {"max_steps": 10, "save_steps": 3, "save_total_limit": 2},
            {"num_train_epochs": 2.1, "save_strategy": "epoch", "save_total_limit": 1},
            {"num_train_epochs": 2, "save_strategy": "epoch", "gradient_accumulation_steps": 3},
            {"max_steps": 8, **steps, "eval_steps": 2, "save_steps": 4, "load_best_model_at_end": True}):
        yield row, None
    best = {"max_steps": 4, "load_best_model_at_end": True, **steps, "eval_steps": 2, "save_steps": 4}
    for key, row in (("max_steps", {"max_steps": 0}), ("eval_steps", {"max_steps": 4, **steps, "eval_steps": 0.5}),
                     ("save_steps", {"max_steps": 4, "save_steps": 0.5}), ("warmup_steps", {"warmup_steps": 1.5}),
                     ("logging_steps", {"max_steps": 4, "logging_steps": 0.5}), ("warmup_steps", {"warmup_steps": -1}),
                     ("save_total_limit", {"max_steps": 4, "save_total_limit": 0}), ("max_grad_norm", {
                         "max_steps": 4, "max_grad_norm": None}),
                     ("save_strategy", {"max_steps": 4, **steps, "eval_steps": 2, "save_strategy": "best"}),
                     ("load_best_model_at_end", {**best, "save_steps": 3}),
                     ("load_best_model_at_end", {**best, "eval_strategy": "no"}),
                     ("greater_is_better", {**best, "greater_is_better": True}),
                     ("metric_for_best_model", {**best, "metric_for_best_model": "accuracy"}),
                     ("lr_scheduler_type", {"max_steps": 4, "lr_scheduler_type": "polynomial"}),
                     ("lr_scheduler_type", {"max_steps": 4, "lr_scheduler_type": "cosine_with_min_lr"}),
                     ("lr_scheduler_kwargs.num_cycles", {"max_steps": 4, "lr_scheduler_type": "cosine",
                                                         "lr_scheduler_kwargs": {"num_cycles": 2}})):
        yield row, key


def train(options):
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels=None):
            return {"loss": self.layer(x).square().mean()}

    row = {"rates": [], "evaluations": []}

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **_):
            row["rates"].append(optimizer.param_groups[0]["lr"])

        def on_evaluate(self, args, state, control, **_):
            row["evaluations"].append(state.global_step)

    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        try:
            arguments = transformers.TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True,
                                                       **{"learning_rate": 0.01, "per_device_train_batch_size": 4,
                                                          **options})
            trainer = transformers.Trainer(Model(), arguments, train_dataset=data, eval_dataset=data[:4],
                                           callbacks=[Watch()])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        except (ValueError, TypeError, KeyError):
            return {"refused": True}
        row["checkpoints"] = sorted(int(re.sub(r"\D", "", path.name)) for path in
                                    pathlib.Path(folder).glob("checkpoint-*"))
    return row


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) < 1e-12 if isinstance(a, float) and isinstance(b, float) else a == b


def main():
    if importlib.util.find_spec("transformers") is None:
        print("SKIPPED: no transformers here, tools/setup --python installs it")
        return 0
    import transformers
    transformers.logging.set_verbosity_error()
    rows = []
    for options, key in option_sets():
        run = train(options)
        rows.append({"options": options, **({"key": key, "refused": "refused" in run} if key else run)})
    if "--write" in sys.argv:
        TABLE.write_text("[" + ",\n ".join(json.dumps(row) for row in rows) + "]\n")
        return 0
    wrong = [(was, now) for was, now in zip(json.loads(TABLE.read_text()), rows) if not close(was, now)]
    for was, now in wrong:
        print("written:", was, "\ntrained:", now)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
