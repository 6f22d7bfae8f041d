# SPDX-License-Identifier: Apache-2.0
"""What Python programs ask of the device besides the operators of fp8: device.py libfp8_transformer_engine.so FOLDER VERSION, as operators.py."""
import ctypes, json, os, shutil, subprocess, sys, time
import device_module
library, folder, version = sys.argv[1:]
torch = device_module.load(library, version)
fp8 = torch.ops.fp8

def error_of(f):
    try: f()
    except Exception as error: return str(error)
    return ""

if os.environ.get("FP8_SECOND_COPY"):  # the child of the last test
    torch.ops.load_library(os.environ["FP8_SECOND_COPY"])
    assert torch.equal((torch.ones(3, device="hpu") + 1).cpu(), torch.full((3,), 2.0))
    assert fp8.tag_of(torch.ones(2, 2, device="hpu")) == "null"
    print("went on")
    sys.exit()

# nn.LSTM, GRU, RNN: refused when they are converted, not when they run; with "recurrent", inside of autocast, they run in fp8.
for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
    torch.manual_seed(0)
    model, x = kind(16, 32).to("hpu"), torch.randn(5, 2, 16).to("hpu")
    names = [n for n, _ in model.named_parameters() if n.startswith("weight")]
    weights, types_ = [getattr(model, n) for n in names], [kind.__name__] * len(names)
    with torch.no_grad():
        before = model(x)[0]
        message = error_of(lambda: fp8.convert(weights, names, types_, "{}"))
        assert "weight_ih_l0" in message and kind.__name__ + "Cell" in message and '"recurrent": true' in message, message
        assert torch.equal(model(x)[0], before)
        fp8.convert(weights, names, types_, '{"recurrent": true}')
        assert "dtype" in error_of(lambda: model(x)), "Python compares dtypes"
        with torch.autocast("hpu", dtype=torch.bfloat16): after = model(x)[0]
    error = ((after.float() - before).norm() / before.norm()).item()
    assert 0 < error < 0.1, (kind, error)

# Streams, events, pinned memory, integers.
x = torch.arange(12, device="hpu")
x.record_stream(torch.Stream(device="hpu"))
first, second = torch.Event(device="hpu", enable_timing=True), torch.Event(device="hpu", enable_timing=True)
first.record(); time.sleep(0.02); second.record()
assert first.elapsed_time(second) >= 20
assert not torch.ones(3).is_pinned() and torch.ones(3).pin_memory().is_pinned() and torch.empty(3, pin_memory=True).is_pinned()
data = torch.utils.data.TensorDataset(torch.randn(8, 2))
assert all(batch.is_pinned() and batch.to("hpu", non_blocking=True).device.type == "hpu" for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True))
assert x.histc(3).tolist() == [4, 4, 4] and x.histc(3).dtype == torch.int64
a, b = torch.randn(6, 13, dtype=torch.bfloat16), torch.randn(2, 13, 5, dtype=torch.bfloat16)
ends = torch.tensor([2, 6], dtype=torch.int32)
out = torch._grouped_mm(a.to("hpu"), b.to("hpu"), offs=ends.to("hpu"))
assert torch.equal(out.cpu(), torch.cat([a[:2] @ b[0], a[2:] @ b[1]]))

# Tensors of the device from a DataLoader's workers.
class OnDevice(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((3,), float(index)).to("hpu"), index
rows = list(torch.utils.data.DataLoader(OnDevice(), batch_size=2, num_workers=1, timeout=60))
assert [t.device.type for t, _ in rows] == ["hpu"] * 2 and torch.equal(torch.cat([t for t, _ in rows]).cpu(), torch.arange(4.).view(4, 1).expand(4, 3)), rows

# Memory: the ten statistics, torch's own functions on the same books, who made what, events for profilers.
stats = fp8.memory_stats()
assert set(stats) == {"Limit", "InUse", "MaxInUse", "NumAllocs", "NumFrees", "ActiveAllocs", "MaxAllocSize", "TotalSystemAllocs", "TotalSystemFrees", "TotalActiveAllocs"}
held = torch.ones(1 << 20, device="hpu")
assert fp8.memory_stats()["InUse"] == stats["InUse"] + (4 << 20) == torch.accelerator.memory_allocated()
assert torch.accelerator.memory_reserved() == stats["Limit"] and torch.accelerator.max_memory_allocated() == fp8.memory_stats()["MaxInUse"]
assert "Invalid device id 5" in error_of(lambda: fp8.memory_stats(5)) and "PyTorch HPU memory summary" in fp8.memory_summary()
fp8.memory_history(True)
few = torch.relu(held[:6])
snapshot = json.loads(fp8.memory_snapshot())
assert {"bytes": 24, "op": "aten::relu", "module": "", "phase": ""}.items() <= next(b for b in snapshot["blocks"] if b["address"] == few.untyped_storage().data_ptr()).items()
assert any(b["bytes"] == 4 << 20 for b in snapshot["blocks"]) and snapshot["in_use"] == fp8.memory_stats()["InUse"]
fp8.memory_history(False)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
    more = torch.empty(1 << 18, device="hpu")
    del more
trace = os.path.join(folder, "memory.json")
profile.export_chrome_trace(trace)
bytes_ = [e["args"]["Bytes"] for e in json.load(open(trace))["traceEvents"] if e.get("name") == "[memory]" and e["args"]["Device Type"] == int(torch._C._autograd.DeviceType.HPU)]
assert bytes_ == [1 << 20, -(1 << 20)], bytes_

# What torch chooses by the device's name, chosen by the caller: the same bits.
options = torch.nn.LinearCrossEntropyOptions(acc_policy="accurate", chunking_method="aspect_ratio")
h, w, target = torch.randn(64, 32).bfloat16(), torch.randn(300, 32).bfloat16(), torch.randint(0, 300, (64,))
loss = [torch.nn.functional.linear_cross_entropy(h.to(d), w.to(d), target.to(d), options=options).cpu() for d in ("cpu", "hpu")]
assert torch.equal(*loss), loss

# A second copy of the library in one process: said, and the first goes on.
copies = os.path.join(folder, "copies")
shutil.copytree(os.path.dirname(library), copies, symlinks=True)
child = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "FP8_SECOND_COPY": os.path.join(copies, os.path.basename(library))},
                       capture_output=True, text=True)
assert child.returncode == 0 and "went on" in child.stdout, child
assert "fp8: error: " + copies in child.stderr and "registers nothing" in child.stderr and "load one of the two" in child.stderr, child.stderr
print("device: recurrent modules, streams, events, pinned memory, integers, groups, memory, a second copy")
