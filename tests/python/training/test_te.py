# SPDX-License-Identifier: Apache-2.0
"""Training in fp8 by fp8.te is training by the bare operators, bit for bit; regions, state, copies, recomputation, refusals."""

import contextlib
import copy
import gc
import io
import json
import pickle
import threading
import warnings

import pytest
import torch
import transformers
from conftest import ROOT, net

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


def train(model, region, batches=None, optimizer=None, call=None, inside=False):
    """The losses, and the gradients of the last step. inside: backward is called in the region too."""
    optimizer, losses = optimizer or adamw(model), []
    for x in batches or data():
        optimizer.zero_grad()
        with region():
            loss = (call or model)(x).square().mean()
            if inside:
                loss.backward()
        if not inside:
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

    batches = data(50)
    expected = train(bare, region, batches)
    assert not same(expected, train(net(), PLAIN, batches))
    ours = (converted(), on(RECIPES[name])), (converted(), on(name)), (converted(RECIPES[name]), on(None)), (converted(name), on("current"))
    for model, how in ours:
        assert same(train(model, how, batches), expected)
        assert state(model) == state(bare) and state(model)["step"] == 50
    file, recipe = json.loads((ROOT / "configs" / "json" / f"recipe_{name}.json").read_text()), RECIPES[name]
    said = json.loads(R.text_of(recipe))
    assert {key: file[key] for key in said if key in file} == {key: said[key] for key in said if key in file} and len(said) >= 2


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


@pytest.mark.parametrize("move", [lambda m: m.cpu(), lambda m: m.bfloat16()], ids=["host", "dtype"])
def test_copies_of_a_model_that_was_moved_go_on(move):
    model = converted()
    train(model, on())
    twin = copy.deepcopy(move(copy.deepcopy(model)))  # nothing has given its weights their handlers back
    twin = twin.to("hpu", torch.float32)
    assert torch.equal(twin[0].weight, model[0].weight) or twin[0].weight.dtype == model[0].weight.dtype
    train(twin, on())
    assert state(twin)["step"] == 40 and state(model)["step"] == 20


def test_a_forward_of_its_own_stays():
    model, calls = net(), []
    theirs = model[0].forward
    model[0].forward = lambda x: calls.append(1) or theirs(x)  # as accelerate's hooks are
    mine = model[0].forward
    fp8.te.convert_modules(model)
    train(model, on())
    assert len(calls) == 20 and state(model)["step"] == 20
    fp8.te.restore(model)
    assert model[0].forward is mine


def test_restored_it_is_the_model_in_high_precision():
    gc.collect()  # a region without products names every converted model that lives, those of other tests too
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


def test_training_follows_train_and_eval():
    model, xs = converted(), data(4)
    train(model, on("nvidia"), xs[:2])
    before, shared = state(model), model[0]
    model.eval()
    with on("nvidia")():
        model(xs[2] * 100)
    assert state(model) == before
    model.train()
    shared.eval()
    train(model, on("nvidia"), xs[3:])
    assert state(model) == before and state(model, "2")["step"] == 3
    assert copy.deepcopy(model.eval()).train()(xs[0]).requires_grad


def test_a_copy_has_its_own_state():
    model = converted()
    optimizer = adamw(model)
    train(model, on(), data(5), optimizer)
    other, before = copy.deepcopy(model), state(model)
    assert state(other)["forward"]["scale"] == before["forward"]["scale"]
    first = train(other, on(), data(3))
    assert state(model) == before and state(other)["step"] > 0
    again = copy.deepcopy(model)
    assert same(train(again, on(), data(3)), first) and len([key for key in other.state_dict() if key.endswith("_extra_state")]) == 2
    fp8.te.restore(other)
    assert state(model) == before and len(fp8.te.convert_modules(other).converted) == 2
    assert other.load_state_dict(model.state_dict()).missing_keys == [] and state(other)["step"] == before["step"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_copy_trains_in_the_place_of_its_original(gone):
    model = converted()
    other = copy.deepcopy(model)
    if gone:
        del model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(other, on(), data(3))
    assert state(other)["step"] > 0


@pytest.mark.parametrize("kept", [False, True])
def test_tied_weights_are_one(kept):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).to("hpu")
    model[2].weight = model[0].weight
    if kept:
        model[0].weight.requires_grad_(False)
    report = fp8.te.convert_modules(model)
    assert [m.name for m in report.converted] == ["0", "2"] and "tied to 0" in report.converted[1].scheme
    train(model, on(), data(3))
    assert state(model)["step"] == state(model, "2")["step"] == 6
    assert model.load_state_dict(model.state_dict()).missing_keys == []


