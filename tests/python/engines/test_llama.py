# SPDX-License-Identifier: Apache-2.0
"""50 steps of a Llama of 1.7 M parameters in fp8 (llama.py): the last ten losses are within 1 % of one rank's, which has the whole batch. For ZeRO it
is a rank with the same engine: DeepSpeed parts from torch's optimizer by 1e-3 at the third step, in f32 and on the CPU as well."""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import llama  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="a minute: ./tools/test --engines")


@pytest.fixture(scope="module")
def found():
    for needed in ("deepspeed", "transformers"):
        pytest.importorskip(needed)
    one = dict(engine_cells.pairs(["llama:zero3"], 1))
    return {**dict(engine_cells.pairs(llama.CELLS)), "one:zero3": one["llama:zero3"]}


@pytest.mark.parametrize("cell", llama.CELLS[1:])
def test_losses_are_those_of_one_rank(found, cell):
    alone = found.get(cell.replace("llama", "one"), found["llama:alone"])[0]["losses"]
    for said in found[cell]:
        assert "error" not in said, said
        assert said["states"] == [llama.STEPS] and said["parameters"] > 1.6e6
        assert said["losses"][-10:] == pytest.approx(alone[-10:], rel=0.01) and alone[-1] < 0.7 * alone[0]
