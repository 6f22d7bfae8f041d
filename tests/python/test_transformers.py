# SPDX-License-Identifier: Apache-2.0
"""Models of transformers: what they hold that is no Linear, and checkpoints between this device and others."""

import json
import os
import pathlib
import subprocess
import sys
import warnings

import pytest
import torch
import transformers
from conftest import DEMO
from safetensors import safe_open
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

import fp8

DYNAMIC = {"mode": "QUANTIZE", "scale_method": "act_maxabs_pow2_weights_pcs_maxabs_pow2", "dynamic_quantization": True}
UNIT = {"mode": "QUANTIZE", "scale_method": "unit_scale"}
IDS = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(3))
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def made(kind, **more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("hpu").eval()


def mixtral(keys=DYNAMIC):
    return fp8.quant.convert(made("mixtral", num_local_experts=4, num_experts_per_tok=2, head_dim=16), keys)


def logits(model):
    with torch.no_grad():
        return model(IDS.to("hpu")).logits


def tensors(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as reader:
            found |= {name: reader.get_tensor(name) for name in reader.keys()}
    return found


def quantization(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.fixture(scope="module")
def demo():
    """The demo model, measured and converted with static scales."""
    import tempfile
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "kjv-byte-1.7M", dtype=torch.bfloat16).to("hpu").eval()
    ids = transformers.AutoTokenizer.from_pretrained(DEMO / "kjv-byte-1.7M")((DEMO / "kjv_calib.txt").read_text(), return_tensors="pt").input_ids[0]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        fp8.quant.prepare(model, fp8.quant.FP8Config(scale_method="maxabs_pow2", dump_stats_path=folder + "/inc", blocklist={"names": ["lm_head"]}))
        model(ids[:2048].view(8, 256).to("hpu"))
        return fp8.quant.convert(model)


@pytest.mark.parametrize("static", [True, False])
def test_transposed_weights_are_those_of_a_linear(static, tmp_path):
    """transformers' Conv1D: bits, measurement and scales of a Linear with the same values."""
    torch.manual_seed(0)
    conv, linear, x = Conv1D(96, 64), torch.nn.Linear(64, 96), torch.randn(9, 64).to("hpu")
    with torch.no_grad():
        linear.weight.copy_(conv.weight.t())
        linear.bias.copy_(conv.bias.normal_())
        answers, weights = [], []
        for name, layer in (("conv", conv), ("linear", linear)):
            model = torch.nn.Sequential(layer).to("hpu")
            keys = DYNAMIC
            if static:
                keys = None
                fp8.quant.prepare(model, fp8.quant.FP8Config(scale_method="maxabs_pow2", dump_stats_path=str(tmp_path / name / "inc")))
                model(x)
            fp8.quant.convert(model, keys)
            answers.append(model(x))
            weights.append(layer.weight)
    assert torch.equal(*answers) and weights[0].shape == (64, 96) and weights[0].transposed and not weights[1].transposed
    assert torch.equal(weights[0].dequantize(), weights[1].dequantize().t()) and torch.equal(weights[0].scale_inv, weights[1].scale_inv)
    if static:
        files = [sorted((tmp_path / name).iterdir()) for name in ("conv", "linear")]
        assert files[0] and [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_doors_of_a_transposed_weight():
    import copy
    import pickle
    torch.manual_seed(0)
    layer, other, x = Conv1D(64, 64).to("hpu"), Conv1D(64, 64).to("hpu"), torch.randn(3, 64).to("hpu")
    for each in (layer, other):
        fp8.quant.convert(torch.nn.Sequential(each), DYNAMIC)
    with torch.no_grad():
        want = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), want) and torch.equal(pickle.loads(pickle.dumps(layer))(x), want)
        state = layer.state_dict()
        codes = state["weight"].cpu().view(torch.uint8).clone().view(torch.float8_e4m3fn)
        assert torch.equal(codes.float() * state["weight_scale"].cpu(), layer.weight.dequantize().cpu())
        assert not torch.equal(other(x), want)
        third = copy.deepcopy(other)
        other.load_state_dict(state, assign=True)
        third.load_state_dict(state)
        assert torch.equal(other(x), want) and torch.equal(third(x), want) and third.weight.transposed
        third.load_state_dict({name: tensor.cpu() for name, tensor in state.items()})
        assert torch.equal(third(x), want)
        with pytest.raises(RuntimeError, match="weight"):
            layer.weight.contiguous()


def test_experts_are_written_one_by_one(tmp_path):
    model = mixtral()
    model.save_pretrained(tmp_path)
    found, experts = tensors(tmp_path), model.model.layers[1].mlp.experts
    for e in range(4):
        gate, up = experts.gate_up_proj.dequantize()[e].cpu().chunk(2)
        for name, want in (("w1", gate), ("w3", up), ("w2", experts.down_proj.dequantize()[e].cpu())):
            key = f"model.layers.1.block_sparse_moe.experts.{e}.{name}.weight"
            assert found[key].dtype == torch.float8_e4m3fn and found[key + "_scale"].shape == (want.shape[0], 1)
            assert torch.equal((found[key].float() * found[key + "_scale"]).to(want.dtype), want)
    assert not any("gate_up_proj" in name for name in found)


@pytest.mark.parametrize("make", [mixtral, lambda: fp8.quant.convert(made("qwen3", tie_word_embeddings=True, head_dim=16), DYNAMIC),
                                  lambda: mixtral({**DYNAMIC, "blocklist": {"types": ["MoeMatmul"], "names": []}})],
                         ids=["experts", "tied", "experts in high precision"])
def test_a_folder_gives_the_model_on_hpu(make, tmp_path):
    """Bits, names, scales: from_pretrained(), load() and save() of what either wrote."""
    model = make()
    model.save_pretrained(tmp_path / "a")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", device_map="hpu", dtype=torch.bfloat16)
    assert torch.equal(logits(again), logits(model)) and torch.equal(logits(fp8.quant.load(tmp_path / "a", dtype=torch.bfloat16)), logits(model))
    weights = {name: p for name, p in model.named_parameters() if isinstance(p, fp8.Fp8Parameter)}
    assert weights and {name for name, p in again.named_parameters() if isinstance(p, fp8.Fp8Parameter)} == set(weights)
    again.save_pretrained(tmp_path / "b")
    fp8.quant.save(model, tmp_path / "c")
    one, two, three = (tensors(tmp_path / name) for name in "abc")
    assert set(one) == set(two) == set(three)
    for name, tensor in one.items():
        for other in (two[name], three[name]):
            assert tensor.dtype == other.dtype and torch.equal(tensor.float(), other.float()), name
    assert quantization(tmp_path / "a") == quantization(tmp_path / "b")


@pytest.mark.parametrize("form", ["fp8", "modelopt", "huggingface", "vllm", "default"])
def test_forms_are_loaded(demo, form, tmp_path):
    """What save() writes in any form is the model again; load() needs no quantizer of transformers."""
    fp8.quant.save(demo, tmp_path, format=form)
    again = fp8.quant.load(tmp_path, dtype=torch.bfloat16)
    name = "model.layers.3.mlp.down_proj.weight"
    assert torch.equal(again.get_parameter(name).dequantize(), demo.get_parameter(name).dequantize())
    assert torch.equal(logits(again), logits(demo)) and len(fp8.quant.report(again).converted) == len(fp8.quant.report(demo).converted)
    with pytest.raises(ValueError, match="converted already"):
        fp8.quant.convert(again, UNIT)


def test_dynamic_scales_come_back(tmp_path):
    """Those of activations, which INC's method makes at each call: no form has a key for it."""
    model, source = made("qwen3", head_dim=16), tmp_path / "source"
    model.save_pretrained(source)
    fp8.quant.convert(model, {**DYNAMIC, "scale_method": "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "blocklist": {"types": [], "names": ["lm_head"]}})
    name = "model.layers.0.self_attn.q_proj.weight"
    assert model.get_parameter(name).scheme["activation_method"]["rounding_method"] == "POW2"
    saves = {"pretrained": model.save_pretrained}
    saves |= {form: lambda folder, form=form: fp8.quant.save(model, folder, form, source) for form in ("fp8", "modelopt", "huggingface", "vllm", "default")}
    for form, save in saves.items():
        try:
            save(tmp_path / form)
        except RuntimeError as told:  # a form that holds no such scales
            assert form in ("modelopt", "huggingface", "vllm") and "layers.0" in str(told), (form, told)
            continue
        again = fp8.quant.load(tmp_path / form, dtype=torch.bfloat16)
        assert again.get_parameter(name).scheme == model.get_parameter(name).scheme, form
        assert torch.equal(logits(again), logits(model)), form


def test_static_scales_come_back(demo, tmp_path):
    demo.save_pretrained(tmp_path / "a")
    fp8.quant.save(demo, tmp_path / "b")
    assert quantization(tmp_path / "a") == quantization(tmp_path / "b")
    for folder in "ab":
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder, device_map="hpu", dtype=torch.bfloat16)
        assert torch.equal(logits(again), logits(demo))
        name = "model.layers.0.self_attn.q_proj.weight"
        assert again.get_parameter(name).scheme == demo.get_parameter(name).scheme


ELSEWHERE = """
import sys, torch, transformers
assert not hasattr(torch, "hpu")
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
ids = torch.load(sys.argv[2])
with torch.no_grad():
    print("LOSS", torch.stack([model(row[None], labels=row[None]).loss for row in ids]).mean().item())
"""


def test_likelihood_elsewhere(demo, tmp_path):
    """The demo model of a folder, in a process without this package: within 0.3 % of the converted model's own."""
    ids = transformers.AutoTokenizer.from_pretrained(DEMO / "kjv-byte-1.7M")((DEMO / "kjv_heldout_16k.txt").read_text(), return_tensors="pt").input_ids
    ids = ids[0, :2048].view(8, 256)
    with torch.no_grad():
        own = torch.stack([demo(row[None].to("hpu"), labels=row[None].to("hpu")).loss for row in ids]).mean().item()
    demo.save_pretrained(tmp_path)
    torch.save(ids, tmp_path / "ids.pt")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path), str(tmp_path / "ids.pt")], env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = float(done.stdout.split("LOSS ")[1])
    assert abs(theirs / own - 1) <= 3e-3 and 1.0 < own < 1.1


