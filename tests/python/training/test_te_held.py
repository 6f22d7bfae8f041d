# SPDX-License-Identifier: Apache-2.0
"""te.quantized_model_init: weights that are fp8 codes alone, which learn and are saved."""

import copy

import pytest
import torch
from test_te import OPS, converted, to_disk
from test_te_modules import MADE, call, passes, randn, same, step_of

import fp8
from fp8 import te

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def made(name, **how):
    torch.manual_seed(0)
    with te.quantized_model_init(**how):
        return MADE[name][0]()


def values(module):
    """A module of the same kind in high precision, with the values of the codes."""
    return {key: OPS.dequantize(p) if p.dtype in FP8 else p.detach().clone() for key, p in module.named_parameters()}


def inside(module, x, memory, recipe="current"):
    with te.fp8_autocast(True, fp8_recipe=recipe):
        return call(module, x, memory)


@pytest.mark.parametrize("name", MADE)
def test_matrices_are_codes_and_results_those_of_their_values(name):
    """Outside of a region the bits of the values; inside the codes are the operand, and no amax of a weight is taken."""
    module, plain = made(name), MADE[name][0]()
    matrices = [p for p in module.parameters() if p.dim() == 2]
    assert {p.dtype for p in matrices} == {torch.float8_e4m3fn} and all(p.dtype == torch.float32 for p in module.parameters() if p.dim() == 1)
    held = sum(p.numel() for p in matrices)
    assert sum(p.nbytes for p in matrices) == held and len(matrices) == MADE[name][2]
    plain.load_state_dict(values(module), strict=False)
    x, memory = randn(16, 2, 64), randn(12, 2, 64, seed=4)
    decoder = name == "decoder"
    found, expected = (passes(lambda x, *m, of=of: call(of, x, *(m or (None,))), of, x, *([memory] if decoder else [])) for of in (module, plain))
    same(found, expected)
    low, near = inside(module, x, memory), inside(plain, x, memory)
    assert 0 < float((low - expected["y"]).norm() / expected["y"].norm()) < 0.1 and float((low - near).norm() / near.norm()) < 0.1


@pytest.mark.parametrize("optimizer", ["FusedAdamW", "FusedSGD", "FusedLamb", "FusedLars"])
def test_they_learn_and_resume(optimizer):
    """The loss falls, the codes change, and a module that takes state and moments from a file goes on with the same bits."""
    def begin():
        module = torch.nn.Sequential(made("norm_linear"))
        params = list(module.parameters())
        if optimizer == "FusedLars":
            base = fp8.optim.FusedResourceApplyMomentum(params, lr=1.0, momentum=0.5)
            return module, fp8.optim.FusedLars(base, [1] * len(params), eeta=0.05)
        options = {"FusedSGD": {"lr": 0.5, "momentum": 0.5}, "FusedAdamW": {"lr": 1e-2}, "FusedLamb": {"lr": 1e-2}}[optimizer]
        return module, getattr(fp8.optim, optimizer)(params, **options)
    target = randn(32, 96, seed=9)

    def steps(module, optim, first, count):
        losses = []
        for step in range(first, first + count):
            with te.fp8_autocast(True, fp8_recipe="nvidia"):
                loss = (module(randn(32, 64, seed=100 + step % 4)) - target).square().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(loss.item())
        return losses
    module, optim = begin()
    before = OPS.dequantize(module[0].weight)
    losses = steps(module, optim, 0, 12)
    assert losses[8] < losses[0] and not torch.equal(before, OPS.dequantize(module[0].weight)) and module[0].weight.grad.dtype == torch.float32
    saved = to_disk([module.state_dict(), optim.state_dict()])
    assert saved[0]["0.weight"].dtype in FP8
    other, others = begin()
    other.load_state_dict(saved[0])
    others.load_state_dict(saved[1])
    assert torch.equal(OPS.dequantize(other[0].weight), OPS.dequantize(module[0].weight))
    assert steps(other, others, 12, 5) == steps(module, optim, 12, 5)


