# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on hpu, with the names of Optimum Habana: `optimum.habana` -> `fp8.optimum` is the whole change of a script.

    >>> import tempfile, torch, transformers, fp8
    >>> from fp8.optimum import GaudiConfig, GaudiTrainer, GaudiTrainingArguments
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1))
    >>> rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
    >>> args = GaudiTrainingArguments(tempfile.mkdtemp(), use_habana=True, fp8=True, max_steps=2, report_to=[], disable_tqdm=True)
    >>> trainer = GaudiTrainer(model, GaudiConfig(use_fused_adam=True), args, train_dataset=rows, callbacks=[])
    >>> trainer.remove_callback(transformers.PrinterCallback)
    >>> trainer.train().global_step, model.device.type, len(trainer.fp8_report.converted)
    (2, 'hpu', 8)

Arguments, and what the emulated device does with them: tools/pages/python.md."""

import torch as _torch  # noqa: F401: it makes the device known, which is made with names of _trainers

from fp8 import _trainers
from fp8.optimum import utils
from fp8.optimum import utils as distributed
from fp8.optimum._arguments import GaudiConfig, GaudiSeq2SeqTrainingArguments, GaudiTrainingArguments
from fp8.optimum._trainer import GaudiSeq2SeqTrainer, GaudiTrainer
from fp8.optimum.utils import adapt_transformers_to_gaudi

__all__ = ["GaudiConfig", "GaudiSeq2SeqTrainer", "GaudiSeq2SeqTrainingArguments", "GaudiTrainer", "GaudiTrainingArguments",
           "adapt_transformers_to_gaudi", "distributed", "utils"]


def aliases(root: str) -> None:
    """The modules of optimum.habana below `root`."""
    names = _trainers.NAMES["optimum"]
    for name in names["modules of utils"]:
        _trainers.put(root + name, utils)
    for name in names["modules"]:
        _trainers.alias(f"{root}.transformers{name}", __name__, "optimum.habana's names, on the emulated hpu")


aliases(__name__)
