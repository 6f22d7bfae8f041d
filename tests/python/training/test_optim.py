# SPDX-License-Identifier: Apache-2.0
"""fp8.optim against torch.optim, and against the formulas of what torch does not have; groups, states, closures, refusals."""

import copy
import io
import math

import pytest
import torch
from conftest import net

import fp8
from fp8 import optim

STEPS = 6


def gradients(model, step, sizes=1e-2):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = (torch.randn(p.shape, generator=generator) * sizes).to(p.device, p.dtype)


def values(model):
    return torch.cat([p.detach().cpu().double().flatten() for p in model.parameters()])


def run(model, optimizer, steps=range(STEPS), **how):
    for step in steps:
        gradients(model, step, **how)
        optimizer.step()
    return values(model)


def near(a, b, tolerance=1e-6):
    return float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_torchs(decay):
    """With torch's place of eps within 1e-6; with the vendor's by its own formula."""
    ours, theirs = net(), net()
    expected = run(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, eps=1e-6, weight_decay=decay))
    assert near(run(ours, optim.FusedAdamW(ours.parameters(), lr=1e-2, weight_decay=decay, eps_mode="torch")), expected)
    ours = net()
    w, m, v = values(ours), 0.0, 0.0
    found = run(ours, optim.FusedAdamW(ours.parameters(), lr=1e-2, weight_decay=decay), sizes=1e-5)
    for t in range(1, STEPS + 1):
        plain = net()
        gradients(plain, t - 1, 1e-5)
        g = torch.cat([p.grad.cpu().double().flatten() for p in plain.parameters()])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w * (1 - 1e-2 * decay) - 1e-2 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (v.sqrt() + 1e-6)
    assert near(found, w)
    assert optim.FusedAdamW(net().parameters()).defaults["eps"] == 1e-6


@pytest.mark.parametrize(("dtype", "moments", "tolerance"), [
    (torch.bfloat16, None, 2e-2), (torch.float32, torch.bfloat16, 2e-3), (torch.float32, (torch.float8_e4m3fn, torch.float8_e5m2), 1e-1),
    (torch.float32, torch.float8_e5m2, 1e-1), (torch.float32, (None, torch.float8_e5m2), 1e-1)])
def test_adamw_in_other_dtypes(dtype, moments, tolerance):
    ours, theirs = net().to(dtype), net().to(dtype)
    optimizer = optim.FusedAdamW(ours.parameters(), lr=1e-3, moments_dtype=moments)
    found = run(ours, optimizer)
    assert near(found, run(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3, eps=1e-6, weight_decay=0)), tolerance)
    state = optimizer.state[ours[0].weight]
    wanted = tuple(each or dtype for each in (moments if isinstance(moments, tuple) else (moments,) * 2))
    assert (state["exp_avg"].dtype, state["exp_avg_sq"].dtype) == wanted and ("exp_avg_scale" in state) == (wanted[0].itemsize == 1)
    again, other = copy.deepcopy(ours), io.BytesIO()
    torch.save(optimizer.state_dict(), other)
    other.seek(0)
    loaded = optim.FusedAdamW(again.parameters(), lr=1)
    loaded.load_state_dict(torch.load(other, weights_only=True))
    for p, q in zip(again.parameters(), ours.parameters()):
        pairs = [(loaded.state[p][key], value) for key, value in optimizer.state[q].items()]
        assert all(a.dtype == b.dtype and torch.equal(a.cpu().float(), b.cpu().float()) for a, b in pairs)
    if wanted[1].itemsize > 1:  # else rounded at random
        assert torch.equal(run(again, loaded, range(9, 12)), run(ours, optimizer, range(9, 12)))


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
                                     {"momentum": 0.9, "nesterov": True}])
def test_sgd_is_torchs(options):
    ours, theirs = net(), net()
    one, other = optim.FusedSGD(ours.parameters(), lr=0.1, **options), torch.optim.SGD(theirs.parameters(), lr=0.1, **options)
    assert near(run(ours, one), run(theirs, other))
    fresh = optim.FusedSGD(ours.parameters(), lr=0.1)
    fresh.load_state_dict(copy.deepcopy(other.state_dict()))  # torch's
    assert near(run(ours, fresh, range(9, 12)), run(theirs, other, range(9, 12)))


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0}, {"weight_decay": 0.0, "use_lamb": True}, {"grad_averaging": False},
                                     {"max_grad_norm": 0.0, "bias_correction": False}])