def test_copies_and_other_precisions():
    """A copy learns by itself; codes become values where a module in high precision takes them, and values codes the other way."""
    module, x = made("norm_linear"), randn(8, 64)
    other, plain = copy.deepcopy(module), MADE["norm_linear"][0]()
    with te.fp8_autocast(True):
        other(x).sum().backward()
    fp8.optim.FusedSGD(other.parameters(), lr=1.0).step()
    assert module.weight.grad is None and not torch.equal(OPS.dequantize(other.weight), OPS.dequantize(module.weight))
    plain.load_state_dict(to_disk(module.state_dict()))
    assert torch.equal(plain.weight, OPS.dequantize(module.weight))
    other.load_state_dict(plain.state_dict())
    assert other.weight.dtype in FP8 and float((OPS.dequantize(other.weight) - plain.weight).norm() / plain.weight.norm()) < 0.05
    bare = {key: value for key, value in to_disk(module.state_dict()).items() if "extra" not in key}
    with pytest.raises(RuntimeError, match="without the scale of these codes"):
        other.load_state_dict({**bare, "_extra_state": torch.empty(0, dtype=torch.uint8)})
    y = module(x)
    te.restore(module)
    assert module.weight.dtype == torch.float32 and torch.equal(module(x), y)


@pytest.mark.parametrize("recipe", ["habana", "nvidia", "current"])
def test_recipes_and_initial_values(recipe):
    layers = {}
    for kept in (False, True):
        torch.manual_seed(3)
        with te.quantized_model_init(recipe=recipe, preserve_high_precision_init_val=kept):
            layers[kept] = te.Linear(64, 32)
    torch.manual_seed(3)
    weight, layer = te.Linear(64, 32).weight, layers[True]
    assert layer.weight.dtype == (torch.float8_e5m2 if recipe == "habana" else torch.float8_e4m3fn)
    assert not hasattr(layers[False].weight, "get_high_precision_init_val")
    assert torch.equal(layer.weight.get_high_precision_init_val(), weight.detach().cpu())
    assert float((OPS.dequantize(layer.weight) - weight).norm() / weight.norm()) < 0.1
    layer.weight.clear_high_precision_init_val()
    assert layer.weight.get_high_precision_init_val() is None
    scale_inv, assigned = OPS.held_state(layer.weight)
    assert assigned == 0 and scale_inv > 0 and (recipe != "habana" or torch.frexp(torch.tensor(scale_inv))[0] == 0.5)


def test_recomputation_and_microbatches():
    module, plain = made("mlp"), made("mlp")
    found = step_of_sum(module, lambda m, x: te.checkpoint(m, x, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(found, step_of_sum(plain, lambda m, x: m(x))))
    layer, x = made("norm_linear"), randn(8, 64)
    with te.fp8_autocast(True, fp8_recipe="current"):
        kept = [layer(x, is_first_microbatch=first) for first in (None, True, False)]
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])


def step_of_sum(module, forward):
    x = randn(16, 64).requires_grad_()
    with te.fp8_autocast(True, fp8_recipe="nvidia", seed=7):
        y = forward(module, x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())]


def test_what_is_refused_by_name():
    with te.quantized_model_init(False):
        assert te.LayerNormMLP(8, 8).fc1_weight.dtype == torch.float32
    with te.quantized_model_init(), te.quantized_model_init(False):
        assert te.Linear(8, 8).weight.dtype == torch.float32
    for recipe in ("block", "mxfp8"):
        with pytest.raises(ValueError, match="quantized_model_init: recipe: found .*, allowed: delayed, current"), te.quantized_model_init(recipe=recipe):
            te.Linear(8, 8)
    assert te.Linear(8, 8).weight.dtype == torch.float32, "after an exception"
    with pytest.raises(RuntimeError, match="device: found cpu, allowed: hpu"), te.quantized_model_init():
        te.Linear(8, 8, device="cpu")
    layer = made("norm_linear")
    layer(randn(8, 64)).sum().backward()
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        with pytest.raises((RuntimeError, NotImplementedError)):
            kind(layer.parameters(), lr=0.1).step()
    alone = copy.deepcopy(layer.weight)  # its gradient would be rounded to fp8
    with pytest.raises(RuntimeError, match="grad_dtype: found Float8_e4m3fn, allowed: Float"):
        OPS.linear(randn(8, 64), alone, None, torch.classes.fp8.State("alone"))
    report = te.convert_modules(torch.nn.Sequential(layer, torch.nn.Linear(8, 8).to("hpu")))
    assert [m.name for m in report.converted] == ["1"]
    with pytest.raises(RuntimeError, match="expected one that fp8::hold_in_fp8 was given"):
        OPS.held_state(converted()[0].weight)
