# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: found by what they are, whatever their classes are called; and fp8.nn.FusedMoE, in fp8 too."""

import json

import pytest
import torch

import fp8

EXPERTS, HIDDEN, INNER = 4, 64, 96
QUANTIZE = {"mode": "QUANTIZE", "scale_method": "act_maxabs_pow2_weights_pcs_maxabs_pow2", "dynamic_quantization": True}


class Pile(torch.nn.Module):
    """Stacked experts under names of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(EXPERTS, *shape) / 8) for shape in ((INNER, HIDDEN), (HIDDEN, INNER)))


class Choice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, x):
        return self.layer(x).softmax(-1)


class Block(torch.nn.Module):
    def __init__(self, pile=True):
        super().__init__()
        self.choice = Choice()
        self.pile = Pile() if pile else fp8.nn.FusedMoE(EXPERTS, HIDDEN, INNER)
        self.shared = torch.nn.Sequential(torch.nn.Linear(HIDDEN, EXPERTS), torch.nn.Linear(EXPERTS, HIDDEN))  # a width as many as experts

    def forward(self, x):
        shares, table = self.choice(x).topk(2, -1)
        return self.pile(x, table, shares) + self.shared(x)


class RouterOfExpertTokens(torch.nn.Module):
    """Neither: a sequence of tokens, and a layer."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.randn(EXPERTS, 8, HIDDEN))
        self.layer = torch.nn.Linear(HIDDEN, HIDDEN)


def selection(model):
    report = fp8.quant.report(fp8.quant.convert(torch.nn.Sequential(model).to("hpu"), QUANTIZE))
    return {m.name: m.type for m in report.converted}, {m.name: m.reason for m in report.kept}


def test_by_structure():
    converted, kept = selection(Block())
    assert converted == {"0.pile.first": "MoeMatmul", "0.pile.second": "MoeMatmul", "0.shared.0": "Linear", "0.shared.1": "Linear"}
    assert list(kept) == ["0.choice.layer"] and "register(Choice)" in kept["0.choice.layer"]
    converted, kept = selection(RouterOfExpertTokens())
    assert converted == {"0.layer": "Linear"} and list(kept) == ["0.tokens"]


def test_a_router_that_is_registered(monkeypatch):
    from fp8 import _modules
    monkeypatch.setattr(_modules, "_registered", {})
    fp8.quant.register(Choice)
    assert "0.choice.layer" in selection(Block())[0]


def test_fused(tmp_path):
    torch.manual_seed(0)
    block = Block(pile=False).to("hpu")
    for expert in (*block.pile.w13_list, *block.pile.w2_list):
        expert.set_weight(torch.randn(expert.weight.shape).to("hpu") / expert.weight.size(1) ** 0.5)
    model, x = torch.nn.Sequential(block), torch.randn(64, HIDDEN).to("hpu")
    with torch.no_grad():
        high = model(x)
        expected, (shares, table), within = block.shared(x), block.choice(x).topk(2, -1), []
        for i, (up, down) in enumerate(zip(block.pile.w13_list, block.pile.w2_list)):
            gate, rest = up(x).chunk(2, -1)
            inner = torch.nn.functional.silu(gate) * rest
            within.append(float(inner[(table == i).any(-1)].abs().max()))
            expected = expected + down(inner) * ((table == i) * shares).sum(-1, keepdim=True)
        assert torch.allclose(high, expected, atol=1e-5)
        fp8.quant.prepare(model, {"scale_method": "maxabs_pow2", "dump_stats_path": str(tmp_path / "inc")})
        assert torch.equal(model(x), high)
        fp8.quant.convert(model)
        error = float((model(x) - high).norm() / high.norm())
    converted = {m.name: m.type for m in fp8.quant.report(model).converted}
    assert 0 < error < 0.1 and sum(kind == "MoeMatmul" for kind in converted.values()) == 2 * EXPERTS and "0.choice.layer" not in converted
    nodes = json.loads((tmp_path / "inc_hooks_maxabs.json").read_text())["Nodes"]
    assert f"0.pile.w2_list.{EXPERTS - 1}" in nodes and len(nodes["0.pile"]["inputs"]) == 1
    assert len(nodes["0.pile"]["outputs"]) == 1 + EXPERTS and dict(model.named_modules())["0.pile"].node.describe()
    measured = [amax for [[amax]] in nodes["0.pile"]["outputs"][1:]]
    assert measured == pytest.approx(within, rel=1e-5)


def test_a_part_of_the_experts():
    whole, halves = fp8.nn.FusedMoE(EXPERTS, 8, 16), [fp8.nn.FusedMoE(EXPERTS, 8, 16, first, first + 1) for first in (0, 2)]
    for name in ("w13_list", "w2_list"):
        for i, expert in enumerate(getattr(whole, name)):
            expert.set_weight(torch.randn(expert.weight.shape))
            getattr(halves[i // 2], name)[i % 2].set_weight(expert.weight.data)
    x, table, shares = torch.randn(5, 8).to("hpu"), torch.tensor([[0, 3], [1, 2], [0, 1], [2, 3], [3, 0]]).to("hpu"), torch.rand(5, 2).to("hpu")
    one, two = (half.to("hpu")(x, table, shares) for half in halves)
    assert torch.allclose(whole.to("hpu")(x, table, shares), one + two, atol=1e-6)
    with pytest.raises(ValueError, match=r"found \[3, 4\], allowed: within \[0, 3\]"):
        fp8.nn.FusedMoE(EXPERTS, 8, 16, 3, 4)
