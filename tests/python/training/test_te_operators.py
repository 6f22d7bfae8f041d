# SPDX-License-Identifier: Apache-2.0
"""fp8::linear, whose fp8 state a module has, and states as bytes; minimize_memory and force_measurement."""

import copy
import io
import json
import pickle

import pytest
import torch
from conftest import net
from test_te import OPS, RECIPES, converted, data, on, same, state, train
from torch._subclasses import FakeTensorMode

import fp8

State = torch.classes.fp8.State


class Own(torch.nn.Module):
    """A linear layer whose fp8 state is its own. run(x, weight, bias, state): the product."""

    def __init__(self, name, like, run=None, **how):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(p.detach().clone()) for p in (like.weight, like.bias))
        self.state, self.run = State(name, **how), run or OPS.linear

    def forward(self, x):
        return self.run(x, self.weight, self.bias, self.state)


def own(run=None, **how):
    model = net()
    return torch.nn.Sequential(Own("0", model[0], run, **how), torch.nn.ReLU(), Own("2", model[2], run, **how))


class Gathered(torch.autograd.Function):
    """Of an engine that shards parameters: the weight is there in forward, and gone before backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, state):
        full = weight.detach().clone().requires_grad_()
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_(), full, bias.detach().requires_grad_()]
            y = OPS.linear(*inputs, state)
        ctx.graph = y, inputs
        full.data = torch.empty(0, device="hpu")
        return y.detach()

    @staticmethod
    def backward(ctx, grad):
        y, inputs = ctx.graph
        inputs[1].data = torch.full((grad.size(-1), inputs[0].size(-1)), float("nan"), device="hpu")
        return *torch.autograd.grad(y, inputs, grad), None


class Again(torch.autograd.Function):
    """Of one that gathers the weight once more in backward, where it runs forward again."""

    @staticmethod
    def forward(ctx, x, weight, bias, state):
        ctx.save_for_backward(x, weight, bias)
        ctx.state = state
        return OPS.linear(x, weight.detach().clone(), bias, state)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            inputs = [t.detach().clone().requires_grad_() for t in ctx.saved_tensors]
            y = OPS.linear(*inputs, ctx.state)
        return *torch.autograd.grad(y, inputs, grad), None


@pytest.mark.parametrize("how", ["operator", "gathered", "again", "own recipe"])
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_marked_weight(name, how):
    run = {"gathered": Gathered.apply, "again": Again.apply}.get(how)
    marked = converted()
    expected = train(marked, on(name), data(5))
    model = own(run, recipe=name if how == "own recipe" else "")
    assert same(train(model, on("block" if how == "own recipe" else name), data(5)), expected)
    for i in (0, 2):
        assert json.loads(model[i].state.values()) == state(marked, str(i)) and json.loads(model[i].state.values())["step"] == 5


def test_outside_of_regions_it_is_the_product():
    model, plain, x = own(), net(), data(1)[0]
    assert torch.equal(model(x), plain(x)) and json.loads(model[0].state.values())["step"] == 0
    with fp8.te.fp8_autocast(False, calibrating=True):
        assert torch.equal(model(x), plain(x))
    assert json.loads(model[0].state.values())["amax_seen"][0] == x.abs().max().item()
    with torch.autocast("hpu", torch.bfloat16), on("nvidia")():
        y = model(x)
    assert y.dtype == torch.bfloat16 and torch.isfinite(y).all()


def test_it_evaluates_without_a_trace():
    model, x = own(), data(1)[0]
    train(model, on("nvidia"), data(3))
    before = [model[i].state.values() for i in (0, 2)]
    for i in (0, 2):
        model[i].state.set_training(False)
    with on("nvidia")():
        model(x)
    with torch.no_grad(), on("nvidia")():
        model(x)
    assert [model[i].state.values() for i in (0, 2)] == before


def test_a_state_is_copied_pickled_and_saved_with_torchscript():
    model = own(minimize_memory=True)
    train(model, on("habana-hybrid"), data(3))
    states = [copy.deepcopy(model[0].state), pickle.loads(pickle.dumps(model[0].state))]

    class Script(torch.nn.Module):
        def __init__(self, of):
            super().__init__()
            self.weight, self.state = of.weight, of.state

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.fp8.linear(x, self.weight, None, self.state)

    script, file = torch.jit.script(Script(model[0])), io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    states.append(torch.jit.load(file).state)
    for found in states:
        assert found.name() == "0" and found.values() == model[0].state.values()


def test_it_has_a_meta_kernel():
    state, x, weight = State("a"), torch.ones(3, 5, 8, device="meta"), torch.ones(4, 8, device="meta")
    assert OPS.linear(x, weight, None, state).shape == (3, 5, 4) and OPS.linear(x.half(), weight, None, state).dtype == torch.float16
    with FakeTensorMode() as mode:
        x, weight = (torch.ones(*sizes, device="hpu", requires_grad=True) for sizes in ((3, 8), (4, 8)))
        y = OPS.linear(x, weight, None, state)
        y.sum().backward()
        assert (y.shape, y.device.type, weight.grad.shape) == ((3, 4), "hpu", (4, 8)) and isinstance(y, type(mode.from_tensor(torch.ones(1))))
    assert json.loads(state.values())["step"] == 0


def test_what_does_not_fit_is_named():
    x, weight = torch.ones(2, 8, device="hpu"), torch.ones(4, 9, device="hpu")
    with on("nvidia")(), pytest.raises(RuntimeError, match="'a': expected an input whose last dimension is 9"):
        OPS.linear(x, weight, None, State("a"))
    with pytest.raises(RuntimeError, match="nvida"):
        State("a", "nvida")
    for said in (b"", b"{", b'{"version": 2, "state": null, "tensors": ""}'):
        with pytest.raises(RuntimeError, match="fp8 training state"):
            State("a").set_bytes(torch.tensor(list(said), dtype=torch.uint8))


def test_a_state_of_the_first_version_is_read():
    """As it was written before there was an operator for it."""
    model = converted()
    train(model, on("nvidia"), data(2))
    text = bytes(OPS.training_state_bytes(model[0].weight).tolist())
    said = json.loads(text)
    assert said.keys() == {"version", "state", "tensors"} and said["version"] == 1 and said["state"]["step"] == 2
    other = converted()
    older = json.dumps(said).encode().ljust(1 << 15)
    other.load_state_dict({**other.state_dict(), "0._extra_state": torch.tensor(list(older), dtype=torch.uint8)})
    assert {**state(other), "name": ""} == {**state(model), "name": ""}
    for size in range(0, len(text), 7):
        with pytest.raises(RuntimeError):
            OPS.set_training_state_bytes(model[0].weight, torch.tensor(list(text[:size]), dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="untagged"):
        OPS.training_state_bytes(net()[0].weight)


@pytest.mark.parametrize("recipe", RECIPES)
def test_minimize_memory_has_the_same_bits(recipe):
    expected = train(converted(), on(RECIPES[recipe]), data(5))
    model = net()
    fp8.te.convert_modules(model, minimize_memory=True)
    assert same(train(model, on(RECIPES[recipe]), data(5)), expected)
    layer, small = (fp8.te.Linear(64, 32, minimize_memory=small) for small in (False, True))
    small.load_state_dict(layer.state_dict())
    for module in (layer, small):
        seen = []
        with on(RECIPES[recipe])(), torch.autograd.graph.saved_tensors_hooks(lambda t, seen=seen: seen.append(t) or t, lambda t: t):
            module(data(1)[0].requires_grad_())
        kept = [t.data_ptr() == module.weight.data_ptr() for t in seen]
        assert any(kept) == (module is small) and len(seen) >= 2
    assert same(train(layer, on(RECIPES[recipe]), data(3)), train(small, on(RECIPES[recipe]), data(3)))


def test_force_measurement_is_stronger_than_the_interval():
    recipe = fp8.te.recipe.DelayedScaling(fp8_format=fp8.te.recipe.Format.HYBRID, interval=4)
    seen = {}
    for forced in (None, True, False):
        model = converted()
        for x in data(3):
            with fp8.te.fp8_autocast(True, forced, recipe):
                model(x).square().mean().backward()
        seen[forced] = state(model)["amax_seen"][0]
    largest = [x.abs().max().item() for x in data(3)]
    assert seen[True] == max(largest) and seen[False] == 0.0 and seen[None] in largest
