# SPDX-License-Identifier: Apache-2.0
"""DTensor splits converted models over two ranks (tensors.py): by columns, by rows, by both, with the tokens of a norm shared out. Outputs and
scales are those of one process; what can't be right is refused by the name of the module on both ranks."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import tensors  # noqa: E402

SAID = {"uneven": ["0: found a weight [95, 64] of placements (Shard(dim=0),)"] * 2,
        "on_one": ["the ranks ran different products in fp8: rank 0 ran none, rank 1 ran 2, '2' to '0'"] * 2,
        # Rank 0 has the codes to send, and the other hears of it what is wrong.
        **{kind: ["[c10d::scatter_] the weight of module '0' is Float8_e4m3fn", "rank 0 of 2: [c10d::scatter_] the weight of module '0' is"]
           for kind in ("static", "dynamic")}}


@pytest.fixture(scope="module")
def found():
    return dict(engine_cells.pairs([f"tensor:{kind}" for kind in tensors.KINDS]))


@pytest.mark.parametrize("kind", tensors.KINDS)
def test_outputs_and_scales_are_those_of_one_process(found, kind):
    torch = pytest.importorskip("torch")
    for said in found[f"tensor:{kind}"]:
        assert "error" not in said, said
        output, whole = torch.tensor(said["output"]), torch.tensor(said["whole"])
        assert output.shape == whole.shape
        torch.testing.assert_close(output, whole, rtol=0.125, atol=0.0625)
        assert len(said["states"]) == len(said["whole_states"]) == (1 if kind in ("column", "row") else 2)
        for state, expected in zip(said["states"], said["whole_states"]):
            assert state[0] == expected[0] == 1
        # The first layer's inputs and weights are the same values; behind it are results of fp8 products.
        assert said["states"][0][1] == pytest.approx(said["whole_states"][0][1], rel=1e-6)
        for state, expected in zip(said["states"], said["whole_states"]):
            assert state[1] == pytest.approx(expected[1], rel=0.01)
    first, second = found[f"tensor:{kind}"]
    assert first["output"] == second["output"] and first["states"] == second["states"]


@pytest.mark.parametrize("kind", tensors.REFUSED)
def test_what_cannot_be_right_is_refused_on_both_ranks(kind):
    (_, ranks), = engine_cells.pairs([f"tensor:{kind}"])
    for said, expected in zip(ranks, SAID[kind]):
        assert expected in said.get("error", "") and said["seconds"] < engine_cells.SECONDS, said
