# SPDX-License-Identifier: Apache-2.0
"""The device's lane in torch.profiler, and its files in TensorBoard's plug-in: hpu_lane.py libfp8_transformer_engine.so FOLDER VERSION, as operators.py."""
import importlib.util, json, os, subprocess, sys
import device_module
library, folder, version = sys.argv[1:]
torch = device_module.load(library, version)
fp8 = torch.ops.fp8
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")
fp8.attach_training([model[0].weight, model[2].weight], ["0", "2"], ["Linear"] * 2, "habana")

def step():
    x = torch.randn(32, 64).to("hpu")
    region = fp8.enter_autocast("habana", True)
    loss = model(x).pow(2).mean()
    fp8.exit_autocast(region)
    loss.backward()

def events(recorded, name):
    path = os.path.join(folder, name)
    recorded.export_chrome_trace(path)
    with open(path) as file: return json.load(file)["traceEvents"]

for _ in range(2): step()
words = torch._C._profiler._ExperimentalConfig(custom_profiler_config="fp8:numbers fp8:memory")
os.makedirs(os.path.join(folder, "board"), exist_ok=True)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.HPU], experimental_config=words) as recorded:
    step()
found = events(recorded, "board/rank0.1700000000000000000.pt.trace.json")
lane = [e for e in found if e.get("cat") == "hpu_op"]
ops = {e["args"]["External id"]: e for e in found if e.get("cat") in ("cpu_op", "user_annotation") and "External id" in e.get("args", {})}
for e in lane:
    assert e["dur"] >= 0, e
    if "External id" not in e["args"]: continue  # no op runs it: what ends a backward
    op = ops[e["args"]["External id"]]
    assert op["ts"] - 0.002 <= e["ts"] and e["ts"] + e["dur"] <= op["ts"] + op["dur"] + 0.002, (e, op)
products = [e for e in lane if e["name"] == "hpu::fp8_gemm_v2"]
forward = [e for e in products if not e["args"]["backward"]]
assert [(e["args"]["module"], e["args"]["flops"]) for e in forward] == [("0", 2 * 32 * 64 * 128), ("2", 2 * 32 * 128 * 32)], forward
assert {e["args"]["module"] for e in products if e["args"]["backward"]} == {"0", "2"}, products
casts = [e["args"] for e in lane if e["name"].startswith("fp8::quantize")]
assert casts and all(c["amax"] > 0 and 0 <= c["saturated"] <= 1 for c in casts), casts
assert {e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "process_name" and e["pid"] == 0} == {"hpu 0 (emulated GAUDI3)"}
assert sum(e["ph"] == "s" and e["cat"] == "ac2g" for e in found) == sum("External id" in e["args"] for e in lane) > 0.9 * len(lane)
assert any(e["ph"] == "C" and e["args"]["bytes"] > 0 for e in found)
rows = {row.key: row for row in recorded.key_averages() if row.device_type == torch.autograd.DeviceType.HPU}
assert rows["hpu::fp8_gemm_v2"].count == len(products) and rows["hpu::fp8_gemm_v2"].device_time_total > 0, rows
with profile(activities=[ProfilerActivity.CPU]) as recorded: step()
assert not [e for e in events(recorded, "cpu.json") if e.get("cat") == "hpu_op"]
if importlib.util.find_spec("torch_tb_profiler") is None:
    print(f"{len(lane)} events in the lane; torch-tb-profiler is not installed: not asked")
    sys.exit()
load = """
import sys
from torch_tb_profiler.io import Cache
from torch_tb_profiler.profiler.loader import RunLoader
print([view.display_name for profile in RunLoader("board", sys.argv[1], Cache()).load().profiles.values() for view in profile.views])
"""
views = subprocess.run([sys.executable, "-c", load, os.path.join(folder, "board")], capture_output=True, text=True)
assert views.returncode == 0 and "Overview" in views.stdout and "Trace" in views.stdout, views
print(f"{len(lane)} events in the lane; torch-tb-profiler shows {views.stdout.strip()}")
