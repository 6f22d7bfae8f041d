# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of engines: a run that goes on has the bits of one that never stopped, fp8's states included; torch's distributed checkpoint
is read on another number of ranks; ZeRO-3's becomes a folder that the program evaluates."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, DEMO

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import resumes  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="a minute: ./tools/test --engines")


def found(*cells, ranks=engine_cells.RANKS):
    """What rank 0 said of each cell; all ranks said the same."""
    pytest.importorskip("deepspeed")
    said = dict(engine_cells.pairs(cells, ranks))
    for cell in cells:
        assert all("error" not in rank for rank in said[cell]), said[cell]
        assert all(rank["states"] == said[cell][0]["states"] for rank in said[cell] if "states" in rank)
    return [said[cell][0] for cell in cells]


def test_a_resume_has_the_same_bits():
    for said in found(*(f"resume:{name}" for name in resumes.ENGINES)):
        assert said["again"] == said["losses"] and said["states_again"] == said["states"]
        assert [state[0] for state in said["states"]] == [2 * resumes.STEPS] * 3


def test_a_distributed_checkpoint_on_more_ranks(tmp_path):
    saved, = found(f"resume:dcp:save:{tmp_path}")
    loaded, = found(f"resume:dcp:load:{tmp_path}", ranks=3)
    assert loaded["again"][0] == pytest.approx(saved["losses"][0], rel=1e-6) and loaded["again"] == pytest.approx(saved["losses"], rel=1e-3)
    assert [state[0] for state in loaded["states_again"]] == [2 * resumes.STEPS] * 3
    for state, expected in zip(loaded["states_again"], saved["states"]):  # those of the next step are not as many ranks' sums
        assert state[1] == pytest.approx(expected[1], rel=1e-2)


def test_zero_becomes_a_folder_that_the_program_evaluates(tmp_path):
    said, = found(f"resume:llama:{tmp_path / 'zero'}")
    assert {state[0] for state in said["states"]} == {2}
    model = tmp_path / "whole"
    subprocess.run([sys.executable, tmp_path / "zero" / "zero_to_fp32.py", tmp_path / "zero", model, "--safe_serialization"], check=True,
                   capture_output=True)
    for file in (DEMO / "kjv-byte-1.7M").glob("*.json"):
        shutil.copy(file, model)
    (tmp_path / "text.txt").write_bytes((DEMO / "kjv_calib.txt").read_bytes()[:512])
    done = subprocess.run([BUILD / "bin" / "fp8", "evaluate", model, "-d", tmp_path / "text.txt", "--seq-len", "64", "--dtype", "f32", "--json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert math.log(json.loads(done.stdout)["perplexity"]) == pytest.approx(said["losses"][0], rel=1e-5)
