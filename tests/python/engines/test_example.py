# SPDX-License-Identifier: Apache-2.0
"""tools/examples/engines.py, whose blocks stand in tools/pages/several_machines.md. FP8_ENGINES=all: each of them."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLE = ROOT / "tools" / "examples" / "engines.py"


ALL = ["ddp", "fsdp", "fsdp_codes", "tensor_parallel", "deepspeed", "pipeline", "lightning"]


@pytest.mark.parametrize("name", ALL if os.environ.get("FP8_ENGINES") == "all" else ["ddp", "deepspeed"])
def test_engines(name, tmp_path):
    for needed in ("deepspeed", "lightning"):
        pytest.importorskip(needed)
    launcher = [] if name == "lightning" else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([sys.executable, *launcher, EXAMPLE, name], cwd=tmp_path, env={**os.environ, "FP8_HPU_DEVICES": "2", "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{name}: the loss falls" in done.stdout or (name == "lightning" and "`Trainer.fit` stopped: `max_steps=10` reached" in done.stderr)
