# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on one rank ends all of them by name, and leaves a checkpoint that is whole (faults.py)."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))
import engine_cells  # noqa: E402
import faults  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="3 minutes: ./tools/test --engines")
LOST = ("Connection", "Read error", "Timed out", "Broken pipe")  # the group's sentence on a rank that is gone


def said(cell):
    pytest.importorskip("deepspeed")
    (_, found), = engine_cells.pairs([cell])
    return found


# What rank 0 says, and rank 1.
@pytest.mark.parametrize("kind, expected", {
    "stage4": ("Input should be 0, 1, 2, 3",) * 2,
    "twice": ("0: the model is converted already",) * 2,
    "twice_on_one": ("(rank 1 ran no fp8 region of this group)", "0: the model is converted already"),
    "pipeline": ("fp8_autocast: fp8_group: found ranks [0, 1], allowed for a pipeline: those of one stage",) * 2,
    "converted_on_one": ("the ranks ran different products in fp8: rank 0 ran none, rank 1 ran 3, '0' to '4'",) * 2,
    "missing": (LOST, None),
}.items())
def test_both_ranks_end(kind, expected):
    for rank, sentence in zip(said(f"fault:{kind}"), expected):
        if sentence is None:
            assert "error" not in rank
        else:
            assert any(part in rank["error"] for part in ([sentence] if isinstance(sentence, str) else sentence)), rank
            assert kind != "converted_on_one" or rank["seconds"] < engine_cells.SECONDS, rank


def test_fewer_devices_than_ranks():
    first, second = said("fault:devices")
    assert "Invalid device id: found 1, allowed: 0 to 0" in second["error"] and "error" in first, (first, second)


@pytest.mark.parametrize("engine", ["ddp", "zero3"])
def test_an_uneven_last_batch(engine):
    first, second = said(f"fault:uneven:{engine}")
    assert "error" not in first and "error" not in second, (first, second)
    assert first["states"] == second["states"] and first["weights"] == second["weights"]
    assert [state[0] for state in first["states"]] == [engine_cells.STEPS] * 3


@pytest.mark.parametrize("kill", faults.KILLS)
def test_a_killed_rank(kill, tmp_path):
    first, second = said(f"{kill}:{tmp_path}")
    assert second == {"error": "ended with -9"} and any(part in first["error"] for part in LOST), (first, second)
    if "zero3" in kill:
        assert (tmp_path / "1" / "latest").read_text() == "global_step3"
        assert len(list((tmp_path / "1" / "global_step3").glob("*optim_states.pt"))) == engine_cells.RANKS
    else:
        assert (tmp_path / "1" / ".metadata").exists() and not (tmp_path / "2" / ".metadata").exists()


def test_deepspeed_before_fp8():
    pytest.importorskip("deepspeed")
    environment = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"}

    def error(code):
        done = subprocess.run([sys.executable, "-c", "import deepspeed, torch\ndeepspeed.accelerator.get_accelerator()\n" + code], env=environment,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    assert "fp8.deepspeed: found deepspeed on cpu, expected `import fp8.deepspeed` before `import deepspeed`" in error("import fp8.deepspeed")
    moved = """
import fp8
model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to("hpu")
fp8.te.convert_modules(model)
model.to(deepspeed.accelerator.get_accelerator().device_name())  # as its engine does
with fp8.te.fp8_autocast(True):
    model(torch.ones(4, 64))
"""
    assert "0: found its weight on cpu inside of fp8_autocast, expected hpu" in error(moved)
