# SPDX-License-Identifier: Apache-2.0
"""Sixty processes that end right after a backward end well: exits.py libfp8_transformer_engine.so FOLDER VERSION, as operators.py.

Ten are started, fifty are forks of this one, which has started no thread: they need not import torch, which takes longer than
what is tested.
"""
import os, subprocess, sys
import device_module
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before torch, and numpy with it, start theirs
library, folder, version = sys.argv[1:]
torch = device_module.load(library, version)


def train():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32)).to("hpu")
    model(torch.randn(32, 64).to("hpu")).pow(2).mean().backward()


if os.environ.get("FP8_ENDS_NOW"):
    train()
    sys.exit()

# More at once than there are cores: a thread of backward that waits for one is what the race needs.
together, failed = max(5, 2 * (os.cpu_count() or 1)), []
for _ in range(0, 10, together):
    environment = {**os.environ, "FP8_ENDS_NOW": "1"}
    children = [subprocess.Popen([sys.executable, *sys.argv], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(together)]
    ended = [(child.communicate()[1][-300:], child.returncode) for child in children]
    failed += [(code, text) for text, code in ended if code != 0]
assert len(os.listdir("/proc/self/task")) == 1, "a fork has this thread alone"
for _ in range(0, 50, together):
    children = []
    for _ in range(together):
        child = os.fork()
        if child == 0:
            train()
            sys.exit()
        children.append(child)
    failed += [(code, "of a fork") for code in (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) if code != 0]
assert not failed, failed
print("60 processes ended right after a backward")
