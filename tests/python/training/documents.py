# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the documents in $FP8_TEST_DATA/documents, and the names that they take for granted."""

import os
import pathlib
import re
import tempfile

# Blocks that do not run, and why. Their numbers are those of the blocks in the file.
LEFT_OUT = {"hpu_intermediate.rst:2": "a syntax error: a quote too many", "hpu_intermediate_fp8.txt:2": "a syntax error: a body is not indented"}
# Blocks for several devices, and what completes them: replacements, and what is added at the end.
FIT, HOST_OPTIMIZER = "\nmodel = BoringModel()\ntrainer.fit(model)", "\ntrainer.strategy.config['zero_force_ds_cpu_optimizer'] = False"
SEVERAL = {
    "hpu_basics.rst:1": ({}, FIT), "hpu_basics.rst:2": ({"devices=8": "devices=1"}, FIT),  # two launches
    "hpu_advanced.rst:3": ({"(LightningModule)": "(BoringModel)"}, ""),
    **{f"hpu_advanced.rst:{i}": ({}, FIT) for i in (4, 5, 6, 9)}, **{f"hpu_advanced.rst:{i}": ({}, HOST_OPTIMIZER + FIT) for i in (7, 8)},
    "hpu_advanced.rst:10": ({"(LightningModule)": "(BoringModel)"}, ""),
    "hpu_advanced.rst:11": ({"(LightningModule)": "(BoringModel)", "nn.Linear(32)": "nn.Linear(32, 32)"},
                            HOST_OPTIMIZER + "\nmodel = SampleModel()\ntrainer.fit(model)")}
# Lightning has had no module of that name since 2.0.
MOVED = {"from lightning.callbacks import": "from lightning.pytorch.callbacks import"}
# The text files have no marks: the first and last line of each block.
TEXT = {
    "hpu_intermediate_fp8.txt": [
        ("from lightning_habana.pytorch.accelerator import HPUAccelerator",
         'trainer = Trainer(devices=1, accelerator=HPUAccelerator(), precision="bf16-mixed")'),
        ("from lightning import Trainer", "trainer.fit(model, datamodule=dm)"), ("import torch", "trainer.fit(model, datamodule=dm)"),
        ("from lightning import Trainer", "trainer.fit(model)"), ("from lightning import Trainer", "trainer.predict(model)"),
        ("# Replace module for fp8 inference measurements", "trainer.predict(model)"),
        ("from lightning import Trainer", "trainer = Trainer(accelerator=HPUAccelerator(), callbacks=[device_stats])")],
    "accelerating_training.txt": [("args = GaudiTrainingArguments(", ")")],
}
CONTINUES = {"hpu_intermediate_fp8.txt:5": "hpu_intermediate_fp8.txt:4"}  # with the names of the block before
ENVIRONMENT = {"PL_TRAINER_MAX_STEPS": "3", "PL_TRAINER_LIMIT_PREDICT_BATCHES": "4", "PL_TRAINER_LIMIT_VAL_BATCHES": "1",
               "PL_TRAINER_ENABLE_PROGRESS_BAR": "False", "PL_TRAINER_ENABLE_MODEL_SUMMARY": "False"}


def folder():
    data = os.environ.get("FP8_TEST_DATA")
    return pathlib.Path(data, "documents") if data else None


def blocks():
    """{"file:number": code}"""
    found = {}
    if folder() is None:
        return found
    for file in sorted(folder().glob("hpu_*.rst")):
        parts = re.split(r"^\.\. code-block:: python\n", file.read_text(), flags=re.M)[1:]
        for i, part in enumerate(parts):
            lines = re.match(r"(?:\s*\n|    .*\n)+", part + "\n")[0].splitlines()
            found[f"{file.name}:{i}"] = "\n".join(line[4:] for line in lines)
    for name, marks in TEXT.items():
        lines, at = (folder() / name).read_text().splitlines(), 0
        for i, (first, last) in enumerate(marks):
            begin = lines.index(first, at)
            at = lines.index(last, begin) + 1
            found[f"{name}:{i}"] = "\n".join(lines[begin:at])
    return found


def of_optimum():
    """What its block takes for granted: by the shim's names where it is."""
    try:
        import optimum.habana as root
    except ImportError:
        import fp8.optimum as root
    root.GaudiConfig(use_fused_adam=True).save_pretrained(folder := tempfile.mkdtemp())
    return {"GaudiTrainingArguments": root.GaudiTrainingArguments, "path_to_my_gaudi_config": folder}


def run(code, names=None):
    """Executes a block. Returns its names."""
    import lightning
    import torch
    from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

    class Counting(BoringModel):
        """BoringModel, as the documents call it, and what its Linear gave."""

        def __init__(self):
            super().__init__()
            self.seen = []
            self.layer.register_forward_hook(lambda module, given, out: self.seen.append((out.device.type, out.dtype)))

    for old, new in MOVED.items():
        code = code.replace(old, new)
    given = {"Trainer": lightning.Trainer, "LightningModule": lightning.LightningModule, "nn": torch.nn, "torch": torch, "batch_size": 4,
             "BoringModel": Counting, "LitClassifier": Counting, "MNISTDataModule": lambda batch_size: BoringDataModule()}
    names = {**given, **(of_optimum() if "GaudiTrainingArguments" in code else {}), **(names or {})}
    exec(compile(code, "block", "exec"), names)  # noqa: S102: the documents
    return names


def completed(name):
    """A block for several devices, with as many as there are ranks (engine_cells.py) instead of eight."""
    code, (replacements, end) = blocks()[name], SEVERAL[name]
    for old, new in {"lightning_habana": "fp8.lightning", "devices=8": f"devices={os.environ['ENGINE_RANKS']}", **replacements}.items():
        code = code.replace(old, new)
    return code + end


def run_all(change=lambda code: code):
    """{block: what it had for names, or its error}, of those that run."""
    done = {}
    for name, code in blocks().items():
        if name not in LEFT_OUT and name not in SEVERAL:
            before = done.get(CONTINUES.get(name), {})
            try:
                done[name] = run(change(code), before if isinstance(before, dict) else {})
            except Exception as error:  # noqa: BLE001
                done[name] = f"{type(error).__name__}: {error}"
    return done