@pytest.mark.parametrize("name", ["habana-hybrid", "nvidia", "mxfp8"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_recomputation_keeps_the_bits(name, inside, reentrant):
    plain, model = converted(), converted()
    expected = train(plain, on(name))

    def call(x):
        return fp8.te.checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
    assert same(train(model, on(name), call=call, inside=inside), expected) and state(model) == state(plain)
    model = converted()

    def torchs(x):
        how = {} if reentrant else {"context_fn": fp8.te.checkpoint_contexts}
        return torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=reentrant, **how)
    assert same(train(model, on(name), call=torchs, inside=inside), expected)


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                      vocab_size=128)
    return transformers.LlamaForCausalLM(config).to("hpu").train()


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64)).to("hpu").train()


def train_tokens(model, optimizer=None, steps=4, first=0, enabled=True):
    optimizer, losses = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for step in range(first, first + steps):
        ids = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(step)).to("hpu")
        torch.manual_seed(step)  # of dropout
        with fp8.te.fp8_autocast(enabled, fp8_recipe="nvidia"):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad.cpu() for p in model.parameters()]


@pytest.mark.parametrize("make", [llama, gpt2])
def test_models_of_transformers_with_gradient_checkpointing(make):
    model, high = make(), train_tokens(make(), enabled=False)  # an enabled region without products names models of other tests
    report = fp8.te.convert_modules(model)
    expected = train_tokens(model)
    assert len(report.converted) == (15 if make is llama else 9) and expected[0] != high[0] and abs(expected[0][-1] - high[0][-1]) < 0.05
    for reentrant in (True, False):
        again = make()
        again.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        fp8.te.convert_modules(again)
        assert same(train_tokens(again), expected), reentrant
    fp8.te.restore(model)
    again = make()
    again.load_state_dict(model.state_dict())
    assert same(train_tokens(model), train_tokens(again))