def test_the_cpu_is_transformers_own(demo, tmp_path):
    demo.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert isinstance(model.hf_quantizer, CompressedTensorsHfQuantizer) and not any(isinstance(p, fp8.Fp8Parameter) for p in model.parameters())


def test_loaded_on_the_cpu_and_moved(demo, tmp_path):
    """transformers makes values of the codes, with a warning on hpu and with none on the CPU."""
    demo.save_pretrained(tmp_path)
    for device, said in (("cpu", []), ("hpu", ["LlamaForCausalLM: loaded on another device"])):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).to(device)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            model(IDS.to(device))
            model(IDS.to(device))
        assert [str(w.message).split(",")[0] for w in caught if "fp8" in str(w.message)] == said
    assert "device_map=" in str(caught[0].message)


def test_saved_from_no_folder(tmp_path):
    """Its own config lies beside the codes: transformers loads it."""
    model = mixtral(UNIT)
    fp8.quant.save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["MixtralForCausalLM"] and config["dtype"] == "bfloat16" and (tmp_path / "saved" / "generation_config.json").exists()
    assert torch.equal(logits(fp8.quant.load(tmp_path / "saved")), logits(model))


def test_push_to_hub_is_save_pretrained(demo, tmp_path, monkeypatch):
    """What it would send is the folder that save_pretrained() writes."""
    sent = {}
    demo.save_pretrained(tmp_path)

    class Hub:
        def create_repo(self, repo_id, **_):
            return type("Url", (), {"repo_id": repo_id})

        def create_branch(self, *_, **__):
            return None

    def upload(self, working_dir, *_, **__):
        folder = pathlib.Path(working_dir)
        sent.update(tensors(folder) | {"config.json": (folder / "config.json").read_text()})

    import transformers.utils.hub as hub
    monkeypatch.setattr(hub, "hf_api", lambda *_, **__: Hub(), raising=False)
    monkeypatch.setattr(type(demo), "_upload_modified_files", upload)
    demo.push_to_hub("me/kjv")
    assert sent.pop("config.json") == (tmp_path / "config.json").read_text()
    found = tensors(tmp_path)
    assert set(found) == set(sent) and all(torch.equal(found[name].float(), sent[name].float()) for name in found)
    assert "model.layers.0.self_attn.q_proj.weight_scale" in sent


