# SPDX-License-Identifier: Apache-2.0
"""Measures, quantizes, saves and trains a plain torch.nn model in fp8 through torch.ops.fp8: no binding code, no change of the model.

operators.py libfp8_transformer_engine.so FOLDER VERSION: where to write, and the LibTorch it was built with: else SKIPPED.
The list of operators: runtime/intercept/tag_operators.h."""
import json, sys
import device_module
library, folder, version = sys.argv[1:]
torch = device_module.load(library, version)
import torch.utils.checkpoint
fp8 = torch.ops.fp8

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")

def linears(model):
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    return [m.weight for _, m in found], [name for name, _ in found], ["Linear"] * len(found)
# Measure, quantize, run, save.
model, x = net(), torch.randn(16, 64).to("hpu")
with torch.no_grad():
    high = model(x)
    session = fp8.measure_begin(*linears(model), prefix=f"{folder}/stats/inc_output")
    model(x)
    fp8.measure_end(session)
    report = json.loads(fp8.convert(*linears(model), json.dumps({"measurements": f"{folder}/stats", "dialect": "ocp"})))
    low = model(x)
assert len(report["converted"]) == 2 and model[0].weight.dtype == torch.float8_e4m3fn, report
error = ((low - high).norm() / high.norm()).item()
assert 0 < error < 0.1, error
# Print shows values, format and scale; code that takes a weight's dtype for activations is told what to ask.
weight, values = model[0].weight, fp8.dequantize(model[0].weight)
for text in (repr(weight), str(weight.data), repr(model.state_dict()), repr(weight[:2]), repr(weight[1]), repr(weight.detach().cpu())):
    assert "weight of '0': E4M3 tensor weights" in text and "scale_inv 0." in text, text
first = repr(values[1]).split("tensor(")[1].split(",")[0]
assert repr(weight[1]).startswith("tensor(" + first), (repr(weight[1]), first)
assert "weight of" not in repr(values) and repr(torch.zeros(2, device="hpu")) == "tensor([0., 0.], device='hpu:0')"
try: model[0](x.to(weight.dtype))
except RuntimeError as told: assert "'0'" in str(told) and "fp8::values_dtype(weight)" in str(told), told
else: raise AssertionError("codes were taken for activations")
state = model.state_dict()
torch.save(state, f"{folder}/codes.pt")  # codes alone: a scale is no part of torch's files
again = torch.load(f"{folder}/codes.pt")["0.weight"]
fp8.tag(again, "0", fp8.scale_inv(model[0].weight), fp8.scheme_of(model[0].weight))
assert torch.equal(fp8.dequantize(again), fp8.dequantize(model[0].weight))
fp8.save(list(state.values()), list(state), ["Linear"] * len(state), f"{folder}/checkpoint", overwrite=True)
# Train in fp8, and beside it in f32, on the same data.
def train(recipe):
    model, target, losses = net(), torch.randn(64, 32).to("hpu"), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if recipe: fp8.attach_training(*linears(model), recipe)
    for step in range(100):
        x = torch.randn(32, 64).to("hpu")
        region = fp8.enter_autocast(recipe or "", bool(recipe))
        try: loss = (model(x) - x @ target).pow(2).mean()
        except BaseException: fp8.exit_autocast(region, failed=True); raise
        fp8.exit_autocast(region)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20
high, low = train(None), train("habana")
assert abs(low - high) < 0.05 * high, (low, high)
# Activation checkpointing: torch's reentrant form as it is, the other with the operators as its context_fn; without them it is refused.
class Fp8Runs:
    run = None
    def __enter__(self):
        if self.run is None: self.run = fp8.checkpoint_begin()
        else: fp8.checkpoint_again(self.run)
    def __exit__(self, *_): fp8.checkpoint_end(self.run)
    def __del__(self):
        if self.run is not None: fp8.checkpoint_free(self.run)
def fp8_contexts():
    runs = Fp8Runs()
    return runs, runs

def gradients(recipe, **how):
    model, seen = net(), []
    fp8.attach_training(*linears(model), recipe)
    for step in range(3):
        x = torch.randn(16, 64).to("hpu").requires_grad_()
        region = fp8.enter_autocast(recipe)
        y = torch.utils.checkpoint.checkpoint(model, x, **how) if how else model(x)
        fp8.exit_autocast(region)
        y.square().mean().backward()
        seen += [x.grad.cpu()] + [p.grad.cpu().clone() for p in model.parameters()]
    return seen, [fp8.training_state(w) for w in linears(model)[0]]
