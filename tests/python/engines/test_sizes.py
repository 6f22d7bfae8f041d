# SPDX-License-Identifier: Apache-2.0
"""A model of 20 M parameters on two ranks (sizes.py): each has half of what one process has, and in fp8 half of bf16's bytes are gathered.
In CI without DeepSpeed's engine."""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import sizes  # noqa: E402

ALL = os.environ.get("FP8_ENGINES") == "all"
CELLS = [cell for cell in sizes.CELLS if ALL or "zero" not in cell]


@pytest.fixture(scope="module")
def found():
    if ALL:
        pytest.importorskip("deepspeed")
    return dict(engine_cells.pairs(CELLS))


@pytest.fixture(scope="module")
def alone():
    kinds = [cell for cell in CELLS if cell in ("sizes:zero3", "sizes:fsdp2")]
    found = dict(engine_cells.pairs(kinds, 1))
    os.environ["ENGINE_RANKS"] = str(engine_cells.RANKS)
    return {cell.partition(":")[2]: ranks[0] for cell, ranks in found.items()}


@pytest.mark.parametrize("cell", CELLS)
def test_a_rank_has_its_share(found, alone, cell):
    for said in found[cell]:
        assert "error" not in said, said
        one = alone["zero3" if "zero3" in cell else "fsdp2"]["one"]
        assert said["parameters"] >= 20e6 and said["one"] <= one * 1.15 / engine_cells.RANKS


def test_codes_are_half_of_bf16(found):
    assert 0 < found["sizes:fsdp2_codes"][0]["sent"] <= 0.55 * found["sizes:fsdp2_bf16"][0]["sent"]


@pytest.mark.skipif(not ALL, reason="half a minute: ./tools/test --engines")
def test_zero3_gathers_codes_in_forward(found):
    """A quarter of f32 there; in backward DeepSpeed gathers values."""
    assert 0 < found["sizes:zero3_codes"][0]["sent"] <= 0.65 * found["sizes:zero3"][0]["sent"]
