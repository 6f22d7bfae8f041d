# SPDX-License-Identifier: Apache-2.0
"""Fifty processes that end right after a backward end well: exits.py libfp8_transformer_engine.so FOLDER VERSION, as operators.py."""
import os, subprocess, sys
import device_module
library, folder, version = sys.argv[1:]
torch = device_module.load(library, version)
if os.environ.get("FP8_ENDS_NOW"):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32)).to("hpu")
    model(torch.randn(32, 64).to("hpu")).pow(2).mean().backward()
    sys.exit()

# More at once than there are cores: a thread of backward that waits for one is what the race needs.
together, ended = max(4, 2 * (os.cpu_count() or 1)), []
for first in range(0, 50, together):
    environment = {**os.environ, "FP8_ENDS_NOW": "1", "OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen([sys.executable, *sys.argv], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(first, min(50, first + together))]
    ended += [(child.communicate()[1][-300:], child.returncode)[::-1] for child in children]
assert all(code == 0 for code, _ in ended), [e for e in ended if e[0] != 0]
print("50 processes ended right after a backward")