for recipe in ["habana", "habana-hybrid", "nvidia", "mxfp8"]:
    plain, state = gradients(recipe)
    assert json.loads(state[0])["step"] == 3
    for how in [{"use_reentrant": True}, {"use_reentrant": False, "context_fn": fp8_contexts}]:
        again, state_again = gradients(recipe, **how)
        assert all(torch.equal(a, b) for a, b in zip(again, plain)) and state_again == state, (recipe, how)
try: gradients("habana", use_reentrant=False); assert False
except RuntimeError as e: assert "fp8.checkpoint_begin" in str(e).replace("::", ".") and "use_reentrant" in str(e), e
# torch.compile: what keeps autograd's products is right; AOTAutograd runs them inside of a Function, which is refused by name.
for recipe in ["nvidia", "current"]:
    for backend in ["eager", "aot_eager"]:
        plain, model, x = net(), net(), torch.randn(16, 64).to("hpu")
        for m in (plain, model): fp8.attach_training(*linears(m), recipe)
        def loss_of(f):
            region = fp8.enter_autocast(recipe)
            y = f(x)
            fp8.exit_autocast(region)
            return y.square().mean()
        loss, expected = loss_of(torch.compile(model, backend=backend)), loss_of(plain)
        expected.backward()
        if backend == "eager":
            loss.backward()
            assert loss.item() == expected.item() and all(torch.equal(p.grad.cpu(), q.grad.cpu()) for p, q in zip(model.parameters(), plain.parameters()))
            continue
        try: loss.backward()
        except RuntimeError as e: assert "'2'" in str(e) and "autograd.Function" in str(e) and 'backend="eager"' in str(e), e
        else: raise AssertionError("AOTAutograd's backward is no fp8 product's")
# A Linear's product within a Function that has a backward of its own, as in DeepSpeed's ZeRO-3 and Megatron's kernels.
class Theirs(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias): return torch.addmm(bias, x, weight.t())
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.save_for_backward(*inputs[:2])
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy.matmul(weight) if ctx.needs_input_grad[0] else None, dy.t().matmul(x), dy.sum(0)
def steps_of(forward, parameters, count=4):
    optimizer, losses = torch.optim.SGD(parameters, lr=0.1), []
    for step in range(count):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).to("hpu")
        region = fp8.enter_autocast("nvidia")
        try: loss = forward(x).square().mean()
        except BaseException: fp8.exit_autocast(region, failed=True); raise
        fp8.exit_autocast(region)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    return losses
for layers, told in [((0, 2), "'2': its forward ran in fp8 inside of an autograd.Function (TheirsBackward)"), ((0,), "'0': converted for fp8 training, and their weights change")]:
    model = net()
    fp8.attach_training(*[part[:len(layers)] for part in linears(model)], "nvidia")
    def forward(x):
        for i in layers: x = Theirs.apply(x, model[i].weight, model[i].bias).relu()
        return x
    try: steps_of(forward, list(model.parameters()))
    except RuntimeError as e: assert told in str(e), e
    else: raise AssertionError("trained in high precision")
# LoRA as PEFT computes it around a frozen module: the module's product is in fp8, the adapter's is beside it.
def lora(products):
    model, (a, b) = net().requires_grad_(False), [torch.randn(s, generator=torch.Generator().manual_seed(5)).to("hpu").mul_(0.1).requires_grad_() for s in ((4, 64), (128, 4))]
    fp8.attach_training(*linears(model), "nvidia")
    torch.manual_seed(1)
    linear = torch.nn.functional.linear
    return steps_of(lambda x: products(model[2], (products(model[0], x) + linear(linear(torch.nn.functional.dropout(x, 0.1), a), b) * 2).relu()), [a, b]), [fp8.training_state(m.weight) for m in (model[0], model[2])]
assert lora(lambda module, x: module(x)) == lora(lambda module, x: torch.addmm(module.bias, x, module.weight.t()))
# torch.func: vmap is the product itself; what differentiates sees no fp8 backward, and is refused where modules train in fp8.
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap
plain, model, x = net(), net(), torch.randn(16, 64).to("hpu")
for m in (plain, model): fp8.attach_training(*linears(m), "nvidia")
def in_fp8(f):
    region = fp8.enter_autocast("nvidia")
    try: y = f()
    except BaseException: fp8.exit_autocast(region, failed=True); raise
    fp8.exit_autocast(region)
    return y
