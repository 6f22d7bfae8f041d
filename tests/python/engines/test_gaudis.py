# SPDX-License-Identifier: Apache-2.0
"""GaudiTrainer(fp8=True) on two ranks: DDP, the averaged gradients of fast_ddp, FSDP2 and DeepSpeed's ZeRO-3 train alike, each product in fp8."""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import gaudis  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="a minute: ./tools/test --engines")


@pytest.fixture(scope="module")
def found():
    for needed in ("deepspeed", "transformers", "accelerate"):
        pytest.importorskip(needed)
    return dict(engine_cells.pairs([f"gaudi:{name}" for name in gaudis.ARGUMENTS]))


@pytest.mark.parametrize("name", gaudis.ARGUMENTS)
def test_gaudi_trainer(found, name):
    for said in found[f"gaudi:{name}"]:
        assert "error" not in said, said
        assert said["losses"] == pytest.approx(found["gaudi:ddp"][0]["losses"], rel=5e-3) and said["steps"] == [3] * len(said["steps"]) != []
        kind = {"ddp": "DistributedDataParallel", "fast_ddp": "LlamaForCausalLM", "deepspeed": "DeepSpeedEngine", "fsdp": "FSDPLlamaForCausalLM"}
        assert said["kind"] == kind[name]