def to_disk(item):
    file = io.BytesIO()
    torch.save(item, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def dcp(item, folder):
    """Through torch.distributed.checkpoint, into the state of a fresh model."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    model, fresh = item
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder, no_dist=True)
    found = get_model_state_dict(fresh)
    checkpoint.load(found, checkpoint_id=folder, no_dist=True)
    set_model_state_dict(fresh, found)


@pytest.mark.parametrize("recipe", [HYBRID, R.nvidia.DelayedScaling(), R.DelayedScaling(interval=4, amax_history_len=3, amax_compute_algo="max")],
                         ids=["hybrid", "nvidia", "interval"])
@pytest.mark.parametrize("way", ["torch.save", "assign", "dcp", "wrapped", "te.Linear"])
def test_resumed_the_losses_keep_their_bits(recipe, way, tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        if way != "te.Linear":
            return converted()
        return torch.nn.Sequential(fp8.te.Linear(64, 128), torch.nn.ReLU(), fp8.te.Linear(128, 32))
    model, batches = make(0), data(10)
    optimizer = adamw(model)
    train(model, on(recipe), batches[:5], optimizer)
    saved, kept = to_disk(model.state_dict()), to_disk(optimizer.state_dict())
    fresh = make(1)
    if way == "dcp":
        dcp((model, fresh), tmp_path)
    elif way == "wrapped":  # saved by another module around it, with other names
        torch.nn.ModuleDict({"inner": fresh}).load_state_dict({"inner." + key: value for key, value in saved.items()})
    else:
        fresh.load_state_dict({key: value.clone() for key, value in saved.items()}, assign=way == "assign")
    assert all(value.dtype == torch.uint8 and value.device.type == "cpu" for key, value in saved.items() if "extra" in key)
    expected = train(model, on(recipe), batches[5:], optimizer)
    optimizer = adamw(fresh)
    optimizer.load_state_dict(kept)
    assert same(train(fresh, on(recipe), batches[5:], optimizer), expected)


def test_state_that_is_missing_or_foreign_is_refused():
    model = converted()
    train(model, on(), data(3))
    saved = model.state_dict()
    with pytest.raises(RuntimeError, match='Missing key.*"0._extra_state", "2._extra_state"'):
        model.load_state_dict(net().state_dict())
    assert model.load_state_dict(net().state_dict(), strict=False).missing_keys == ["0._extra_state", "2._extra_state"]
    with pytest.raises(RuntimeError, match="Unexpected key"):
        net().load_state_dict(saved)
    for bytes_ in (pickle.dumps({"scale_fwd": 1}), b"{}", b"[]", b'{"version": 2, "state": null, "tensors": ""}',
                   b'{"version": 1, "state": {}, "tensors": "AAAA"}'):
        with pytest.raises(RuntimeError, match="0._extra_state: "):
            model.load_state_dict({**saved, "0._extra_state": torch.frombuffer(bytearray(bytes_), dtype=torch.uint8)})
    other = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to("hpu")
    converted(model=other)
    empty = {key: torch.empty(0, dtype=torch.uint8) if "extra" in key else value for key, value in saved.items()}
    other.load_state_dict(empty)
    kept = model.cpu().state_dict()
    assert all(torch.equal(kept[key], saved[key]) for key in saved if "extra" in key)


def test_a_pickle_is_refused_by_name():
    for model in (converted(), converted().cpu()):
        with pytest.raises(RuntimeError, match=r"0.*learns in fp8.*state_dict\(\)"):
            pickle.dumps(model)
    assert isinstance(pickle.loads(pickle.dumps(fp8.te.Linear(8, 8, device="cpu"))), fp8.te.Linear)


def test_linear():
    torch.manual_seed(0)
    layer, x = fp8.te.Linear(64, 32, parallel_mode="row"), data(1)[0]
    assert float(layer.weight.detach().std()) == pytest.approx(0.023, rel=0.1) and not layer.bias.any()
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    twin, alone = fp8.te.Linear(64, 32, init_method=torch.nn.init.ones_, return_bias=True, bias=False), torch.nn.Linear(64, 32).to("hpu")
    assert twin.weight.eq(1).all() and twin(x)[1] is None
    alone.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    converted(model=torch.nn.Sequential(alone))
    assert same(train(layer, on("nvidia")), train(alone, on("nvidia")))
    with on("nvidia")():
        kept = [layer(x, is_first_microbatch=first) for first in (None, True, False)]
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[1], kept[2])
    report = fp8.te.convert_modules(torch.nn.Sequential(layer, torch.nn.Linear(32, 32).to("hpu")))
    assert [m.name for m in report.converted] == ["1"] and report.kept[0].reason == "a module of fp8.te runs in fp8 by itself"
    assert list(fp8.te.restore(layer).state_dict()) == ["weight", "bias"] and len(fp8.te.convert_modules(torch.nn.Sequential(layer)).converted) == 1
    alone = fp8.te.Linear(64, 32, device="cpu").to("hpu")  # attaches itself at its first use
    train(alone, on("nvidia"), data(2))
    assert json.loads(OPS.training_state(alone.weight))["step"] == 2
    for key, value in {"sequence_parallel": True, "tp_size": 2, "parallel_mode": "both", "skip_weight_param_allocation": True,
                       "tp_group": object(), "get_rng_state_tracker": print}.items():
        with pytest.raises(ValueError, match=f"^te.Linear: {key}: found .*, allowed: "):
            fp8.te.Linear(8, 8, **{key: value})
    with pytest.raises(ValueError, match="^te.Linear: weight: found a tensor"):
        layer(x, weight=layer.weight)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: R.DelayedScaling(fp8_format=R.Format.E4M3), "DelayedScaling: key 'fp8_format': found E4M3, allowed: E5M2, HYBRID"),
    (lambda: R.DelayedScaling(override_linear_precision=(True, False, False)), "key 'override_linear_precision': found .*, allowed: .false, "),
    (lambda: R.DelayedScaling(margin=99), "key 'margin': found 99, allowed: -64 to 64"),
    (lambda: R.DelayedScaling(amax_compute_algo=max), "amax_compute_algo: found a callable, allowed: a name"),
    (lambda: R.nvidia.DelayedScaling(fp8_format=R.Format.E5M2), "found E5M2, allowed: E4M3, HYBRID"),
    (lambda: R.Float8BlockScaling(x_block_scaling_dim=2), "Float8BlockScaling: key '.*block_scaling_dim': found"),
    (lambda: R.Float8CurrentScaling(amax_epsilon=-1), "Float8CurrentScaling: key 'amax_epsilon': found"),
    (lambda: R.MXFP8BlockScaling(fp8_format=R.Format.E5M2), "MXFP8BlockScaling: key 'fp8_format': found E5M2"),
    (lambda: fp8.te.fp8_autocast(True, fp8_recipe="nvida"), "recipe: found 'nvida', allowed: .*did you mean 'nvidia'"),
    (lambda: fp8.te.fp8_autocast(True, fp8_group=3), "fp8_autocast: fp8_group: found int, allowed: a group of torch.distributed"),
    (lambda: fp8.te.checkpoint(print, tp_group=3), "checkpoint: tp_group: found 3, allowed: None"),
    (lambda: fp8.te.convert_modules(net("cpu")), "convert_modules: 0: expected its weight on hpu, found it on cpu"),
    (lambda: fp8.te.convert_modules(net(), recipe={"margn": 1}), "unknown key 'margn'"),
])
def test_bad_values_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_amaxes_of_training_quantize(tmp_path):
    model, x = converted(), data(1)[0]
    train(model, on("nvidia"))
    files = fp8.te.export_amax(model, tmp_path / "inc")
    assert any(file.endswith("inc_hooks_maxabs.json") for file in files)
    with pytest.raises(ValueError, match=r"convert: 0: its module trains in fp8: fp8.te.restore\(model\) first"):
        fp8.quant.convert(model, {"mode": "QUANTIZE", "scale_method": "unit_scale"})
    fp8.te.restore(model)
    with torch.no_grad():
        high = model(x)
        fp8.quant.convert(model, {"mode": "QUANTIZE", "scale_method": "maxabs_pow2", "dump_stats_path": str(tmp_path / "inc")})
        assert len(fp8.quant.report(model).converted) == 2 and 0 < float((model(x) - high).norm() / high.norm()) < 0.1


def test_compiled_and_in_graphs():
    model, plain = converted(), converted()
    expected = train(plain, on("nvidia"))
    assert same(train(model, on("nvidia"), call=torch.compile(model, backend="eager")), expected) and state(model) == state(plain)
    model = converted()
    alone = converted()
    optimizer = adamw(model)

    @torch.compile(backend="eager")
    def step(x):
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
            return model(x).square().mean()
    for x in data(4):
        loss = step(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    train(alone, on("nvidia"), data(4))
    assert not fp8.te.is_fp8_enabled() and state(model) == state(alone)
    model = converted()
    assert same(train(model, on("nvidia"), call=torch.hpu.ModuleCacher()(model)), expected)
    model = converted().bfloat16()
    assert len([key for key in model.state_dict() if "extra" in key]) == 2


def test_a_second_derivative_is_refused_by_name():
    model = converted()
    x = data(1)[0].requires_grad_()
    with on()():
        y = model(x)
    [first] = torch.autograd.grad(y.square().mean(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(first.square().sum(), x)


class Adapted(torch.nn.Module):
    """LoRA: a frozen layer, and two small ones that learn."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (torch.nn.Linear(*sizes, bias=False, device="hpu") for sizes in ((base.in_features, 16), (16, base.out_features)))

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", ["habana", "nvidia"])
def test_adapters_beside_frozen_weights(name):
    """All three products in fp8: the bits of the bare operators, and frozen weights stay."""
    def adapted():
        model = net()
        torch.manual_seed(3)
        model[0] = Adapted(model[0])
        return model
    bare, ours = adapted(), adapted()
    weights = [bare[0].base.weight, bare[0].down.weight, bare[0].up.weight, bare[2].weight]
    OPS.attach_training(weights, ["0.base", "0.down", "0.up", "2"], ["Linear"] * 4, name)

    @contextlib.contextmanager
    def region():
        number = OPS.enter_autocast(name)
        yield
        OPS.exit_autocast(number)
    frozen = weights[0].detach().clone()
    assert [m.name for m in fp8.te.convert_modules(ours).converted] == ["0.base", "0.down", "0.up", "2"]
    expected = train(bare, region)
    assert same(train(ours, on(name)), expected) and not same(expected, train(adapted(), PLAIN))
    assert torch.equal(ours[0].base.weight, frozen) and ours[0].base.weight.grad is None and expected[0][-1] < expected[0][0]


def test_modules_of_te_beside_converted_ones():
    """The bits of the same layers when all are converted ones."""
    def both():
        model = net()
        model[2] = fp8.te.Linear(model[2].in_features, model[2].out_features, name="2")
        model[2].load_state_dict(net()[2].state_dict(), strict=False)
        return model
    expected, mixed = train(converted(), on()), both()
    assert [m.name for m in fp8.te.convert_modules(mixed).converted] == ["0"]
    assert same(train(mixed, on()), expected) and state(mixed, "2")["step"] == state(mixed)["step"] == 20


def test_a_llama_is_near_its_run_in_bf16():
    """Twenty steps, each loss within 1 %."""
    def losses(region):
        torch.manual_seed(0)
        model = llama().to("hpu")
        if region is not None:
            converted(model=model)
        optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for step in range(20):
            tokens = torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(step % 5)).to("hpu")
            with torch.autocast("hpu", torch.bfloat16), region() if region else PLAIN():
                loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found
    bf16 = losses(None)
    for recipe in (HYBRID, "nvidia", "current", "block", "mxfp8"):
        low = losses(on(recipe))
        assert low != bf16 and max(abs(a - b) / b for a, b in zip(low, bf16)) < 0.01