losses = [in_fp8(lambda: f(x).square().mean()) for f in (plain, vmap(model))]
for loss in losses: loss.backward()
assert losses[0].item() == losses[1].item() and all(torch.equal(p.grad.cpu(), q.grad.cpu()) for p, q in zip(model.parameters(), plain.parameters()))
parameters, one, loss_of = dict(model.named_parameters()), torch.tensor(1.0).to("hpu"), lambda p, x: functional_call(model, p, (x,)).square().mean()
transforms = {
    "grad": lambda: grad(loss_of)(parameters, x), "grad of the input": lambda: grad(lambda x: model(x).sum())(x),
    "vjp": lambda: vjp(loss_of, parameters, x)[1](one), "jvp": lambda: jvp(lambda x: model(x), (x,), (torch.ones_like(x),)),
    "per sample": lambda: vmap(grad(loss_of), (None, 0))(parameters, x.unsqueeze(1)), "jacrev": lambda: jacrev(lambda x: model(x).sum(0))(x),
    "jacfwd": lambda: jacfwd(lambda s: model(x * s).sum(0))(one),
}
for name, transform in transforms.items():
    transform()  # outside of fp8
    steps = fp8.training_state(model[2].weight)
    try: in_fp8(transform)
    except (NotImplementedError, RuntimeError) as e: assert "torch.func" in str(e) and "module '0'" in str(e), (name, e)
    else: raise AssertionError(f"{name} was differentiated in high precision")
    assert fp8.training_state(model[2].weight) == steps, name
assert torch.equal(in_fp8(lambda: grad(lambda s: (s * model((s * x).detach())).mean())(one)), in_fp8(lambda: model(x).mean())), "a target"
model, fake = net(), {"mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw", "dump_stats_path": f"{folder}/stats/inc_output", "fake_quant": True}
fp8.convert(*linears(model), json.dumps({"quant_config": fake}))
try: transforms["grad of the input"]()
except NotImplementedError as e: assert "torch.func" in str(e) and "module '0'" in str(e), e
else: raise AssertionError("fake quantization was differentiated with the weight's own values")
# Codes of inference: those derivatives are what a backward pass gives, but for forward mode.
model = net()
fp8.convert(*linears(model), "{}")
model(x.requires_grad_()).square().mean().backward()
assert torch.equal(grad(lambda x: model(x).square().mean())(x.detach()).cpu(), x.grad.cpu())
try: transforms["jvp"]()
except (NotImplementedError, RuntimeError) as e: assert "'0'" in str(e) and "no forward-mode derivative" in str(e), e
else: raise AssertionError("a tangent was dropped")
# A copy of the model: in fp8, with the scales of the original.
import copy
model, x = net(), torch.randn(16, 64).to("hpu")
fp8.attach_training(*linears(model), "nvidia")
teacher, plain = copy.deepcopy(model), model(x).detach()
for step in range(3):
    region = fp8.enter_autocast("nvidia")
    with torch.no_grad(): assert torch.equal(teacher(x), model(x)) and not torch.equal(teacher(x), plain)
    loss = model(x).square().mean()
    fp8.exit_autocast(region)
    loss.backward()
# Evaluation, for weights whose modules nobody knows here; other spellings of the product.
model, x = net(), torch.randn(2, 8, 64).to("hpu")
fp8.attach_training(*linears(model), "nvidia")
def run(f):
    region = fp8.enter_autocast("nvidia")
    y = f()
    fp8.exit_autocast(region)
    return y.detach()
steps = lambda: json.loads(fp8.training_state(model[0].weight))["step"]
fp8.set_training(linears(model)[0], False)
y = run(lambda: torch.nn.functional.linear(x, model[0].weight))
assert steps() == 0
assert torch.equal(run(lambda: torch.einsum("bsd,fd->bsf", x, model[0].weight)), y) and not torch.equal(y, x @ model[0].weight.detach().t())
fp8.set_training(linears(model)[0], True)
run(lambda: model(x))
assert steps() == 1
print(f"quantized: error {error:.4f}; trained: loss {low:.3f} in fp8, {high:.3f} in f32")
