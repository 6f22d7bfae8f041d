# SPDX-License-Identifier: Apache-2.0
"""Attention of fp8.te: packed sequences and windows against torch's with an explicit mask, and in fp8 against torch's own fp8 casts."""

import copy
import itertools
import json

import pytest
import torch
from test_te_modules import LAYER, RECIPES, call, passes, randn, same, step_of, stirred, visible

from fp8 import te

KINDS = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "padding_causal_bottom_right", "arbitrary")
NEAR = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def plain(q, k, v, seen, scale=None):
    """In f64, of [batch, length, heads, depth]; a query that sees no key gets 0."""
    q, k, v = (t.cpu().double().repeat_interleave(q.size(2) // t.size(2), 2).transpose(1, 2) for t in (q, k, v))
    scores = (q @ k.transpose(2, 3) * (scale or q.size(-1) ** -0.5)).masked_fill(~seen, -torch.inf)
    return (torch.softmax(scores, -1).nan_to_num(0.0) @ v).transpose(1, 2).flatten(2).float()


def inside(kind, lengths, queries, keys, window):
    """The keys near each query's diagonal, by the words of window_size. lengths: for each of the batch, (queries, keys)."""
    seen = torch.zeros(len(lengths), 1, queries, keys, dtype=torch.bool)
    for b, (rows, columns) in enumerate(lengths):
        d = 0 if kind in ("causal", "padding_causal") else columns - rows
        for i, j in itertools.product(range(queries), range(keys)):
            after = 0 if "causal" in kind else window[1]
            seen[b, 0, i, j] = (window[0] < 0 or j >= i + d - window[0]) and (after < 0 or j <= i + d + after)
    return seen


@pytest.mark.parametrize("window", [(2, 0), (1, 2), (-1, 1), (0, -1)])
@pytest.mark.parametrize("kind", KINDS)
def test_windows(kind, window):
    for queries, form in ((7, "sbhd"), (5, "bshd")):
        mask, shape = None, [torch.arange(7).lt(count).logical_not()[None, None] for count in (7, 4)]
        if "padding" in kind:
            mask = torch.stack(shape)
        elif kind == "arbitrary":
            mask = torch.rand(2, 1, queries, 7, generator=torch.Generator().manual_seed(5)).gt(0.8)
        lengths = [(min(queries, count) if queries == 7 else queries, count) for count in ((7, 4) if "padding" in kind else (7, 7))]
        seen = visible(kind, queries, 7, mask).expand(2, 1, queries, 7) & inside(kind, lengths, queries, 7, window)
        q, k, v = randn(2, queries, 4, 8), randn(2, 7, 2, 8, seed=2), randn(2, 7, 2, 8, seed=3)
        dot = te.DotProductAttention(4, 8, 2, qkv_format=form, attn_mask_type=kind, window_size=window)
        inputs = (q, k, v) if form == "bshd" else tuple(t.transpose(0, 1) for t in (q, k, v))
        y = dot(*inputs, mask if mask is None else mask.to("hpu"))
        rows = seen.any(-1).squeeze(1)  # what torch gives a query without a key is its own affair
        torch.testing.assert_close((y if form == "bshd" else y.transpose(0, 1)).cpu()[rows], plain(q, k, v, seen)[rows], **NEAR)
        other = te.DotProductAttention(4, 8, 2, qkv_format=form, attn_mask_type=kind)
        assert torch.equal(other(*inputs, mask if mask is None else mask.to("hpu"), window_size=window), y)
        changes = "causal" not in kind or window != (-1, 1)
        assert torch.equal(other(*inputs, mask if mask is None else mask.to("hpu")), y) is not changes


LENGTHS = {"q": [4, 0, 7, 1], "kv": [4, 3, 5, 6]}


def sums(lengths):
    return torch.tensor([*itertools.accumulate(lengths, initial=0)]).int()


@pytest.mark.parametrize("window", [None, (2, 0)])
@pytest.mark.parametrize("kind", ["padding", "padding_causal", "padding_causal_bottom_right"])
@pytest.mark.parametrize("padded", [False, True])
def test_packed_sequences(kind, window, padded):
    """Each sequence is attended by itself; with rows between sequences these are 0 and have no gradient."""
    dot = te.DotProductAttention(4, 8, 2, qkv_format="thd", attn_mask_type=kind, window_size=window)
    room = {key: [n + 2 * padded for n in lengths] for key, lengths in LENGTHS.items()}
    q, k, v = (randn(sum(room[key]), heads, 8, seed=s) for s, (key, heads) in enumerate((("q", 4), ("kv", 2), ("kv", 2))))
    given = {f"cu_seqlens_{key}": sums(lengths) for key, lengths in LENGTHS.items()}
    given |= {f"cu_seqlens_{key}_padded": sums(lengths) for key, lengths in room.items()} if padded else {}
    found = passes(lambda *t: dot(*t, **given, max_seqlen_q=7, max_seqlen_kv=6), dot, q, k, v)
    expected, seen_rows = {key: torch.zeros_like(t.cpu()) for key, t in (("y", found["y"]), ("d0", q), ("d1", k), ("d2", v))}, []
    grad, at, key_at = randn(*found["y"].shape, seed=3).cpu(), 0, 0
    for rows, columns, of_q, of_k in zip(LENGTHS["q"], LENGTHS["kv"], room["q"], room["kv"]):
        leaves = [t[None, begin:begin + n].cpu().clone().requires_grad_() for t, begin, n in ((q, at, rows), (k, key_at, columns), (v, key_at, columns))]
        seen = visible(kind.removeprefix("padding_") if kind != "padding" else "no_mask", rows, columns, None)[:1]
        seen &= inside(kind, [(rows, columns)], rows, columns, window or (-1, -1))
        y = plain(*leaves, seen)
        if rows:
            y.backward(grad[None, at:at + rows])
            expected["y"][at:at + rows], expected["d0"][at:at + rows] = y[0].detach(), leaves[0].grad[0]
            expected["d1"][key_at:key_at + columns], expected["d2"][key_at:key_at + columns] = leaves[1].grad[0], leaves[2].grad[0]
        at, key_at = at + of_q, key_at + of_k
    for key, value in expected.items():
        torch.testing.assert_close(found[key].cpu(), value, **NEAR, msg=lambda said, key=key: f"{key}: {said}")


@pytest.mark.parametrize("kind", ["padding", "padding_causal", "padding_causal_bottom_right"])
def test_lengths_stand_for_a_padding_mask(kind):
    mask = torch.arange(7).lt(torch.tensor([7, 4])[:, None]).logical_not()[:, None, None]
    dot = te.DotProductAttention(4, 8, 2, qkv_format="bshd", attn_mask_type=kind)
    q, k, v = randn(2, 7, 4, 8), randn(2, 7, 2, 8, seed=2), randn(2, 7, 2, 8, seed=3)
    rows = torch.arange(7).lt(torch.tensor([7, 4])[:, None])
    y = dot(q, k, v, cu_seqlens_q=torch.tensor([0, 7, 11]))
    torch.testing.assert_close(y.cpu()[rows], dot(q, k, v, mask.to("hpu")).cpu()[rows], **NEAR)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_layer_of_packed_sequences(kind):
    """Rotation begins anew in each; the decoder's other attention has lengths of its own."""
    how = {**LAYER, "layer_type": kind, "enc_dec_attn_mask_type": "padding"}
    layer = stirred(te.TransformerLayer(64, 96, 4, **how, self_attn_mask_type="padding_causal", attn_input_format="thd"))
    alone = te.TransformerLayer(64, 96, 4, **{**how, "enc_dec_attn_mask_type": "no_mask"}, attn_input_format="bshd")
    alone.load_state_dict(layer.state_dict())
    x, memory, angles = randn(12, 64), randn(18, 64, seed=4), te.rotary_position_embedding(16, 9)
    given = {"cu_seqlens_kv": sums(LENGTHS["kv"]), "encoder_output": memory} if kind == "decoder" else {}
    y, at, key_at = layer(x, cu_seqlens_q=sums(LENGTHS["q"]), rotary_pos_emb=angles, **given), 0, 0
    for rows, columns in zip(LENGTHS["q"], LENGTHS["kv"]):
        if rows:
            other = {"encoder_output": memory[None, key_at:key_at + columns]} if given else {}
            torch.testing.assert_close(y[at:at + rows].cpu(), alone(x[None, at:at + rows], rotary_pos_emb=angles, **other)[0].cpu(), **NEAR)
        at, key_at = at + rows, key_at + columns
    with pytest.raises(ValueError, match=r"rotary_pos_emb: found sizes \[6, 1, 1, 16\].*, allowed: \[7 or more"):
        layer(x, cu_seqlens_q=sums(LENGTHS["q"]), rotary_pos_emb=angles[:6], **given)


MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def cast(t, scale, dtype):
    return (t * scale).clamp(-MAX[dtype], MAX[dtype]).to(dtype).float() / scale


def in_fp8_by_torch(q, k, v, grad, scales, forward, backward, again):
    """o, dq, dk, dv with torch's casts. scales: of q, k, v, P, do, dS; None: of the tensor itself, of P its bound 1. again: backward makes P
    anew, and dS of it before its cast."""
    def of(t, n, dtype, amax=None):
        return cast(t, scales[n] if scales else MAX[dtype] / (amax or float(t.abs().max())), dtype)
    q, k, v = (of(t.cpu(), n, forward) for n, t in enumerate((q, k, v)))
    s = q.size(-1) ** -0.5
    exact = torch.softmax(q @ k.transpose(2, 3) * s, -1)
    p, g = of(exact, 3, forward, 1.0), of(grad.cpu(), 4, backward)
    dp, once_more = g @ v.transpose(2, 3), exact if again else p
    ds = of(once_more * (dp - (once_more * dp).sum(-1, True)), 5, backward)
    return (p @ v).bfloat16().float(), ds @ k * s, ds.transpose(2, 3) @ q * s, p.transpose(2, 3) @ g


def learned(module, recipe, *inputs, seed=3, **how):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    with te.fp8_autocast(True, fp8_recipe=recipe, seed=7):
        y = module(*leaves, **how)
    y.backward(randn(*y.shape, seed=seed))
    return [y.detach(), *(t.grad for t in leaves)]


def off(found, expected):
    return float((found.cpu().float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("recipe", ["current", "nvidia", "habana"])
def test_attention_learns_in_fp8(recipe, recompute):
    """Two steps: scales are 1 in the first of a delayed recipe, and then of what it recorded."""
    fused, scales = te.FusedAttention(enable_recompute=recompute), None if recipe == "current" else [1.0] * 6
    forward = torch.float8_e5m2 if recipe == "habana" else torch.float8_e4m3fn
    q, k, v = (randn(2, 3, 24, 16, seed=s) for s in (1, 2, 4))
    for step in range(2):
        grad = randn(2, 3, 24, 16, seed=3)
        found = learned(fused, RECIPES[recipe], q, k, v)
        expected = in_fp8_by_torch(q, k, v, grad, scales, forward, torch.float8_e5m2, recompute)
        high = [t.detach().clone().cpu().requires_grad_() for t in (q, k, v)]
        exact = torch.nn.functional.scaled_dot_product_attention(*high)
        exact.backward(grad.cpu())
        for got, wanted, precise in zip(found, expected, [exact.detach(), *(t.grad for t in high)]):
            near = 0.03 if recompute and got is not found[0] else 1e-3  # the rows' maxima and sums stay in bf16
            assert off(got, wanted) < near and 0.01 < off(got, precise) < 0.3
        if scales:
            state = json.loads(fused._state.values())
            assert state["step"] == step + 1 and [len(state[key]["scale"]) for key in ("forward", "backward")] == [4, 2]
            amaxes = [max(rows) for key in ("forward", "backward") for rows in zip(*state[key]["amax_history"])]
            tops = [MAX[forward]] * 4 + [MAX[torch.float8_e5m2]] * 2
            ratios = [torch.tensor(top / amax) for top, amax in zip(tops, amaxes)]
            scales = [float(2 ** torch.floor(torch.log2(r))) if recipe == "habana" else float(r) for r in ratios]
            assert abs(amaxes[0] - float(q.abs().max())) < 1e-6


def test_attention_outside_of_a_region_and_in_one_that_is_not_enabled():
    q, k = randn(2, 4, 5, 8), randn(2, 2, 5, 8, seed=2)
    fused, seen = te.FusedAttention(0.3), torch.ones(5, 5, dtype=torch.bool).tril()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3, enable_gqa=True).cpu()
    product = te.Linear(8, 8)
    for how in ({"is_causal": True}, {"attention_mask": seen.to("hpu")}, {"is_causal": True, "softmax_mode": "none"}):
        torch.testing.assert_close(fused(q, k, k, **how).cpu(), expected)
        with te.fp8_autocast(True):
            product(randn(2, 8))
            with te.fp8_autocast(False):
                torch.testing.assert_close(fused(q, k, k, **how).cpu(), expected)
    assert json.loads(fused._state.values())["step"] == 0
    fused.eval()
    with te.fp8_autocast(True):
        low = fused(q, k, k, is_causal=True)
    assert json.loads(fused._state.values())["step"] == 0 and 0.005 < off(low, expected) < 0.2, "in eval() no amax is recorded"
    with pytest.raises(RuntimeError, match="recipe: found mxfp8, allowed in fp8 attention: delayed, current"), te.fp8_autocast(True, fp8_recipe="mxfp8"):
        fused(q, k, k)


def test_fp8_dpa_is_that_attention():
    """The same bits with heads beside rows, causal by an explicit mask or by its name; outside of a region torch's own."""
    dot, fused = te.DotProductAttention(4, 16, 2, fp8_dpa=True), te.FusedAttention(None, 0.0, True, "attention")
    plain_dot = te.DotProductAttention(4, 16, 2)
    q, k, v = randn(9, 2, 4, 16), randn(9, 2, 2, 16, seed=2), randn(9, 2, 2, 16, seed=4)
    assert torch.equal(dot(q, k, v), plain_dot(q, k, v)) and [*dot.state_dict()] == ["fused_attention._extra_state"] and not plain_dot.state_dict()
    for _ in range(3):
        found = learned(dot, "nvidia", q, k, v)
        heads = [t.permute(1, 2, 0, 3).contiguous() for t in (q, k, v)]
        leaves = [t.requires_grad_() for t in heads]
        with te.fp8_autocast(True, fp8_recipe="nvidia", seed=7):
            y = fused(*leaves, is_causal=True).permute(2, 0, 1, 3).flatten(2)
        y.backward(randn(*y.shape, seed=3))
        expected = [y, *(t.grad.permute(2, 0, 1, 3) for t in leaves)]
        assert all(torch.equal(one, other) for one, other in zip(found, expected))
    assert dot.fused_attention._state.values() == fused._state.values()


FP8 = {**LAYER, "fuse_qkv_params": True, "fp8_dpa": True}


@pytest.mark.parametrize("recipe", ["current", "nvidia", "habana"])
def test_a_layer_with_attention_in_fp8(recipe):
    """A copy, a state dict that is loaded, and recomputation change no bit; without fp8_dpa other bits come out."""
    layer, fresh, other = (te.TransformerLayer(64, 96, 4, **how) for how in (FP8, FP8, {**FP8, "fp8_dpa": False}))
    stirred(layer)
    saved = layer.state_dict()
    assert "self_attention.core_attention.fused_attention._extra_state" in saved
    report = other.load_state_dict({key: value for key, value in saved.items() if "fused_attention" not in key})
    assert report.missing_keys == [] == report.unexpected_keys
    assert not torch.equal(step_of(other, call, 0, RECIPES[recipe])["y"], step_of(copy.deepcopy(layer), call, 0, RECIPES[recipe])["y"])
    for step in range(2):
        step_of(layer, call, step, RECIPES[recipe])
    fresh.load_state_dict({key: value.clone() for key, value in layer.state_dict().items()})
    copied, again = copy.deepcopy(layer), copy.deepcopy(layer)
    found = [step_of(module, call, 2, RECIPES[recipe]) for module in (copied, fresh)]
    found.append(step_of(again, lambda m, x, _: te.checkpoint(m, x, use_reentrant=False), 2, RECIPES[recipe]))
    expected = step_of(layer, call, 2, RECIPES[recipe])
    for one in found:
        same(one, expected)
    core = [m.self_attention.core_attention.fused_attention._state.values() for m in (layer, fresh, copied, again)]
    assert len(set(core)) == 1 and json.loads(core[0])["step"] == 3 and json.loads(core[0])["name"] == "layer.self_attention.core_attention"
    with pytest.raises(RuntimeError, match="fused_attention._extra_state"):
        fresh.load_state_dict({key: value for key, value in saved.items() if "fused_attention" not in key})
