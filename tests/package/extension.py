# SPDX-License-Identifier: Apache-2.0
"""Operators of a user's own from Python: extension.py libfp8_transformer_engine.so FOLDER VERSION EXTENSIONS PROGRAM.

EXTENSIONS: where the project tests/package/extension was built against the installed fp8; PROGRAM: its bin/fp8."""
import json, os, subprocess, sys
import device_module
library, folder, version, extensions, program = sys.argv[1:]
torch = device_module.load(library, version)
if os.environ.get("FP8_TWICE"):  # the child of the last test
    torch.ops.load_library(f"{extensions}/gelu_mul.so")
    torch.ops.load_library(f"{extensions}/gelu_mul_again.so")
    torch.ops.my.gelu_mul(torch.ones(2, device="hpu"), torch.ones(2, device="hpu"))
    print("went on")
    sys.exit()
torch.ops.load_library(f"{extensions}/gelu_mul.so")
op = torch.ops.my.gelu_mul
def by_torch(a, b): return torch.nn.functional.gelu(a) * b

# Eager, on hpu and on the CPU; gradients; autocast.
torch.manual_seed(0)
a, b = torch.randn(4, 6), torch.randn(6, 4).t()
assert torch.allclose(op(a.to("hpu"), b.to("hpu")).cpu(), by_torch(a, b), atol=1e-6) and torch.allclose(op(a, b), by_torch(a, b), atol=1e-6)
inputs = [t.double().to("hpu").requires_grad_() for t in (a, b)]
assert torch.autograd.gradcheck(op, inputs)
try: torch.autograd.gradgradcheck(op, inputs); assert False
except RuntimeError as error: assert "my::gelu_mul has no second derivative" in str(error), error
with torch.autocast("hpu", dtype=torch.bfloat16): low = op(a.to("hpu"), b.to("hpu"))
assert low.dtype == torch.bfloat16 and torch.allclose(low.cpu().float(), by_torch(a, b), atol=0.05)
try: op(a.to("hpu"), b); assert False
except RuntimeError as error: assert "[my::gelu_mul] operands on more than one device" in str(error), error

# Meta tensors, fake ones, torch.export.
meta = op(torch.empty(3, 5, device="meta"), torch.empty(3, 5, device="meta"))
assert meta.device.type == "meta" and meta.shape == (3, 5)
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode(): fake = op(torch.empty(3, 5, device="hpu"), torch.empty(3, 5, device="hpu"))
assert fake.device.type == "hpu" and fake.shape == (3, 5)
class Block(torch.nn.Module):
    def forward(self, a, b): return torch.ops.my.gelu_mul(a, b) + 1
graph = torch.export.export(Block(), (a, b)).graph
assert any(node.target == torch.ops.my.gelu_mul.default for node in graph.nodes), graph

# Traced and scripted, saved, and run by the installed program.
class Square(torch.nn.Module):
    def forward(self, x): return torch.ops.my.gelu_mul(x, x)
x = a.to("hpu")
traced, scripted = torch.jit.trace(Square(), x), torch.jit.script(Square())
for module in (traced, scripted):
    assert "my::gelu_mul" in str(module.graph)
    assert torch.equal(module(x).cpu(), op(x, x).cpu())
scripted.save(f"{folder}/square.jit")
with open(f"{folder}/x.safetensors", "wb") as file:
    header = json.dumps({"x": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}}).encode()
    file.write(len(header).to_bytes(8, "little") + header + bytes(a.contiguous().untyped_storage()))
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU]) as p: op(x, x)
assert any(event.key == "my::gelu_mul" for event in p.key_averages())
def fp8(*arguments, **environment):
    return subprocess.run([program, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)
run = ["run", f"{folder}/square.jit", "--data", f"{folder}/x.safetensors"]
without = fp8(*run, "--out", f"{folder}/y0.safetensors")
assert without.returncode == 1 and "my::gelu_mul" in without.stderr, without
for done in (fp8(*run, "--out", f"{folder}/y1.safetensors", "--load", f"{extensions}/gelu_mul.so", FP8_TRACE="1"),
             fp8(*run, "--out", f"{folder}/y2.safetensors", FP8_EXTENSIONS=f"{extensions}/vendor_relu.so:{extensions}/gelu_mul.so", FP8_TRACE="1")):
    assert done.returncode == 0 and "fp8 trace: my::gelu_mul [4, 6] Float [4, 6] Float" in done.stderr, done

# The vendor's vocabulary.
torch.ops.load_library(f"{extensions}/vendor_relu.so")
assert torch.equal(torch.ops.vendor_op.relu(x).cpu(), a.relu())

# The same operator in two libraries: said, and the first goes on.
child = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "FP8_TWICE": "1"}, capture_output=True, text=True)
assert child.returncode == 0 and "went on" in child.stdout, child
assert "gelu_mul_again.so: [my::gelu_mul] found an operator of that name" in child.stderr, child.stderr
print("extension: eager, gradients, autocast, meta, export, TorchScript, fp8 run, the vendor's names")
