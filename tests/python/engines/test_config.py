# SPDX-License-Identifier: Apache-2.0
"""`fp8 config check` takes what DeepSpeed takes, and refuses what DeepSpeed refuses, of the JSONs of the program's own test (verdicts.py).
What is judged otherwise stands here, and why."""

import json
import pathlib
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import verdicts  # noqa: E402

# Refused by fp8 alone: DeepSpeed starts, and does something else than the file says, or ends later.
STRICTER = {
    '"zero_optimisation": {"stage": 2}': "an unknown key: without ZeRO, silently", '"stage": 2': "the same",
    '"bf16": {"enabled": "yes"}': "a text that pydantic takes for true", '"bf16": {}, "bfloat16": {"enabled": true}': "one of the two is not read",
    '"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}': "the first step divides by zero",
    '"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}}': "a warning, and log",
    '"stage": 2, "offload_param": {"device": "cpu"}': "no parameter is offloaded", '"stage": 2, "cpu_offload_param": true': "the same",
    '"offload_optimizer": {"device": "cpu"}': "without ZeRO nothing is offloaded",
    '"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}': "stage 2 has no swapper",
    '"stage": 3, "offload_param": {"device": "nvme"}': "the swapper fails at the missing path",
    '"contiguous_memory_optimization": true, "number_checkpoints": 4': "an assertion at the first checkpoint"}
# Refused by DeepSpeed alone.
MILDER = {'"optimizer": {"type": "Lamb"}': "DeepSpeed has its kernel for CUDA alone; the check does not judge the device"}


def test_verdicts(tmp_path):
    pytest.importorskip("deepspeed")
    done = subprocess.run([sys.executable, verdicts.__file__, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(found) == len(verdicts.cases()) >= 36
    assert {text for _, text, said, of_deepspeed in found if said != "none" and of_deepspeed == "none"} == STRICTER.keys()
    assert {text for _, text, said, of_deepspeed in found if said == "none" and of_deepspeed != "none"} == MILDER.keys()
