# SPDX-License-Identifier: Apache-2.0
"""Lightning's strategies on two ranks, and the documents' blocks for several devices."""

import os
import pathlib
import sys

import pytest

sys.path += [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "training")]
import documents  # noqa: E402
import engine_cells  # noqa: E402
import goldens  # noqa: E402
import strategies  # noqa: E402

ALL = os.environ.get("FP8_ENGINES") == "all"
CELLS = [cell for cell in strategies.CELLS if ALL or "bf16" not in cell]
BLOCKS = [name for name in documents.SEVERAL if name in documents.blocks()]


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("lightning")
    pytest.importorskip("deepspeed")
    return dict(engine_cells.pairs([*CELLS, *(f"document:{name}" for name in BLOCKS)]))


@pytest.mark.parametrize("cell", CELLS)
def test_a_strategy_trains_as_one_process_does(found, cell):
    _, strategy, precision = cell.split(":")
    expected = engine_cells.alone({"32-true": "f32", "bf16-mixed": "bf16", "fp8": "fp8 in bf16"}[precision])
    for said in found[cell]:
        assert "error" not in said, said
        assert said["dtypes"] == ["hpu torch.float32" if precision == "32-true" else "hpu torch.bfloat16"]
        assert said["losses"] == pytest.approx(expected["losses"], rel=1e-5 if precision == "32-true" else 0.03)
        assert said["states"] == ([engine_cells.STEPS] * 3 if precision == "fp8" else [])
        assert said["strategy"].lower().startswith(strategy.replace("_", "").partition("stage")[0])


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_the_documents(found, name):
    for said in found[f"document:{name}"]:
        assert "error" not in said, said
        assert said["world"] == 2 and said["steps"] >= 3
        deepspeed = name.startswith("hpu_advanced")
        assert said["strategy"] == ("HPUDeepSpeedStrategy" if deepspeed else "HPUParallelStrategy")
        assert said["seen"] in ([], ["hpu torch.bfloat16" if deepspeed else "hpu torch.float32"])
        assert name != "hpu_advanced.rst:10" or said["optimizer"] == "AdamW"  # the module's, not the file's


@pytest.mark.skipif(not ALL, reason="a minute: ./tools/test --engines")
@pytest.mark.parametrize("ranks", [2, 8])
def test_numbers_of_the_vendor(ranks):
    pytest.importorskip("lightning")
    pytest.importorskip("deepspeed")
    cells = [*goldens.CELLS, "golden:predict:", "golden:predict:config"]
    for cell, found in engine_cells.pairs(cells if ranks == 2 else ["document:hpu_basics.rst:1", "golden:train:2::", "golden:predict:"], ranks):
        for said in found:
            assert "error" not in said and said.get("device", "hpu") == "hpu", (cell, said)
            if "document" in cell:
                assert said["world"] == ranks and said["seen"] == ["hpu torch.float32"]
            elif "predict" in cell:
                assert said == {**said, "found": [[32768.0, 32768.0]], "engine": "InferenceEngine"}, cell
            else:
                # Three steps of .001, .02 and .0275 down from one; the last loss is of weights before the fourth.
                assert said["loss"] == pytest.approx(0.0164, abs=4e-4) and said["steps"] == 4, (cell, said)
