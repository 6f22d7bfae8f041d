# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed says of the JSONs of tests/configs/training/deepspeed_test.txt, whose lines are what `fp8 config check` says of them.

    python verdicts.py    a line of JSON for each: [section, text, what fp8 says, what DeepSpeed says]; "none": it takes it"""

import json
import os
import pathlib
import sys
import types

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "configs" / "training" / "deepspeed_test.txt"
ONE = '{"train_micro_batch_size_per_gpu": 1, %s}'
# The sections that are a DeepSpeed JSON for two processes, and what is around each text.
WHOLE = {"KeysAndValues": ONE, "Precision": ONE, "Optimizers": ONE, "Schedules": ONE, "TheBatchFromTwoOrOneOfItsKeys": "{%s}",
         "Offload": ONE.replace("%s", '"zero_optimization": {%s}'), "ActivationCheckpointing": ONE.replace("%s", '"activation_checkpointing": {%s}')}


def cases():
    """Section, text, and what fp8 says: the whole, or a part."""
    section, text, found = "", [], {}
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("== "):
            section, text = line.rpartition(".")[2], []
        elif line.startswith(("  = ", "  ~ ")):
            if section in WHOLE and text:
                found[section, "\n".join(text)] = line[4:]
            text = []
        elif line and not line.startswith("#"):
            text.append(line)
    return [(*key, said) for key, said in found.items()]


def verdict(config):
    """Of DeepSpeed's class for two processes; of its engine, but for offload (whose operators it would compile)."""
    import torch

    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig
    ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda: 2, get_model_parallel_world_size=lambda: 1)
    try:
        DeepSpeedConfig(config, ranks)
        if "offload" not in json.dumps(config) and "train_batch_size" not in config:
            model = torch.nn.Linear(4, 4).to("hpu")
            given = {} if "optimizer" in config else {"optimizer": torch.optim.AdamW(model.parameters())}
            deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, **given)
        return "none"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


if __name__ == "__main__":
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
    import fp8.deepspeed  # noqa: F401
    import deepspeed
    deepspeed.init_distributed("hccl", verbose=False, auto_mpi_discovery=False, init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    for section, text, said in cases():
        print(json.dumps([section, text, said, verdict(json.loads(WHOLE[section] % text))]), flush=True)
