# SPDX-License-Identifier: Apache-2.0
"""Modules of fp8.te: in high precision torch's own modules and formulas, in fp8 the bits of torch's modules after convert_modules()."""

import contextlib
import copy
import json

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import fp8
from fp8 import te

RECIPES = {"habana": te.recipe.DelayedScaling(), "habana-hybrid": te.recipe.DelayedScaling(fp8_format=te.recipe.Format.HYBRID),
           "nvidia": te.recipe.nvidia.DelayedScaling(), "current": te.recipe.Float8CurrentScaling(), "block": te.recipe.Float8BlockScaling(),
           "mxfp8": te.recipe.MXFP8BlockScaling()}
GELU, SIGMOID = torch.nn.GELU("tanh"), torch.nn.Sigmoid()
ACTIVATIONS = {"gelu": GELU, "relu": torch.nn.ReLU(), "silu": torch.nn.SiLU(), "qgelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
               "srelu": lambda x: x.clamp(min=0) ** 2, "glu": SIGMOID}
GATED = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu", "qgeglu": "qgelu", "sreglu": "srelu", "glu": "glu"}
NEAR = {torch.float32: {"rtol": 1.3e-6, "atol": 1e-5}, torch.bfloat16: {"rtol": 1.6e-2, "atol": 3e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def randn(*sizes, seed=1, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to("hpu", dtype)


def stirred(module):
    """Biases and norms away from their special start."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if "bias" in name or "norm" in name:
                p += 0.1 * torch.randn(p.shape, generator=generator).to(p)
    return module


@contextlib.contextmanager
def in_fp8():
    """A region, with a product in it: one without is an error where modules were used and dropped before."""
    product = te.Linear(8, 8)
    with te.fp8_autocast(True, fp8_recipe="current"):
        yield product(randn(2, 8))


def passes(call, module, x, *inputs):
    """y, and the gradients of x, of other inputs and of parameters by name."""
    module.zero_grad()
    leaves = [t.detach().clone().requires_grad_() for t in (x, *inputs)]
    y = call(*leaves)
    y.backward(randn(*y.shape, seed=3, dtype=y.dtype))
    return {"y": y.detach(), **{f"d{i}": t.grad for i, t in enumerate(leaves)}, **{n: p.grad.clone() for n, p in module.named_parameters()}}


def close(found, expected, **how):
    assert found.keys() == expected.keys() and len(found) > 1
    for name, value in found.items():
        torch.testing.assert_close(value.cpu(), expected[name].to(value.dtype).cpu(), **how, msg=lambda said, name=name: f"{name}: {said}")


def same(found, expected):
    assert found.keys() == expected.keys() and len(found) > 1
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@DTYPES
@pytest.mark.parametrize("centered", [False, True])
def test_norms(dtype, centered):
    x = randn(3, 5, 37, dtype=dtype)
    for made, torchs in ((te.LayerNorm, torch.nn.LayerNorm), (te.RMSNorm, torch.nn.RMSNorm)):
        module = stirred(made(37, 1e-3, params_dtype=dtype, zero_centered_gamma=centered))
        plain, y = torchs(37, 1e-3, device="hpu", dtype=torch.float32), module(x)
        plain.load_state_dict({n: p.float() + (centered and n == "weight") for n, p in module.state_dict().items()})
        expected = passes(plain, plain, x.float())
        close(passes(module, module, x), expected, **({"rtol": 0, "atol": 1e-5} if dtype == torch.float32 else NEAR[dtype]))
        with in_fp8():
            assert torch.equal(module(x), y) and y.dtype == dtype
        if centered:
            assert torch.equal(module(x), plain(x.float()).to(dtype)) and not made(8, zero_centered_gamma=True).weight.any()


@DTYPES
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *list(GATED)[:-1]])
def test_mlp_is_its_formula(activation, dtype):
    gated, x = activation in GATED, randn(6, 2, 24, dtype=dtype)
    mlp = stirred(te.LayerNormMLP(24, 40, activation=activation, normalization="RMSNorm" if gated else "LayerNorm", params_dtype=dtype))
    assert tuple(mlp.fc1_weight.shape) == (80 if gated else 40, 24) and ("layer_norm_bias" in mlp.state_dict()) is not gated

    def formula(x):
        norm = F.rms_norm(x, (24,), mlp.layer_norm_weight, 1e-5) if gated else F.layer_norm(x, (24,), mlp.layer_norm_weight, mlp.layer_norm_bias)
        inner = norm @ mlp.fc1_weight.T + mlp.fc1_bias
        f = ACTIVATIONS[GATED.get(activation, activation)]
        return (f(inner[..., :40]) * inner[..., 40:] if gated else f(inner)) @ mlp.fc2_weight.T + mlp.fc2_bias
    close(passes(mlp, mlp, x), passes(formula, mlp, x), **NEAR[dtype])
    again = te.LayerNormMLP(24, 40, activation=activation, normalization="RMSNorm" if gated else "LayerNorm", params_dtype=dtype, checkpoint=True)
    again.load_state_dict(mlp.state_dict())
    same(passes(again, again, x), passes(mlp, mlp, x))


def test_results_beside_y():
    x = randn(4, 24)
    for make in (te.LayerNormLinear, te.LayerNormMLP):
        module = stirred(make(24, 40, return_bias=True, return_layernorm_output=True, init_method=torch.nn.init.ones_))
        y, bias, norm = module(x)
        plain = make(24, 40)
        plain.load_state_dict(module.state_dict())
        assert torch.equal(norm, F.layer_norm(x, (24,), module.layer_norm_weight, module.layer_norm_bias))
        torch.testing.assert_close((y + bias).cpu(), plain(x).cpu())
        assert bias is (module.bias if make is te.LayerNormLinear else module.fc2_bias) and not isinstance(plain(x), tuple)
    mlp = te.LayerNormMLP(64, 128, init_method=torch.nn.init.ones_)
    assert mlp.fc1_weight.eq(1).all() and mlp.fc2_weight.std().item() == pytest.approx(0.023, rel=0.1) and not mlp.fc1_bias.any()
    grouped = te.GroupedLinear(3, 24, 8, return_bias=True)
    y, biases = grouped(x, [1, 0, 3])
    assert biases[2] is grouped.bias2 and torch.equal(y[1:], x[1:] @ grouped.weight2.T)


@DTYPES
def test_grouped_linear_is_one_linear_a_share(dtype):
    module, x, splits = stirred(te.GroupedLinear(4, 24, 40, params_dtype=dtype)), randn(2, 9, 24, dtype=dtype), [9, 0, 2, 7]

    def apart(x):
        rows = x.flatten(0, 1).split(splits)
        parts = [F.linear(part, getattr(module, f"weight{i}"), getattr(module, f"bias{i}")) for i, part in enumerate(rows)]
        return torch.cat(parts).unflatten(0, (2, 9))
    same(passes(lambda x: module(x, splits), module, x), passes(apart, module, x))


def visible(kind, queries, keys, mask):
    """By its words, key by key: [batch, 1, queries, keys]."""
    batch = 2 if mask is None else mask.size(0)
    seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for b in range(batch):
        count = keys if mask is None or kind == "arbitrary" else int((~mask[b]).sum())
        for i in range(queries):
            for j in range(keys):
                last = i + (count - queries if queries != keys else 0) if kind.endswith("bottom_right") else i
                seen[b, 0, i, j] = ("causal" not in kind or j <= last) and (mask is None or not mask.cpu().expand(batch, 1, queries, keys)[b, 0, i, j])
    return seen


@pytest.mark.parametrize(("kind", "queries", "keys"), [
    ("no_mask", 7, 7), ("no_mask", 5, 7), ("causal", 7, 7), ("causal", 5, 7), ("causal_bottom_right", 5, 7), ("causal_bottom_right", 7, 7),
    ("padding", 7, 7), ("padding", 5, 7), ("padding_causal", 7, 7), ("padding_causal", 5, 7), ("padding_causal_bottom_right", 4, 7), ("padding_causal_bottom_right", 7, 7),
    ("arbitrary", 7, 7)])
def test_masks_of_attention(kind, queries, keys):
    mask = None
    if "padding" in kind:
        mask = torch.zeros(2, 1, 1, keys, dtype=torch.bool)
        mask[1, ..., keys - 3:] = True
    elif kind == "arbitrary":
        mask = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(5)).gt(0.7) & ~torch.eye(7, dtype=torch.bool)
    for groups, form in ((4, "sbhd"), (2, "bshd"), (1, "sbhd")):
        q, k, v = randn(2, queries, 4, 8), randn(2, keys, groups, 8, seed=2), randn(2, keys, groups, 8, seed=3)
        dot = te.DotProductAttention(4, 8, groups, qkv_format=form, attn_mask_type=kind, softmax_scale=0.3)
        inputs = (q, k, v) if form == "bshd" else (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        shaped = mask if mask is None else mask.to("hpu")
        y = dot(*inputs, shaped)
        q, k, v = (t.cpu().double().transpose(1, 2) for t in (q, k.repeat_interleave(4 // groups, 2), v.repeat_interleave(4 // groups, 2)))
        scores = (q @ k.transpose(2, 3) * 0.3).masked_fill(~visible(kind, queries, keys, mask), -torch.inf)
        expected = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close((y if form == "bshd" else y.transpose(0, 1)).cpu(), expected.float(), rtol=1e-5, atol=1e-5)
        run = [passes(lambda *t, how=how: dot(*t, shaped, checkpoint_core_attention=how), dot, *inputs) for how in (False, True)]
        same(*run)
        other = te.DotProductAttention(4, 8, groups, qkv_format=form, softmax_scale=0.3)
        assert torch.equal(other(*inputs, shaped, attn_mask_type=kind), y)


def parts(layer, part, first):
    """Weights and biases of q, k and v, one after the other, whatever way the attention has them."""
    found = {n.removeprefix(part + "."): p.detach() for n, p in layer.named_parameters() if n.startswith(part)}
    if first in found:
        return found[first], found[first.replace("weight", "bias")]
    return tuple(torch.cat([found[f"{n}_layer.{kind}"] for n in ("query", "key", "value")]) for kind in ("weight", "bias"))


@DTYPES
@pytest.mark.parametrize(("kind", "fused"), [("encoder", False), ("encoder", True), ("decoder", False)])
def test_a_layer_is_torchs(kind, fused, dtype):
    """TransformerEncoderLayer and TransformerDecoderLayer, in NVIDIA's small size, with NVIDIA's tolerances."""
    hidden, heads = 128, 8
    how = {"batch_first": False, "norm_first": True, "activation": GELU, "dropout": 0.0, "device": "hpu", "dtype": dtype}
    torchs = (torch.nn.TransformerEncoderLayer if kind == "encoder" else torch.nn.TransformerDecoderLayer)(hidden, heads, 4 * hidden, **how)
    layer = stirred(te.TransformerLayer(hidden, 4 * hidden, heads, hidden_dropout=0, attention_dropout=0, layer_type=kind, fuse_qkv_params=fused,
                                        qkv_weight_interleaved=False, params_dtype=dtype))
    own, mlp = layer.self_attention, layer.layernorm_mlp
    norm = own.layernorm_qkv if fused else own.layernorm
    values = {"norm1.weight": norm.layer_norm_weight if fused else norm.weight, "norm1.bias": norm.layer_norm_bias if fused else norm.bias}
    last = "norm2" if kind == "encoder" else "norm3"
    values |= {f"{last}.weight": mlp.layer_norm_weight, f"{last}.bias": mlp.layer_norm_bias}
    for key, part in (("linear1", "fc1"), ("linear2", "fc2")):
        values |= {f"{key}.{kind_}": getattr(mlp, f"{part}_{kind_}") for kind_ in ("weight", "bias")}
    for key, attention in (("self_attn", own), ("multihead_attn", getattr(layer, "inter_attention", None))):
        if attention is not None:
            if key == "self_attn":
                weight, bias = parts(layer, "self_attention", "layernorm_qkv.weight")
            else:
                query = attention.layernorm_query
                values |= {"norm2.weight": query.layer_norm_weight, "norm2.bias": query.layer_norm_bias}
                three = query, attention.key_layer, attention.value_layer
                weight, bias = torch.cat([m.weight for m in three]), torch.cat([m.bias for m in three])
            values |= {f"{key}.in_proj_weight": weight, f"{key}.in_proj_bias": bias, f"{key}.out_proj.weight": attention.proj.weight,
                       f"{key}.out_proj.bias": attention.proj.bias}
    torchs.load_state_dict(values)
    x, memory = randn(32, 2, hidden, dtype=dtype), randn(24, 2, hidden, seed=4, dtype=dtype)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(32, device="hpu", dtype=dtype)
    if kind == "encoder":
        found, expected = passes(layer, layer, x), passes(lambda x: torchs(x, mask), torchs, x)
    else:
        found = passes(lambda x, m: layer(x, encoder_output=m), layer, x, memory)
        expected = passes(lambda x, m: torchs(x, m, tgt_mask=mask), torchs, x, memory)
    atol = {torch.float32: 5e-3, torch.bfloat16: 1e-1}[dtype]
    inputs = [key for key in found if key in ("y", "d0", "d1")]
    assert len(inputs) == (2 if kind == "encoder" else 3)
    close({key: found[key] for key in inputs}, {key: expected[key] for key in inputs}, rtol=2e-2, atol=atol)
    torch.testing.assert_close(found["layernorm_mlp.fc1_weight"].cpu(), expected["linear1.weight"].cpu(), rtol=2e-2, atol=2 * atol)


class Plain(torch.nn.Module):
    """The same values in torch's modules: each weight in a Linear, whose name is that of its state."""

    def __init__(self, module):
        super().__init__()
        self.norms, self.keys, owned = torch.nn.ParameterDict(), {}, {id(p): name for name, p in module.named_parameters()}
        for owner, attached in te._attached.within(module):
            values = {kind: getattr(owner, attached.parameter.replace("weight", kind)) for kind in ("weight", "bias")}
            linear, place = torch.nn.Linear(*values["weight"].shape[::-1], device="hpu"), self
            linear.load_state_dict(values)
            for step in attached.name.split(".")[:-1]:
                if step not in place._modules:
                    place.add_module(step, torch.nn.Module())
                place = place._modules[step]
            place.add_module(attached.name.rpartition(".")[2], linear)
            self.keys |= {owned[id(value)]: f"{attached.name}.{kind}" for kind, value in values.items()}
        for name, p in module.named_parameters():
            if name not in self.keys:
                self.norms[name.replace(".", "_")] = torch.nn.Parameter(p.detach().clone())
                self.keys[name] = f"norms.{name.replace('.', '_')}"

    def product(self, name, x):
        return self.get_submodule(name)(x)

    def norm(self, key, x):
        weight, bias = self.norms[key + "weight"], self.norms[key + "bias"] if key + "bias" in self.norms else None
        return F.rms_norm(x, weight.shape, weight, 1e-5) if bias is None else F.layer_norm(x, weight.shape, weight, bias)


def of_norm_linear(p, x, _=None):
    return p.product("layernorm_linear", p.norm("layer_norm_", x))


def of_mlp(p, x, _=None, name="layernorm_mlp", key="layer_norm_", activation=SIGMOID):
    one, other = p.product(f"{name}.fc1", p.norm(key, x)).chunk(2, -1)
    return p.product(f"{name}.fc2", F.silu(one) * other)


def of_grouped(p, x, _=None):
    return torch.cat([p.product(f"grouped_linear.{i}", part) for i, part in enumerate(x.flatten(0, 1).split([6, 20, 6]))]).unflatten(0, x.shape[:2])


def heads_of(x, shares):
    """[length, batch, 2 groups of `shares` heads of 16] -> [batch, heads, length, 16] for each share."""
    return [t.flatten(2, 3).permute(1, 2, 0, 3) for t in x.unflatten(2, (2, sum(shares), 16)).split(shares, 3)]


def attended(p, name, q, k, v, causal):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return p.product(f"{name}.proj", y.permute(2, 0, 1, 3).flatten(2))


def of_attention(p, x, _=None):
    return attended(p, "self_attention", *heads_of(p.product("self_attention.qkv", x), (2, 1, 1)), True)


def of_encoder(p, x, _=None):
    qkv = p.product("layer.self_attention.layernorm_qkv", p.norm("self_attention_layernorm_qkv_layer_norm_", x))
    h = x + attended(p, "layer.self_attention", *heads_of(qkv, (2, 1, 1)), True)
    return h + of_mlp(p, h, name="layer.layernorm_mlp", key="layernorm_mlp_layer_norm_")


def of_decoder(p, x, memory):
    def apart(part, name, t):
        return heads_of(p.product(f"layer.{part}.{name}_layer", t), (2 if name == "query" else 1,))[0]
    norm = p.norm("self_attention_layernorm_", x)
    h = x + attended(p, "layer.self_attention", *(apart("self_attention", name, norm) for name in ("query", "key", "value")), True)
    query = p.product("layer.inter_attention.layernorm_query", p.norm("inter_attention_layernorm_query_layer_norm_", h))
    h = h + attended(p, "layer.inter_attention", heads_of(query, (2,))[0], *(apart("inter_attention", name, memory) for name in ("key", "value")), False)
    return h + of_mlp(p, h, name="layer.layernorm_mlp", key="layernorm_mlp_layer_norm_")


LAYER = {"num_gqa_groups": 2, "hidden_dropout": 0, "attention_dropout": 0, "activation": "swiglu"}
MADE = {
    "norm_linear": (lambda: te.LayerNormLinear(64, 96, normalization="RMSNorm"), of_norm_linear, 1),
    "mlp": (lambda: te.LayerNormMLP(64, 96, activation="swiglu"), of_mlp, 2),
    "grouped": (lambda: te.GroupedLinear(3, 64, 96), of_grouped, 3),
    "attention": (lambda: te.MultiheadAttention(64, 4, attention_dropout=0, num_gqa_groups=2, fuse_qkv_params=True), of_attention, 2),
    "encoder": (lambda: te.TransformerLayer(64, 96, 4, **LAYER, fuse_qkv_params=True), of_encoder, 4),
    "decoder": (lambda: te.TransformerLayer(64, 96, 4, **LAYER, layer_type="decoder"), of_decoder, 10)}


def made(name):
    torch.manual_seed(0)
    return stirred(MADE[name][0]())


def call(module, x, memory, **how):
    if isinstance(module, te.GroupedLinear):
        return module(x, [6, 20, 6], **how)
    return module(x, encoder_output=memory, **how) if getattr(module, "layer_type", "") == "decoder" else module(x, **how)


def step_of(module, forward, step, recipe, **region):
    """One step of SGD in fp8: y, the gradients of inputs and of parameters by name."""
    x, memory = randn(16, 2, 64, seed=10 + step) * (1 + step), randn(12, 2, 64, seed=20 + step)

    def inside(*inputs):
        with te.fp8_autocast(True, fp8_recipe=recipe, seed=7, **region):
            return forward(module, *inputs)
    decoder = getattr(module, "layer_type", "") == "decoder" or forward is of_decoder
    found = passes(inside, module, x, memory) if decoder else passes(lambda x: inside(x, None), module, x)
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.003 * p.grad
    return found


def states(module):
    return [json.loads(torch.ops.fp8.training_state(attached.weight(owner).tensor)) for owner, attached in te._attached.within(module)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MADE)
def test_in_fp8_it_is_converted_torch(name, recipe):
    module = made(name)
    plain, high = Plain(module), copy.deepcopy(module)
    assert len(te.convert_modules(plain).converted) == MADE[name][2] and len(plain.keys) == len(module.state_dict()) - len(extra(module))
    for step in range(3):
        found, expected = step_of(module, call, step, RECIPES[recipe]), step_of(plain, MADE[name][1], step, RECIPES[recipe])
        same(found, {key: expected[plain.keys.get(key, key)] for key in found})
    assert [s["step"] for s in states(module)] == [3] * MADE[name][2] and states(module) == states(plain)
    x, memory = randn(16, 2, 64), randn(12, 2, 64)
    assert not torch.equal(passes(lambda x: call(high, x, memory), high, x)["y"], step_of(made(name), call, 0, RECIPES[recipe])["y"])


def extra(module):
    return [key for key in module.state_dict() if key.endswith("_extra_state")]


@pytest.mark.parametrize("name", MADE)
def test_state_dicts_and_copies(name):
    """Training continues bit for bit in a copy, and in a module that loaded the state."""
    module, fresh = made(name), MADE[name][0]()
    for step in range(2):
        step_of(module, call, step, "nvidia")
    saved = {key: value.clone() for key, value in module.state_dict().items()}
    assert len(extra(module)) == len({id(owner) for owner, _ in te._attached.within(module)})
    assert {key: value.shape for key, value in fresh.state_dict().items()} == {key: value.shape for key, value in saved.items()}
    assert fresh.load_state_dict(saved).missing_keys == []
    other = copy.deepcopy(module)
    copied, expected = step_of(other, call, 2, "nvidia"), step_of(module, call, 2, "nvidia")
    same(copied, expected)
    same(step_of(fresh, call, 2, "nvidia"), expected)
    assert [s["step"] for s in states(fresh)] == [3] * MADE[name][2] and [s["forward"] for s in states(fresh)] == [s["forward"] for s in states(module)]
    bad = {**saved, extra(module)[0]: torch.frombuffer(bytearray(b'{"fc1_weight": 1}'), dtype=torch.uint8)}
    with pytest.raises(RuntimeError, match="_extra_state: "):
        module.load_state_dict(bad)


def test_names_are_the_fields():
    norm, linear = ["layer_norm_weight", "layer_norm_bias"], ["weight", "bias", "_extra_state"]
    mlp = [*norm, "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias", "_extra_state"]
    assert [sorted(made(name).state_dict()) for name in ("mlp", "norm_linear")] == [sorted(mlp), sorted([norm[0], *linear])]
    assert list(made("grouped").state_dict()) == [f"{kind}{i}" for i in range(3) for kind in ("weight", "bias")] + ["_extra_state"]
    encoder = [*(f"self_attention.layernorm_qkv.{n}" for n in (*norm, *linear)), *(f"self_attention.proj.{n}" for n in linear),
               *(f"layernorm_mlp.{n}" for n in mlp)]
    assert sorted(made("encoder").state_dict()) == sorted(encoder)
    found = {key.rpartition(".")[0] for key in made("decoder").state_dict()}
    assert found == {"layernorm_mlp", *(f"self_attention.{n}" for n in ("layernorm", "query_layer", "key_layer", "value_layer", "proj")),
                     *(f"inter_attention.{n}" for n in ("layernorm_query", "key_layer", "value_layer", "proj"))}
    cross = te.MultiheadAttention(64, 4, attention_type="cross", fuse_qkv_params=True, bias=False)
    assert [n for n, _ in cross.named_parameters()] == ["query_layer.weight", "key_value.weight", "proj.weight"]
    assert cross(randn(5, 2, 64), encoder_output=randn(7, 2, 64), attn_mask_type="no_mask").shape == (5, 2, 64)


def test_shares_of_one_weight():
    """Of a fused weight: interleaved or not, and beside separate ones, the same heads."""
    x, rows = randn(6, 2, 64), torch.arange(128, device="hpu").view(8, 16)  # of heads: [q q k v] of each of two groups
    order = {True: rows, False: rows[[0, 1, 4, 5, 2, 6, 3, 7]]}
    how = {"num_gqa_groups": 2, "attention_dropout": 0, "input_layernorm": True, "return_layernorm_output": True, "return_bias": True}
    base = stirred(te.MultiheadAttention(64, 4, **how, fuse_qkv_params=True))
    other = te.MultiheadAttention(64, 4, **how, fuse_qkv_params=True, qkv_weight_interleaved=False)
    apart, state = te.MultiheadAttention(64, 4, **how), base.state_dict()
    flat = order[False].flatten()
    other.load_state_dict({**state, **{f"layernorm_qkv.{n}": state[f"layernorm_qkv.{n}"][flat] for n in ("weight", "bias")}})
    shares = {"query_layer": flat[:64], "key_layer": flat[64:96], "value_layer": flat[96:]}
    apart.load_state_dict({**{f"{part}.{n}": state[f"layernorm_qkv.{n}"][at] for part, at in shares.items() for n in ("weight", "bias")},
                           **{f"layernorm.{n}": state[f"layernorm_qkv.layer_norm_{n}"] for n in ("weight", "bias")},
                           **{key: value for key, value in state.items() if key.startswith("proj")}}, strict=False)
    expected = base(x)
    assert expected[1] is base.proj.bias and torch.equal(expected[2], apart.layernorm(x)) and len(expected) == 3
    for module in (other, apart):
        torch.testing.assert_close(module(x)[0].cpu(), expected[0].cpu())


@pytest.mark.parametrize("form", ["sbhd", "bshd"])
def test_rotary_embedding_turns_pairs(form):
    """As complex numbers: element i and i + 3 of a head by position * base^(-2 i / 6)."""
    angles, x = te.rotary_position_embedding(6, 9, 100.0), randn(5, 2, 8)
    layer = te.MultiheadAttention(8, 1, attention_dropout=0, bias=False, qkv_format=form, init_method=torch.nn.init.eye_,
                                  output_layer_init_method=torch.nn.init.eye_)
    turned = x.cpu().double().transpose(0, 1)
    pairs = torch.complex(turned[..., :3], turned[..., 3:6]) * torch.polar(torch.ones(5, 3), torch.arange(5.)[:, None] * 100 ** (-torch.arange(3) / 3))
    turned = torch.cat([pairs.real, pairs.imag, turned[..., 6:]], -1)
    scores = (turned @ turned.transpose(1, 2) / 8 ** 0.5).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    y = layer(x if form == "sbhd" else x.transpose(0, 1), rotary_pos_emb=angles)
    found = (y.transpose(0, 1) if form == "sbhd" else y).cpu()
    torch.testing.assert_close(found, (torch.softmax(scores, -1) @ x.cpu().double().transpose(0, 1)).float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"rotary_pos_emb: found sizes \[4, 1, 1, 6\] of dtype Float, allowed: \[5 or more, 1, 1, an even number up to 8\]"):
        layer(x if form == "sbhd" else x.transpose(0, 1), rotary_pos_emb=angles[:4])


@pytest.mark.parametrize("recipe", ["habana-hybrid", "nvidia", "mxfp8"])
def test_recomputation_and_kept_weights_change_no_bit(recipe):
    """Dropout in attention and behind it too: checkpoints of parts and of the whole find the first run's scales and random numbers."""
    how = {**LAYER, "hidden_dropout": 0.2, "attention_dropout": 0.2, "fuse_qkv_params": True}

    def three(module, run=None, **forward):
        torch.manual_seed(4)
        return [step_of(module, lambda m, x, _: (run or (lambda f, x: f(x)))(lambda x: m(x, **forward), x), step, RECIPES[recipe]) for step in range(3)]
    plain = stirred(te.TransformerLayer(64, 96, 4, **how))
    start = {key: value.clone() for key, value in plain.state_dict().items()}
    expected = three(plain)
    for checkpoint_mlp, run, forward in ((True, None, {}), (False, None, {"checkpoint_core_attention": True}), (False, te.checkpoint, {}),
                                         (False, None, {"is_first_microbatch": True})):
        module = te.TransformerLayer(64, 96, 4, **how, checkpoint_mlp=checkpoint_mlp)
        module.load_state_dict(start)
        for found, wanted in zip(three(module, run, **forward), expected):
            same(found, wanted)
    x = randn(8, 2, 64)
    plain.eval()
    with te.fp8_autocast(True, fp8_recipe=RECIPES[recipe]):
        kept = [plain(x, is_first_microbatch=first) for first in (None, True, False)]
        plain.layernorm_mlp.fc1_weight.data.mul_(2)
        kept += [plain(x, is_first_microbatch=first) for first in (False, True)]
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2]) and torch.equal(kept[0], kept[3]) and not torch.equal(kept[0], kept[4])
    assert [s["step"] for s in states(plain)] == [3] * 4, "in eval() no amax is recorded"


def test_the_vendors_numbers():
    """Inputs of .47 and weights of 3.26, as Habana's test of products has them; then an input of 109000, which the first step saturates."""
    for recipe, (one, other), far in (("habana", (0.5, 3.5), 114688), ("habana-hybrid", (0.46875, 3.25), 106496)):
        for value, expected in ((0.47, one), (109000.0, far)):
            module = te.GroupedLinear(2, 16, 16, bias=False, init_method=lambda w: w.fill_(3.26))
            x, found = torch.full((8, 16), value, device="hpu"), []
            for _ in range(2):
                with te.fp8_autocast(True, fp8_recipe=RECIPES[recipe]):
                    found.append(module(x, [3, 5]))
                found[-1].sum().backward()
            wanted = torch.full((8, 16), 16 * expected * other, device="hpu")
            assert torch.equal(found[1], wanted) and torch.equal(found[0], wanted) is (value < 1)


@pytest.mark.parametrize(("hidden", "heads", "rows"), [(128, 8, 128), (768, 12, 32)])
def test_nvidias_sizes_are_near_high_precision(hidden, heads, rows):
    how = {"hidden_dropout": 0, "attention_dropout": 0, "fuse_qkv_params": True, "params_dtype": torch.bfloat16}
    first = te.TransformerLayer(hidden, 4 * hidden, heads, **how)
    x = randn(rows, 1, hidden, dtype=torch.bfloat16)
    high = passes(first, first, x)
    for recipe in ("nvidia", "current", "mxfp8"):
        layer = te.TransformerLayer(hidden, 4 * hidden, heads, **how)
        layer.load_state_dict(first.state_dict())

        def inside(x, layer=layer, recipe=recipe):
            with te.fp8_autocast(True, fp8_recipe=recipe):
                return layer(x)
        passes(inside, layer, x)
        low = passes(inside, layer, x)
        for name, (rtol, atol) in {"y": (0.125, 0.0675), "d0": (0.25, 0.125)}.items():  # E4M3's, E5M2's
            error, limit = (low[name] - high[name]).abs().float(), rtol * high[name].abs() + atol * high[name].abs().max()
            assert low[name].dtype == torch.bfloat16 and 0 < float(error.norm() / high[name].norm()) < rtol and (error < limit).all()


def test_converting_and_restoring():
    model = torch.nn.Sequential(made("mlp"), torch.nn.Linear(64, 64).to("hpu"), made("grouped"))
    report = te.convert_modules(model)
    assert [m.name for m in report.converted] == ["1"] and {m.name for m in report.kept} == {"0.fc1_weight", "0.fc2_weight", *(f"2.weight{i}" for i in range(3))}
    assert {m.reason for m in report.kept} == {"a module of fp8.te runs in fp8 by itself"}
    x = randn(16, 2, 64)
    high = model[2](model[:2](x), [6, 20, 6])
    with te.fp8_autocast(True):
        low = model[2](model[:2](x), [6, 20, 6])
    te.restore(model)
    with in_fp8():
        assert torch.equal(model[2](model[:2](x), [6, 20, 6]), high) and not torch.equal(low, high) and extra(model) == []


@pytest.mark.parametrize("how", ["parallel_attention_mlp", "apply_residual_connection_post_layernorm", "output_layernorm"])
def test_sums_of_a_layer(how):
    torch.manual_seed(0)
    layer, x = stirred(te.TransformerLayer(64, 96, 4, **LAYER, fuse_qkv_params=True, **{how: True})), randn(16, 2, 64)
    p, post = Plain(layer), how == "apply_residual_connection_post_layernorm"

    def mlp(t):
        return of_mlp(p, t, name="layer.layernorm_mlp", key="layernorm_mlp_layer_norm_")
    if how == "output_layernorm":
        h = x + attended(p, "layer.self_attention", *heads_of(p.product("layer.self_attention.qkv", x), (2, 1, 1)), True)
        expected = p.norm("layernorm_", h + mlp(h))
    else:
        norm = p.norm("self_attention_layernorm_qkv_layer_norm_", x)
        y = attended(p, "layer.self_attention", *heads_of(p.product("layer.self_attention.layernorm_qkv", norm), (2, 1, 1)), True)
        h = (norm if post else x) + y
        expected = (p.norm("layernorm_mlp_layer_norm_", h) + mlp(h)) if post else x + (y + mlp(x))
    assert torch.equal(layer(x), expected)


def test_compiled_it_has_the_same_bits():
    module, alone = made("mlp"), made("mlp")
    compiled = torch.compile(module, backend="eager")
    for step in range(3):
        same(step_of(module, lambda _, x, __: compiled(x), step, "nvidia"), step_of(alone, call, step, "nvidia"))
    assert states(module) == states(alone)


ONE = {"te.LayerNorm": (te.LayerNorm, (8,)), "te.RMSNorm": (te.RMSNorm, (8,)), "te.LayerNormLinear": (te.LayerNormLinear, (8, 8)),
       "te.LayerNormMLP": (te.LayerNormMLP, (8, 8)), "te.GroupedLinear": (te.GroupedLinear, (2, 8, 8)),
       "te.DotProductAttention": (te.DotProductAttention, (2, 4)), "te.MultiheadAttention": (te.MultiheadAttention, (8, 2)),
       "te.TransformerLayer": (te.TransformerLayer, (8, 8, 2)), "te.Linear": (te.Linear, (8, 8))}


@pytest.mark.parametrize("where", ONE)
def test_arguments_that_ask_for_nothing(where):
    make, sizes = ONE[where]
    group = type("Group", (), {"size": lambda self: 1})()
    make(*sizes, tp_group=group, tp_size=1, sequence_parallel=False, ub_name="qkv", layer_number=3, fuse_wgrad_accumulation=False)
    for key, value in {"sequence_parallel": True, "tp_size": 2, "tp_group": type("Group", (), {"size": lambda self: 2})(), "cp_group": 1,
                       "fuse_wgrad_accumulation": True, "ub_overlap_ag": True, "delay_wgrad_compute": True, "fp8_mha": True}.items():
        with pytest.raises(ValueError, match=f"^{where}: {key}: found .*, allowed: "):
            make(*sizes, **{key: value})
    with pytest.raises(TypeError, match=f"^{where}: found an unexpected argument 'hiden'"):
        make(*sizes, hiden=1)


X = torch.zeros(5, 2, 8)
MASK = torch.zeros(2, 1, 1, 5, dtype=torch.bool)


@pytest.mark.parametrize(("call_it", "said"), [
    (lambda: te.LayerNorm(0), "te.LayerNorm: normalized_shape: found 0, allowed: 1 to"),
    (lambda: te.RMSNorm(8, -1.0), "te.RMSNorm: eps: found -1.0, allowed: finite numbers >= 0"),
    (lambda: te.LayerNorm(8, params_dtype=torch.float64), "te.LayerNorm: params_dtype: found torch.float64, allowed: torch.float32, "),
    (lambda: te.LayerNorm(8, device="cpu")(X[..., :7]), r"te.LayerNorm: input: found sizes \[5, 2, 7\], allowed: \[..., 8\]"),
    (lambda: te.LayerNormLinear(8, 8, normalization="none"), "te.LayerNormLinear: normalization: found 'none', allowed: 'LayerNorm', 'RMSNorm'"),
    (lambda: te.LayerNormLinear(8, 8, parameters_split=("q", "k")), "te.LayerNormLinear: parameters_split: found .*, allowed: None"),
    (lambda: te.LayerNormLinear(8, 8, device="cpu")(X, fp8_output=True), "te.LayerNormLinear: fp8_output: found True, allowed: False"),
    (lambda: te.LayerNormMLP(8, 8, activation="tanh"), "te.LayerNormMLP: activation: found 'tanh', allowed: 'gelu', .*'swiglu'"),
    (lambda: te.LayerNormMLP(8, 0), "te.LayerNormMLP: ffn_hidden_size: found 0"),
    (lambda: te.GroupedLinear(0, 8, 8), "te.GroupedLinear: num_gemms: found 0"),
    (lambda: te.GroupedLinear(2, 8, 8, device="cpu")(X, [4, 5]), r"m_splits: found \[4, 5\], allowed: 2 numbers >= 0 with a sum of 10"),
    (lambda: te.GroupedLinear(2, 8, 8, device="cpu")(X, [-1, 11]), r"te.GroupedLinear: m_splits: found \[-1, 11\]"),
    (lambda: te.GroupedLinear(2, 8, 8, device="cpu")(X, [10]), r"te.GroupedLinear: m_splits: found \[10\]"),
    (lambda: te.DotProductAttention(4, 8, 3), "num_gqa_groups: found 3, allowed: divisors of num_attention_heads = 4"),
    (lambda: te.DotProductAttention(4, 8, qkv_format="hbsd"), 'qkv_format: found "hbsd", allowed: "sbhd", "bshd", "thd"'),
    (lambda: te.DotProductAttention(4, 8, qkv_format="thd"), r'attn_mask_type: found "causal", allowed with "thd": "padding", "padding_causal"'),
    (lambda: te.DotProductAttention(4, 8, qkv_format="thd", attn_mask_type="padding", fp8_dpa=True), 'fp8_dpa: found true, allowed with "thd": false'),
    (lambda: te.DotProductAttention(2, 4, qkv_format="thd", attn_mask_type="padding")(*[X.view(10, 2, 4)] * 3), "cu_seqlens_q: found none, allowed"),
    (lambda: te.DotProductAttention(4, 8, attn_mask_type="triangle"), 'attn_mask_type: found "triangle", allowed: "no_mask", "causal"'),
    (lambda: te.DotProductAttention(4, 8, attention_dropout=1.5), "attention_dropout: found 1.5, allowed: 0 to 1"),
    (lambda: te.DotProductAttention(4, 8, window_size=(2, -2)), r"window_size: found \(2, -2\), allowed: integers >= -1"),
    (lambda: te.DotProductAttention(2, 4)(*[X.view(5, 2, 2, 4)] * 3, MASK), 'attention_mask: found one, allowed with attn_mask_type "causal": none'),
    (lambda: te.DotProductAttention(2, 4)(*[X.view(5, 2, 2, 4)] * 3, cu_seqlens_q=torch.tensor([0, 5])), 'cu_seqlens_q: found one, .* "causal": none'),
    (lambda: te.DotProductAttention(2, 4, attn_mask_type="padding")(*[X.view(5, 2, 2, 4)] * 3), "attention_mask: found none, allowed with .*: a mask"),
    (lambda: te.DotProductAttention(2, 4, attn_mask_type="padding")(*[X.view(5, 2, 2, 4)] * 3, MASK.float()), "of dtype Float, allowed"),
    (lambda: te.DotProductAttention(2, 4)(X.view(5, 2, 2, 4), X.view(5, 2, 4, 2), X), r"key: found sizes \[5, 2, 4, 2\], allowed: "),
    (lambda: te.DotProductAttention(2, 4)(*[X.view(5, 2, 2, 4)] * 3, core_attention_bias=X), r"core_attention_bias: found a tensor of sizes \[5, 2, 8\], allowed: None"),
    (lambda: te.FusedAttention(attention_dropout=2.0), "te.FusedAttention: attention_dropout: found 2.0"),
    (lambda: te.FusedAttention()(X, X, X, softmax_mode="slow"), 'softmax_mode: found "slow", allowed: "none", "fast"'),
    (lambda: te.MultiheadAttention(8, 3), "te.MultiheadAttention: num_attention_heads: found 3, allowed: divisors of hidden_size = 8"),
    (lambda: te.MultiheadAttention(8, 2, return_layernorm_output=True), "return_layernorm_output: found True, allowed: False without input_layernorm"),
    (lambda: te.MultiheadAttention(8, 2, attention_type="own"), "attention_type: found 'own', allowed: 'self', 'cross'"),
    (lambda: te.MultiheadAttention(8, 2, device="cpu")(X, encoder_output=X), "encoder_output: found one, allowed: None with attention_type 'self'"),
    (lambda: te.MultiheadAttention(8, 2, attention_type="cross")(X), "encoder_output: found None, allowed: one with attention_type 'cross'"),
    (lambda: te.TransformerLayer(8, 8, 2, layer_type="both"), "te.TransformerLayer: layer_type: found 'both', allowed: 'encoder', 'decoder'"),
    (lambda: te.TransformerLayer(8, 8, 2, hidden_dropout=2), "te.TransformerLayer: hidden_dropout: found 2, allowed: 0 to 1"),
    (lambda: te.TransformerLayer(8, 8, 2, parallel_attention_mlp=True, output_layernorm=True), "parallel_attention_mlp: found True, allowed: False"),
    (lambda: te.TransformerLayer(8, 8, 2, drop_path_rate=0.1), "te.TransformerLayer: drop_path_rate: found 0.1, allowed: 0"),
    (lambda: te.TransformerLayer(8, 8, 2, device="cpu")(X, encoder_output=X), "encoder_output: found one, allowed: None with layer_type 'encoder'"),
    (lambda: te.TransformerLayer(8, 8, 2, device="cpu")(X, enc_dec_attn_mask=MASK), "enc_dec_attn_mask: found one, allowed: None"),
    (lambda: te.rotary_position_embedding(7, 4), "rotary_position_embedding: dim: found 7, allowed: even numbers >= 2"),
])
def test_bad_values_are_named(call_it, said):
    with pytest.raises(ValueError, match=said):
        call_it()
