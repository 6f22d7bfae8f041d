# SPDX-License-Identifier: Apache-2.0
"""tools/examples/engines.py, whose blocks stand in tools/pages/several_machines.md. FP8_ENGINES=all: each of them."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLE = ROOT / "tools" / "examples" / "engines.py"
# A message of backward, whose thread has the context of backward()'s caller, in torch's state of threads.
HELD = """
import contextvars, sys, weakref, torch, fp8
class Value: pass
torch.distributed.init_process_group("hccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
variable, value, works = contextvars.ContextVar("variable"), Value(), []
seen, token = weakref.ref(value), variable.set(value)
y = torch.ones(4, device="hpu", requires_grad=True) * 2
y.register_hook(lambda grad: works.append(torch.distributed.all_reduce(torch.ones(4, device="hpu"), async_op=True)))
y.sum().backward()
works[0].wait()
variable.reset(token)
del value, token
print(len(works), seen())
"""
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


def test_a_message_holds_no_object_of_python(tmp_path):
    """Gloo's thread drops its part of a message later than the caller knows that it is over. Python that ends meanwhile ended with SIGABRT:
    the thread asked for the GIL."""
    done = subprocess.run([sys.executable, "-c", HELD, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 None\n"), done.stderr[-2000:]
