# SPDX-License-Identifier: Apache-2.0
"""Attention and caches in fp8 under the program's names: its measurement byte for byte, its likelihood, and half the memory."""

import copy
import json
import math
import os
import pathlib
import subprocess

import pytest
import torch
import transformers
from conftest import BUILD, DEMO

import fp8

MODEL = DEMO / "kjv-byte-1.7M"
KEYS = {"scale_method": "maxabs_pow2", "blocklist": {"names": ["lm_head"], "types": []}}


def tokens(file, count, length):
    ids = transformers.AutoTokenizer.from_pretrained(MODEL)((DEMO / file).read_text(), return_tensors="pt").input_ids[0]
    return ids[:count * length].view(count, 1, length).to("hpu")


def load():
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).to("hpu").eval()


def program(*arguments, **environment):
    done = subprocess.run([str(word) for word in (BUILD / "bin" / "fp8", *arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The demo model with its operations, measured on 8 chunks, not converted; and the folder of the measurement."""
    folder, model = tmp_path_factory.mktemp("stats"), fp8.attention.use(load())
    fp8.quant.prepare(model, {**KEYS, "dump_stats_path": str(folder / "inc_output")})
    with torch.no_grad():
        for chunk in tokens("kjv_calib.txt", 8, 256):
            model(chunk)
    fp8.quant.finalize_calibration(model)
    return model, folder


@pytest.fixture(scope="module")
def converted(measured):
    return fp8.quant.convert(copy.deepcopy(measured[0])), measured[1]


@pytest.mark.parametrize("fused", [True, False])
def test_in_high_precision_it_is_transformers_own(fused):
    plain, ours = load(), fp8.attention.use(load(), fused=fused)
    plain.set_attn_implementation("sdpa" if fused else "eager")
    chunk = tokens("kjv_calib.txt", 2, 64).view(2, 64)
    mask = torch.ones_like(chunk)
    mask[1, :9] = 0
    with torch.no_grad():
        for given in ({}, {"attention_mask": mask}):
            a, b = (model(chunk, **given).logits.float()[:, 10:] for model in (plain, ours))
            assert torch.equal(a, b) if fused else float((a - b).norm() / a.norm()) < 2e-2


def test_files_equal_the_programs(measured, tmp_path):
    (tmp_path / "measure.json").write_text(json.dumps({**KEYS, "mode": "MEASURE", "dump_stats_path": f"{tmp_path}/stats/inc_output"}))
    program("measure", MODEL, "--config", tmp_path / "measure.json", "-d", DEMO / "kjv_calib.txt", "-n", 8, "--seq-len", 256, "-o", tmp_path / "stats", "-q")
    for name in ("inc_output_hooks_maxabs.json", "inc_output_hooks_maxabs.npz", "inc_output_hooks_maxabs_mod_list.json"):
        assert (measured[1] / name).read_bytes() == (tmp_path / "stats" / name).read_bytes(), name
    nodes = json.loads((measured[1] / "inc_output_hooks_maxabs.json").read_text())
    assert nodes["NumSamples"] == 8 and "model.layers.3.self_attn.k_cache" in nodes["Nodes"]


def expect_the_programs_numbers(model, reference, folder, source, text, ids, tmp_path):
    """Perplexity and KL of 16 chunks are those of `fp8 evaluate` with the measurement in the folder."""
    (tmp_path / "quantize.json").write_text(json.dumps({**KEYS, "mode": "QUANTIZE", "dump_stats_path": str(folder / "inc_output")}))
    said = json.loads(program("evaluate", source, "-r", source, "-d", text, "-n", 16, "--seq-len", 256, "--json", QUANT_CONFIG=str(tmp_path / "quantize.json")))
    found = fp8.evaluate(model, ids.flatten(), reference=reference, seq_len=256)
    assert abs(found.loss - math.log(said["perplexity"])) < 1e-4 and abs(found.reference_loss - math.log(said["reference_perplexity"])) < 1e-4
    assert said["kl"] > 1e-3 and abs(found.kl - said["kl"]) < 1e-4 and abs(found.top1_agreement - said["top1_agreement"]) < 1e-3
    assert found.tokens == 16 * 255


def test_numbers_are_the_programs(converted, tmp_path):
    model, folder = converted
    assert sum(".self_attn." in m.name and m.name.endswith(("_cache", "attention")) for m in fp8.quant.report(model).converted) == 12
    expect_the_programs_numbers(model, load(), folder, MODEL, DEMO / "kjv_heldout_16k.txt", tokens("kjv_heldout_16k.txt", 16, 256), tmp_path)


def test_numbers_of_another_model_are_the_programs(tmp_path):
    """A Llama in float32 with grouped keys and a tied head."""
    if not os.environ.get("FP8_TEST_DATA"):
        pytest.skip("FP8_TEST_DATA names no folder with models/stories260K")
    data = pathlib.Path(os.environ["FP8_TEST_DATA"])
    source, text = data / "models" / "stories260K", data / "text" / "ts_calib.txt"
    ids = transformers.AutoTokenizer.from_pretrained(source)(text.read_text()[:20000], return_tensors="pt").input_ids[0, :16 * 256]
    model, reference = (transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to("hpu").eval() for _ in range(2))
    fp8.quant.prepare(fp8.attention.use(model), {**KEYS, "dump_stats_path": str(tmp_path / "inc_output")})
    with torch.no_grad():
        model(ids.view(16, 256).to("hpu"))
    fp8.quant.convert(model)
    expect_the_programs_numbers(model, reference, tmp_path, source, text, ids, tmp_path)


def test_the_cache_keeps_codes(converted):
    model, prompt = converted[0], tokens("kjv_heldout_16k.txt", 2, 30).view(2, 30)
    with torch.no_grad():
        expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
        cache = fp8.Cache(model)
        assert torch.equal(model.generate(prompt, max_new_tokens=12, do_sample=False, past_key_values=cache), expected)
        beams = [model.generate(prompt, max_new_tokens=6, num_beams=2, do_sample=False, **more) for more in ({}, {"past_key_values": fp8.Cache(model)})]
        assert torch.equal(*beams)
    plain = transformers.DynamicCache(config=model.config)
    model.generate(prompt, max_new_tokens=12, do_sample=False, past_key_values=plain)
    of_bf16 = sum(t.numel() * t.element_size() for layer in plain.layers for t in (layer.keys, layer.values))
    assert cache.layers[0].keys.dtype == torch.uint8 and cache.nbytes() <= 0.55 * of_bf16
    assert cache.get_seq_length() == plain.get_seq_length()


def test_copies_and_pickles(converted):
    model, chunk = converted[0], tokens("kjv_calib.txt", 1, 64)[0]
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(chunk).logits, model(chunk).logits)
    with pytest.raises(RuntimeError, match="KVCache is in fp8"):
        copy.copy(model.model.layers[0].self_attn.k_cache).__getstate__()
    assert copy.deepcopy(fp8.nn.Softmax())(torch.zeros(2, device="hpu"), 0).tolist() == [0.5, 0.5]


def test_hooks_on_operations_are_refused():
    model = fp8.attention.use(load(), fused=False)
    hook = next(iter(fp8.attention.modules(model).values())).matmul_qk.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="found hooks on its operations"):
        model(tokens("kjv_calib.txt", 1, 16)[0])
    hook.remove()
    model(tokens("kjv_calib.txt", 1, 16)[0])


def test_refused_by_name():
    with pytest.raises(ValueError, match="Linear, expected a model of transformers"):
        fp8.attention.use(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has no operations"):
        fp8.Cache(load())
    model = load()
    model.set_attn_implementation("fp8")
    with pytest.raises(RuntimeError, match="fp8.attention.use"):
        model(tokens("kjv_calib.txt", 1, 8)[0])


def test_modules_of_ones_own(tmp_path):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qk, self.p, self.av = fp8.nn.Matmul(), fp8.nn.Softmax(), fp8.nn.Matmul()
            self.k_cache = fp8.nn.KVCache()

        def forward(self, x):
            return self.av(self.p(self.qk(x, self.k_cache(x).transpose(1, 2)) / 8), x)

    model, x = torch.nn.Sequential(Attention()).to("hpu"), torch.randn(2, 16, 64).to("hpu")
    with torch.no_grad():
        high = model(x)
        assert torch.equal(high, torch.softmax(x @ x.transpose(1, 2) / 8, -1) @ x)
        fp8.quant.prepare(model, {"scale_method": "maxabs_pow2", "dump_stats_path": str(tmp_path / "inc")})
        model(x)
        fp8.quant.convert(model)
        error = float((model(x) - high).norm() / high.norm())
    assert 0 < error < 0.2 and {m.name for m in fp8.quant.report(model).converted} == {"0.qk", "0.p", "0.av", "0.k_cache"}
    cache = model[0].k_cache
    cache.allocate(4, torch.float32, "hpu", (2, 32, 64))
    assert cache.cache.dtype == torch.float8_e4m3fn and cache.get_shape() == (2, 32, 64)
    seen = cache.update(x, 1, 0)
    assert torch.equal(seen, cache(x)) and float((seen - x).norm() / x.norm()) < 0.1
    with pytest.raises(ValueError, match="expected 36"):
        cache.update(x, 1, 20)


def test_paged_cache():
    cache, x = fp8.nn.VLLMKVCache(), torch.randn(5, 2, 8).to("hpu")
    pages = torch.zeros(3, 4, 2, 8, device="hpu")
    cache(x, pages, torch.tensor([0, 1, 2, 3, 8]).to("hpu"))
    assert torch.equal(pages[0], x[:4]) and torch.equal(pages[2, 0], x[4])
    assert torch.equal(cache.fetch_from_cache(pages, torch.tensor([2]).to("hpu"), torch.float32)[0, 0], x[4])