def test_lamb_is_its_formula(options):
    ours, o = net(), {"weight_decay": 0.01, "use_lamb": False, "max_grad_norm": 1.0, "bias_correction": True, "grad_averaging": True, **options}
    ws = [p.detach().cpu().double() for p in ours.parameters()]
    found = run(ours, optim.FusedLamb(ours.parameters(), lr=1e-2, **options), sizes=1.0)
    ms, vs = ([torch.zeros_like(w) for w in ws] for _ in range(2))
    for t in range(1, STEPS + 1):
        plain = net()
        gradients(plain, t - 1, 1.0)
        gs = [p.grad.cpu().double() for p in plain.parameters()]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gs))
        clip = max(1.0, norm / o["max_grad_norm"]) if o["max_grad_norm"] else 1.0
        c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if o["bias_correction"] else (1, 1)
        for i, g in enumerate(gs):
            g = g / clip
            ms[i] = 0.9 * ms[i] + (0.1 if o["grad_averaging"] else 1.0) * g
            vs[i] = 0.999 * vs[i] + 0.001 * g * g
            step = ms[i] / c1 / ((vs[i] / c2).sqrt() + 1e-6) + o["weight_decay"] * ws[i]
            trust = float(ws[i].norm() / step.norm()) if o["weight_decay"] or o["use_lamb"] else 1.0
            ws[i] = ws[i] - 1e-2 * trust * step
    assert near(found, torch.cat([w.flatten() for w in ws]), 1e-5)


def lars(model, **options):
    inner = optim.FusedResourceApplyMomentum(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return optim.FusedLars(inner, [int(p.dim() > 1) for p in model.parameters()], **options)


def test_lars_is_its_formula():
    ours = net()
    ws = [p.detach().cpu().double() for p in ours.parameters()]
    found, bs = run(ours, lars(ours)), [torch.zeros_like(w) for w in ws]
    for t in range(STEPS):
        plain = net()
        gradients(plain, t)
        for i, g in enumerate(p.grad.cpu().double() for p in plain.parameters()):
            if ws[i].dim() == 1:
                step = 0.1 * g
            else:
                step = (g + 0.01 * ws[i]) * 0.1 * 0.001 * ws[i].norm() / (g.norm() + 0.01 * ws[i].norm() + 1e-8)
            bs[i] = 0.9 * bs[i] - step
            ws[i] = ws[i] + bs[i]
    assert near(found, torch.cat([w.flatten() for w in ws]))


MAKE = {"FusedAdamW": lambda m: optim.FusedAdamW(m.parameters(), lr=1e-2),
        "FusedSGD": lambda m: optim.FusedSGD(m.parameters(), lr=1e-2, momentum=0.9),
        "FusedLamb": lambda m: optim.FusedLamb(m.parameters(), lr=1e-2), "FusedLars": lars}


@pytest.mark.parametrize("name", MAKE)
def test_states_groups_closures_schedules(name):
    model = net()
    optimizer = MAKE[name](model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    run(model, optimizer)
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), model.state_dict()), file)
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    fresh = net()
    fresh.load_state_dict(weights)
    loaded = MAKE[name](fresh)
    loaded.load_state_dict(state)
    assert torch.equal(run(fresh, loaded, range(6, 9)), run(model, optimizer, range(6, 9)))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    extra = torch.nn.Parameter(torch.ones(4, device="hpu"))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    if name == "FusedLars":
        with pytest.raises(ValueError, match="skip_mask: found 4, expected 5"):
            optimizer.step()
        optimizer.skip_mask.append(0)
    before = values(model)

    def closure():
        optimizer.zero_grad()
        loss = extra.square().sum()
        loss.backward()
        return loss
    assert float(optimizer.step(closure)) == 4 and float(extra.detach().max()) < 1
    assert torch.equal(values(model), before)  # no gradients, no step
    schedule.step()
    assert optimizer.param_groups[0]["lr"] in (0.005, 0.05)
    optimizer.zero_grad()
    optimizer.step()


