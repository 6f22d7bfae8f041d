# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks in f32, bf16 and fp8 (engine_cells.py): each cell is right, or refused by the name of a module on both ranks.

FP8_ENGINES=all: all cells (./tools/test --engines), else f32, and fp8 of models that are converted before the engine takes them."""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402

ALL = os.environ.get("FP8_ENGINES") == "all"
# In the order of ENGINES: what one of them leaves in the process is in the way of those before it (DeepSpeed's pipeline: of ZeRO's).
CELLS = sorted(engine_cells.CELLS + engine_cells.COMPILED, key=lambda cell: engine_cells.ENGINES.index(cell.split(":")[0]))
CELLS = [cell for cell in CELLS if ALL or cell.split(":")[1] == "f32" or cell.split(":")[1:] == ["fp8", "before"]]
# What is refused, and whose name stands in the error.
REFUSED = {f"{engine}:fp8:after": "_fsdp_wrapped_module.0" if engine == "fsdp1" else "0: an engine has sharded its weight"
           for engine in ("fsdp1", "fsdp2", "zero3", "zero3_offload", "tp", "tp_sp")}


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("deepspeed")
    return dict(engine_cells.pairs(CELLS))


@pytest.fixture(scope="module")
def alone():
    return {precision: engine_cells.alone(precision) for precision in engine_cells.PRECISIONS}


def near(found, expected, relative, absolute=0.0):
    return found == pytest.approx(expected, rel=relative, abs=absolute)


@pytest.mark.parametrize("cell", CELLS)
def test_both_ranks_say_the_same_in_time(found, cell):
    ranks = found[cell]
    if cell in REFUSED:
        assert all(REFUSED[cell] in rank.get("error", "") and rank["seconds"] < engine_cells.SECONDS for rank in ranks), ranks
    else:
        assert not any("error" in rank for rank in ranks), ranks
        assert ranks[0]["losses"] == ranks[1]["losses"] and ranks[0]["states"] == ranks[1]["states"]


@pytest.mark.parametrize("cell", [cell for cell in CELLS if ":f32" in cell])
def test_f32_is_that_of_one_process(found, alone, cell):
    assert found[cell][0]["dtypes"] == ["torch.float32"] and near(found[cell][0]["losses"], alone["f32"]["losses"], 1e-5)
    if cell.startswith("zero"):
        assert found[cell][0]["losses"] == found["zero0:f32:before"][0]["losses"]
    if cell.startswith(("fsdp", "zero")):
        assert near(found[cell][0]["losses"], found["ddp:f32:before"][0]["losses"], 1e-6)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if ":bf16" in cell])
def test_bf16_is_bf16(found, alone, cell):
    """Engines of DeepSpeed hold the weights themselves in bf16; stage 0 steps them there, without masters in f32."""
    assert found[cell][0]["dtypes"] == ["torch.bfloat16"]
    if not cell.startswith("zero0"):
        assert near(found[cell][0]["losses"], alone["bf16"]["losses"], 0.02)
    assert found[cell][0]["losses"] != found[cell.replace("bf16", "f32")][0]["losses"]


@pytest.mark.parametrize("cell", [cell for cell in CELLS if ":fp8" in cell and cell not in REFUSED])
def test_fp8_is_fp8(found, alone, cell):
    """Each product ran in fp8 in each step, with one scale on both ranks; the losses are one process', and not those of f32."""
    said = found[cell][0]
    each = 2 if cell.startswith("pp") else 1  # micro-batches
    assert [[state[0] for state in states] for states in said["states"]] == [[each * (step + 1)] * 3 for step in range(engine_cells.STEPS)]
    # The second micro-batch of a pipeline has the scale that the first one's amax gave.
    assert near(said["losses"], alone["fp8"]["losses"], 0.01 * (1 + each)) and not near(said["losses"], alone["f32"]["losses"], 1e-4)
    for state, expected in zip(said["states"][0], alone["fp8"]["states"][0]):
        assert near(state[1][each - 1:], expected[1][each - 1:], 1e-6)  # of inputs and weights: those of the whole
    if cell.startswith("pp"):
        assert said["losses"] == found["pp:fp8:before"][0]["losses"]
    elif cell.startswith("tp"):
        assert all(near(state[2], expected[2], 0.01) for state, expected in zip(said["states"][0], alone["fp8"]["states"][0]))
    else:
        assert near(said["losses"], found["ddp:fp8:before"][0]["losses"], 1e-7, 1e-5) and said["states"] == found["ddp:fp8:before"][0]["states"]