def test_tied_heads_stay():
    model = fp8.quant.convert(made("qwen3", tie_word_embeddings=True, head_dim=16), DYNAMIC)
    kept = {m.name: m.reason for m in fp8.quant.report(model).kept}
    assert kept["lm_head"] == "it shares its weight with model.embed_tokens, which reads values" and "model.embed_tokens" in kept
    both = fp8.quant.convert(made("qwen3", tie_word_embeddings=True, head_dim=16), {**DYNAMIC, "allowlist": {"types": ["Embedding", "Linear"], "names": []}})
    assert {"lm_head", "model.embed_tokens"} <= {m.name for m in fp8.quant.report(both).converted}


class Lora(torch.nn.Module):
    """Built as peft's layers are: its weight is the base layer's."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(64, 8, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(8, 32, bias=False)})

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


Lora.__name__ = "Linear"  # peft's


def test_lora_converts_its_base_layer():
    torch.manual_seed(0)
    base = torch.nn.Linear(64, 32)
    model, plain = torch.nn.Sequential(Lora(base)).to("hpu"), torch.nn.Sequential(torch.nn.Linear(64, 32)).to("hpu")
    plain[0].load_state_dict(base.state_dict())
    x = torch.randn(4, 64).to("hpu")
    fp8.quant.convert(model, DYNAMIC)
    fp8.quant.convert(plain, DYNAMIC)
    report = fp8.quant.report(model)
    assert [m.name for m in report.converted] == ["0.base_layer"]
    assert {m.name: m.reason for m in report.kept} == {f"0.lora_{x}.default": "an adapter stays in high precision" for x in "AB"}
    with torch.no_grad():
        adapter = model[0].lora_B["default"](model[0].lora_A["default"](x))
        assert torch.equal(model(x), plain(x) + adapter)


def test_routers_are_registered_by_class():
    model = mixtral()
    name = "model.layers.0.mlp.gate"
    assert "fp8.quant.register(MixtralTopKRouter)" in {m.name: m.reason for m in fp8.quant.report(model).kept}[name]
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

    from fp8 import _modules
    fp8.quant.register(MixtralTopKRouter)
    try:
        assert name in {m.name for m in fp8.quant.report(mixtral()).converted}
    finally:
        del _modules._registered[MixtralTopKRouter]


def test_experts_generate():
    """The tokens of its own steps with a cache."""
    model = mixtral()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        tokens = model.generate(IDS.to("hpu"), max_new_tokens=4, do_sample=False)
        step, cache = IDS.to("hpu"), None
        for i in range(12, 16):
            out = model(step, past_key_values=cache, use_cache=True)
            step, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            assert torch.equal(step[:, 0], tokens[:, i])


@pytest.mark.parametrize("make, said", [
    (lambda: mixtral({**DYNAMIC, "blocklist": {"types": [], "names": ["layers.0.mlp.experts.down_proj"]}}), None),
    (lambda: mixtral({**UNIT, "blocklist": {"types": [], "names": []}}), None),
    (lambda: fp8.quant.convert(made("gpt2"), DYNAMIC), r"h\.0\.attn\.c_attn.*\[inputs, outputs\]"),
    (lambda: fp8.quant.convert(made("qwen3", tie_word_embeddings=True, head_dim=16),
                               {**DYNAMIC, "allowlist": {"types": ["Embedding", "Linear"], "names": []}}), "embed_tokens"),
], ids=["one of the experts' weights", "tensor scales", "Conv1D", "an embedding"])
def test_saved_or_refused_by_name(make, said, tmp_path):
    """A refusal writes no tensor; what is written comes back with the same bits."""
    model = make()
    if said is not None:
        with pytest.raises(RuntimeError, match=said):
            model.save_pretrained(tmp_path)
        assert not tensors(tmp_path)
        return
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="hpu", dtype=torch.bfloat16)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=0)


def test_a_folder_with_other_tensors_is_refused(tmp_path):
    from safetensors.torch import save_file
    mixtral().save_pretrained(tmp_path)
    found = tensors(tmp_path)
    found["model.layers.9.self_attn.q_proj.weight"] = found["model.layers.0.self_attn.q_proj.weight"].clone()
    save_file(found, tmp_path / "model.safetensors", {"format": "pt"})
    for load in (lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="hpu"), lambda: fp8.quant.load(tmp_path)):
        with pytest.raises(RuntimeError, match=r"layers\.9\.self_attn\.q_proj"):
            load()
    del found["model.layers.9.self_attn.q_proj.weight"], found["model.norm.weight"]
    save_file(found, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight"):
        fp8.quant.load(tmp_path)
