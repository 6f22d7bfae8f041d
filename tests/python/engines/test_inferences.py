# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed splits a model for inference over two ranks, before fp8 converts it and afterwards: its logits are those of the whole in fp8, or
the split is refused: of codes with a scale for each row."""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import inferences  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="a minute: ./tools/test --engines")


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("deepspeed")
    return dict(engine_cells.pairs(inferences.CELLS))


@pytest.mark.parametrize("cell", inferences.CELLS)
def test_a_split_model_gives_the_logits_of_the_whole(found, cell):
    first, second = found[cell]
    if cell == "inference:before:dynamic":
        refused = "'model.layers.0.self_attn.q_proj' is Float8_e4m3fn (E4M3 channel weights, dynamic token activations"
        assert refused in first["error"] and refused in second["error"]
        return
    assert "error" not in first and "error" not in second, (first, second)
    assert first["split"] == second["split"] and first["rows"] == 96
    assert first["split"] < 1e-4 * first["fp8"]
