# SPDX-License-Identifier: Apache-2.0
"""accelerate on two ranks of torchrun or of `accelerate launch`, beside the shim's names: DDP, FSDP2 and ZeRO-3 train in fp8 alike."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(os.environ.get("FP8_ENGINES") != "all", reason="2 minutes: ./tools/test --engines")
SCRIPT = """
import json, os, sys
import accelerate, torch, fp8
kind = sys.argv[1]
zero3 = json.load(open("zero3.json"))
plugins = {"ddp": lambda: {}, "deepspeed": lambda: {"deepspeed_plugin": accelerate.DeepSpeedPlugin(hf_ds_config=zero3)},
           "fsdp2": lambda: {"fsdp_plugin": accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="NO_WRAP")}}
accelerator = accelerate.Accelerator(**plugins[kind]())
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to(accelerator.device)
fp8.te.convert_modules(net)
model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
for x in torch.randn(5, 8, 64, generator=torch.Generator().manual_seed(1)):
    x = x.chunk(2)[accelerator.process_index].to(accelerator.device)
    with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
        loss = (model(x) - x[:, :32]).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
steps = [json.loads(attached.values())["step"] for _, attached in fp8.te._attached.within(net)]
loss = accelerator.reduce(loss.detach(), "mean").item()
if accelerator.process_index == 0:
    print(json.dumps([str(accelerator.distributed_type), accelerator.device.type, loss, steps]), flush=True)
accelerator.wait_for_everyone()
os._exit(0)
"""


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    for needed in ("accelerate", "deepspeed"):
        pytest.importorskip(needed)
    return trained("ddp", tmp_path_factory.mktemp("ddp"))


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# What `accelerate config` writes, which then says what the script does not.
CONFIGS = {"ddp": {"distributed_type": "MULTI_HPU"},
           "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP",
                                                               # accelerate then loads parameters alone, and fails at what else a state has.
                                                               "fsdp_cpu_ram_efficient_loading": False}},
           "deepspeed": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "zero3.json"}}}


def trained(kind, folder, launcher=TORCHRUN):
    (folder / "train.py").write_text(SCRIPT)
    (folder / "zero3.json").write_text('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": true}')
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([*map(os.path.abspath, given), str(ROOT / "tools" / "python" / "habana_shim")])
    done = subprocess.run([sys.executable, *launcher, folder / "train.py", kind],
                          env={**os.environ, "PYTHONPATH": path, "FP8_HPU_DEVICES": "2", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads([line for line in done.stdout.splitlines() if line.startswith('["')][-1])


@pytest.mark.parametrize("kind", ["fsdp2", "deepspeed"])
def test_accelerate(kind, ddp, tmp_path):
    assert ddp[:2] == ["DistributedType.MULTI_HPU", "hpu"] and ddp[3] == [5, 5]
    found = trained(kind, tmp_path)
    assert found[1:] == ["hpu", pytest.approx(ddp[2], rel=1e-6), [5, 5]] and found[0] != ddp[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_accelerate_launch(kind, ddp, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "compute_environment": "LOCAL_MACHINE", "num_processes": 2, "num_machines": 1, "machine_rank": 0, "main_process_port": 0, "use_cpu": False,
        **({} if kind == "deepspeed" else {"mixed_precision": "no"}), **CONFIGS[kind]}))
    found = trained("ddp", tmp_path, ("-m", "accelerate.commands.launch", "--config_file", tmp_path / "config.json"))
    assert found == [f"DistributedType.{CONFIGS[kind]['distributed_type']}", "hpu", pytest.approx(ddp[2], rel=1e-6), [5, 5]]