def test_adamw_takes_torchs_state_and_late_parameters():
    ours, theirs = net(), net()
    other = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0, eps=1e-6)
    optimizer = optim.FusedAdamW(ours.parameters(), lr=1e-2, eps_mode="torch")
    run(theirs, other)
    ours.load_state_dict(theirs.state_dict())
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": copy.deepcopy(other.state_dict()["state"]), "param_groups": groups})
    for step in range(9, 12):  # a parameter without a gradient keeps its step
        for model, each in ((ours, optimizer), (theirs, other)):
            gradients(model, step)
            model[0].weight.grad = None if step == 9 else model[0].weight.grad
            each.step()
    assert near(values(ours), values(theirs)) and optimizer.state[ours[0].weight]["step"].item() == STEPS + 2


def test_a_model_learns_in_fp8():
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)).to("hpu")
    for name, make in MAKE.items():
        model, losses = net(), []
        optimizer = make(model)
        fp8.te.convert_modules(model)
        for _ in range(5):
            with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
                loss = (model(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0], name


def test_clip_norm():
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        for limit in (0.1, 1e3):
            ours, theirs = net().to(dtype), net().to(dtype)
            gradients(ours, 0)
            gradients(theirs, 0)
            before = [p.grad.clone() for p in ours.parameters()]
            norm = optim.FusedClipNorm(ours.parameters(), limit).clip_norm(ours.parameters())
            expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
            assert norm.dim() == 0 and float(norm) == pytest.approx(float(expected), rel=tolerance if dtype == torch.float32 else 1e-2)
            for p, q, old in zip(ours.parameters(), theirs.parameters(), before):
                assert near(p.grad.cpu().float(), q.grad.cpu().float(), tolerance) and (limit == 0.1 or torch.equal(p.grad, old))
    assert float(optim.FusedClipNorm([], 1.0).clip_norm(net().parameters())) == 0


def test_muon_has_the_bits_of_the_cpu():
    found = []
    for device in ("cpu", "hpu"):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(2))).to(device)
        model.load_state_dict({key: value for key, value in zip(model.state_dict(), torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0)))})
        found.append(run(model, optim.Muon(model.parameters(), lr=0.02, weight_decay=0.1)))
    assert torch.equal(*found) and float(found[0].abs().max()) > 0


def test_ema():
    model = net()
    ema = optim.FusedEMA(model, decay=0.5, updates=1000)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    before, model.note = values(net()), "new"
    ema.update(model)
    decay = 0.5 * (1 - math.exp(-1001 / 2000))
    assert near(values(ema.ema), decay * before + (1 - decay) * values(model)) and not any(p.requires_grad for p in ema.ema.parameters())
    ema.update_attr(model, include=("note",))
    assert ema.ema.note == "new" and not ema.ema.training


@pytest.mark.parametrize(("make", "said"), [
    (lambda p: optim.FusedAdamW(p, lr=-1), "FusedAdamW: lr: found -1, allowed: 0 or more"),
    (lambda p: optim.FusedAdamW(p, betas=(0.9, 1.0)), r"FusedAdamW: betas: found \(0.9, 1.0\), allowed"),
    (lambda p: optim.FusedAdamW(p, eps=0), "FusedAdamW: eps: found 0, allowed: more than 0"),
    (lambda p: optim.FusedAdamW(p, eps_mode="other"), "FusedAdamW: eps_mode: found other, allowed: habana, torch"),
    (lambda p: optim.FusedSGD(p, lr=1, nesterov=True), "FusedSGD: nesterov: found True, allowed"),
    (lambda p: optim.FusedLamb(p, weight_decay=-1), "FusedLamb: weight_decay: found -1"),
    (lambda p: optim.FusedLars(torch.optim.SGD(p, lr=1), [1]), "FusedLars: optimizer: found SGD, allowed: FusedResourceApplyMomentum"),
    (lambda p: optim.FusedClipNorm(p, -1), "FusedClipNorm: max_norm: found -1"),
    (lambda p: optim.FusedEMA(net(), decay=2), "FusedEMA: decay: found 2"),
])
def test_bad_values_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make(list(net().parameters()))


def test_what_is_refused_by_name():
    host = torch.nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="FusedLamb: amsgrad: found True, allowed: False"):
        optim.FusedLamb(host.parameters(), amsgrad=True)
    host(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"FusedSGD: found a parameter of sizes \[4, 4\] on cpu, expected it on hpu"):
        optim.FusedSGD(host.parameters(), lr=1).step()
