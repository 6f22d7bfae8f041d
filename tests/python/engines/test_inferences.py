# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed splits a model for inference over two ranks, before fp8 converts it and afterwards: its logits are those of the whole in fp8, or
the split is refused: of codes with a scale for each row."""

import json
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
    return dict(engine_cells.pairs([*inferences.CELLS, *(f"{inferences.REDUCED}:{scales}" for scales in ("unit", "own"))]))


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


@pytest.mark.parametrize("scales", ["unit", "own", "measured"])
def test_ranks_add_the_results_of_one_token_in_fp8(found, scales, tmp_path):
    """With the scales of a measurement, with 1, or each message with its own where what is added was not measured."""
    if scales == "measured":
        (_, (first, second)), = engine_cells.pairs([f"{inferences.REDUCED}:{tmp_path}"])
    else:
        first, second = found[f"{inferences.REDUCED}:{scales}"]
    assert "error" not in first and "error" not in second, (first, second)
    assert first["greedy"] == second["greedy"] and first["scale_inv"] == second["scale_inv"]
    for number, rank in enumerate((first, second)):
        (largest, error), (_, whole) = rank["tokens"]
        assert 0 < error < largest / 8  # two casts to three bits of mantissa; INC sums more tokens as they are
        assert whole == 0 and rank["formula"] == (None if scales == "own" else 0)
        assert bool(rank["warnings"]) == (scales == "own"), rank["warnings"]
        if scales == "own":
            assert "what the ranks of" in rank["warnings"][0] and "each message has a scale of its own" in rank["warnings"][0]
        if scales == "measured":
            said = json.loads((tmp_path / f"m_hooks_maxabs_MAXABS_POW2_{number}_2.json").read_text())["Nodes"][inferences.ADDED]["outputs"]
            assert max(said[0], rank["scale_inv"][0]) == rank["scale_inv"][0] and said[1] == rank["scale_inv"][1]


def test_measurements_serve_another_number_of_ranks_and_checkpoints_are_refused(tmp_path):
    pytest.importorskip("deepspeed")
    (_, ranks), = engine_cells.pairs([f"inference:measured:{tmp_path}"])
    assert not any("error" in said for said in ranks), ranks
    inferences.others(tmp_path)
    (_, ranks), = engine_cells.pairs([f"inference:files:{tmp_path}"])
    for said in ranks:
        assert "error" not in said, said
        assert said["of_two"] == 0 and said["parts"] < 1e-4 * said["fp8"]
        save, whole, parts = said["refused"]
        assert save.startswith("save: model.layers.0.self_attn.q_proj: its weight is one of 2 parts") and not said["saved"]
        assert "inc_1: model.layers.0.mlp.down_proj.weight: found shape [192, 512], stored transposed; the model's is [192, 256]" in whole
        assert "inc_2: tensor 'model.layers.0.mlp.down_proj.weight_0_2': the model has none of this name" in parts
