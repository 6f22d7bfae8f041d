# SPDX-License-Identifier: Apache-2.0
"""Training in fp8 by fp8.te is training by the bare operators, bit for bit; regions, state, copies, recomputation, refusals."""

import contextlib
import copy
import io
import json
import pickle
import threading
import warnings

import pytest
import torch
import transformers
from conftest import net

import fp8
from fp8.te import recipe as R  # noqa: N812

OPS = torch.ops.fp8
HYBRID = R.DelayedScaling(fp8_format=R.Format.HYBRID)
RECIPES = {"habana": R.DelayedScaling(), "habana-hybrid": HYBRID, "nvidia": R.nvidia.DelayedScaling(), "current": R.Float8CurrentScaling(),
           "block": R.Float8BlockScaling(), "mxfp8": R.MXFP8BlockScaling()}
PLAIN = contextlib.nullcontext


def data(count=20):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 64, generator=generator).to("hpu") for _ in range(count)]


def on(recipe=HYBRID, **how):
    return lambda: fp8.te.fp8_autocast(True, fp8_recipe=recipe, **how)


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def train(model, region, batches=None, optimizer=None, call=None):
    """The losses, and the gradients of the last step."""
    optimizer, losses = optimizer or adamw(model), []
    for x in batches or data():
        with region():
            loss = (call or model)(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def same(found, expected):
    return found[0] == expected[0] and all(torch.equal(a, b) for a, b in zip(found[1], expected[1]))


def state(model, key="0"):
    return json.loads(OPS.training_state(model.get_submodule(key).weight))


def converted(recipe=None, model=None):
    model = net() if model is None else model
    fp8.te.convert_modules(model, recipe=recipe)
    return model


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_bare_operators(name):
    bare = net()
    OPS.attach_training([bare[0].weight, bare[2].weight], ["0", "2"], ["Linear"] * 2, name)

    @contextlib.contextmanager
    def region():
        number = OPS.enter_autocast(name)
        yield
        OPS.exit_autocast(number)

    expected = train(bare, region)
    assert not same(expected, train(net(), PLAIN))
    for model, how in ((converted(), on(RECIPES[name])), (converted(), on(name)), (converted(RECIPES[name]), on(None)), (converted(name), on("current"))):
        assert same(train(model, how), expected)
        assert state(model) == state(bare) and state(model)["step"] == 20
    file = json.loads((fp8_configs() / f"recipe_{name}.json").read_text())
    ours = RECIPES[name].to_dict()
    assert {key: value for key, value in file.items() if key in ours} == {key: list(v) if isinstance(v, tuple) else v for key, v in ours.items() if key in file}


def fp8_configs():
    from conftest import ROOT
    return ROOT / "configs" / "json"


def test_nothing_is_replaced():
    model = net()
    model[2].weight.requires_grad_(False)
    before, optimizer, seen = dict(model.named_parameters()), adamw(model), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    report = fp8.te.convert_modules(model)
    assert [m.name for m in report.converted] == ["0", "2"] and report.warnings == () and report.kept == ()
    frozen = model[2].weight.clone()
    train(model, on(), optimizer=optimizer)
    assert all(p is before[name] for name, p in model.named_parameters()) and len(seen) == 20
    assert torch.equal(model[2].weight, frozen) and state(model, "2")["step"] == 20
    with pytest.raises(ValueError, match=r"^convert_modules: 0: the model is converted already"):
        fp8.te.convert_modules(model)


def test_restored_it_is_the_model_in_high_precision():
    model, plain = converted(), net()
    optimizer = adamw(model)
    train(model, on(), optimizer=optimizer)
    fp8.te.restore(model)
    plain.load_state_dict(model.state_dict())
    assert same(train(model, PLAIN), train(plain, PLAIN)) and same(train(model, on()), train(plain, PLAIN))
    with pytest.raises(ValueError, match="found no module that trains in fp8"):
        fp8.te.restore(model)
    assert len(fp8.te.convert_modules(model).converted) == 2


def test_report_rules_and_replace_layers():
    report = fp8.te.convert_modules(net(), replace_layers=False)
    assert report.converted == () and [m.reason for m in report.kept] == ["replace_layers is False"] * 2
    model = net()
    report = fp8.te.convert_modules(model, recipe={"recipe": "current", "modules": [{"match": "^2$", "keep": "bf16"}]})
    assert [m.name for m in report.converted] == ["0"] and [(m.name, m.reason) for m in report.kept] == [("2", 'kept by "^2$"')]
    train(model, on(None), data(2))
    assert state(model)["recipe"].startswith("current")


def test_regions_nest_and_close_in_order():
    model, x = converted(), data(1)[0]
    region, plain = fp8.te.fp8_autocast(True, fp8_recipe="current"), net()(x)
    with region:
        first = model(x)
        assert fp8.te.is_fp8_enabled()
        with fp8.te.fp8_autocast(False):
            assert torch.equal(model(x), plain) and not fp8.te.is_fp8_enabled()
        with region, fp8.te.fp8_autocast(True):  # once more, and one that inherits its recipe
            assert torch.equal(model(x), first)
        assert torch.equal(model(x), first)
    assert torch.equal(model(x), plain) and not torch.equal(first, plain)

    @fp8.te.fp8_autocast(True, fp8_recipe="current")
    def call(depth):
        return model(x) if depth == 0 else call(depth - 1)
    found = []
    threads = [threading.Thread(target=lambda: found.append(call(2))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(torch.equal(y, first) for y in found) and torch.equal(model(x), plain)


def test_after_an_exception_no_scale_moves():
    model, x = converted(), data(1)[0]
    with pytest.raises(KeyError), on("nvidia")(), on("nvidia")():
        model(x)
        raise KeyError
    assert not fp8.te.is_fp8_enabled() and state(model)["forward"]["scale"] == [1, 1]
