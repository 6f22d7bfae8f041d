# SPDX-License-Identifier: Apache-2.0
"""transformers' architectures on hpu: the CPU's bits, in fp8, generating, saved, and read by transformers without this package."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import fp8

FAMILIES = ROOT / "tests" / "families"
sys.path.insert(0, str(FAMILIES))
import build  # noqa: E402
import check  # noqa: E402
import inputs  # noqa: E402
import reference  # noqa: E402

GROUPS = {
    "dense": ("llama qwen2 qwen3 gemma2 gemma3_text mistral phi phi3 olmo2 falcon bloom opt stablelm cohere2 glm4 gpt_neox gpt2"),
    "sparse": "mixtral qwen2_moe qwen3_moe deepseek_v3 llama4_text gpt_oss granitemoe olmoe phimoe lfm2_moe mamba mamba2 falcon_mamba",
    "other": ("bert roberta electra modernbert deberta-v2 t5 bart pegasus vit deit beit resnet convnext clip siglip llava internvl "
              "whisper wav2vec2 hubert"),
}
CONFIG = {"mode": "QUANTIZE", "scale_method": "act_maxabs_pow2_weights_pcs_maxabs_pow2", "dynamic_quantization": True}

# What no checkpoint can hold, and what save_pretrained() says of it: saved is the model without.
STACKED = ({"types": ["MoeMatmul"], "names": []}, "stacked experts are one tensor")
WITHOUT = {"gpt_oss": STACKED, "granitemoe": STACKED,
           "gpt2": ({"types": [], "names": ["transformer"]}, r"\[inputs, outputs\]")}

EAGER = ("whisper",)  # the device has a kernel of its own for at most 16 queries over many keys, whose last bits differ


def on_hpu(kwargs):
    return {key: value.to("hpu") if torch.is_tensor(value) else value for key, value in kwargs.items()}


def run(model, kwargs):
    return {key: value.cpu() for key, value in inputs.run(model, on_hpu(kwargs), torch).items()}


def load(folder):
    """(the model on the CPU, the name of its class)"""
    import transformers
    transformers.logging.set_verbosity_error()
    name = json.loads((folder / "built.json").read_text())["class"]
    return reference.load(name, folder, torch)[0], name


def matrices(model):
    """{name as in a report: elements} of linear, convolution and expert weights, by the classes of torch alone."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)) or type(module).__name__ == "Conv1D":
            found[name] = module.weight.numel()
        elif "Experts" in type(module).__name__:
            found |= {f"{name}.{key}": p.numel() for key, p in module.named_parameters(recurse=False) if p.dim() == 3}
    return found


def generates(model, runs):
    """Two tokens for the first input that generate() takes; models that take none of these are left out."""
    if not getattr(model, "can_generate", lambda: False)():
        return
    kwargs = next(iter(runs.values()))
    names = [key for key in ("input_ids", "attention_mask", "input_features", "pixel_values") if key in kwargs]
    more = {"decoder_start_token_id": 0} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        tokens = model.generate(**on_hpu({key: kwargs[key] for key in names}), **more, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert tokens.device.type == "hpu" and tokens.shape[-1] >= 2


def examine(model_type, folder, out):
    """Assertions on one type; what the reader is given."""
    saved, _ = reference.read(folder, torch)
    model, name = load(folder)
    if model_type in EAGER:
        model.set_attn_implementation("eager")
    answers = {key: inputs.run(model, kwargs, torch) for key, kwargs in saved["runs"].items()}
    model = model.to("hpu")
    for key, kwargs in saved["runs"].items():
        for output, have in run(model, kwargs).items():
            assert torch.equal(have, answers[key][output]), f"{key}: {output} differs from the CPU's"
    sizes = matrices(model)
    model = fp8.quant.convert(model, CONFIG)
    report = fp8.quant.report(model)
    converted, kept = {m.name for m in report.converted}, {m.name: m.reason for m in report.kept}
    named = sum(size for key, size in sizes.items() if key in converted or kept.get(key))
    assert named >= check.LEAST_SHARE * sum(sizes.values()), f"not named: {set(sizes) - converted - set(kept)}"
    meant = {key: size for key, size in sizes.items() if not re.search("shares its weight|type Conv|parametrization", kept.get(key, ""))}
    assert sum(size for key, size in meant.items() if key in converted) >= check.LEAST_SHARE * sum(meant.values()), kept
    for key, kwargs in saved["runs"].items():
        for output, have in run(model, kwargs).items():
            want = answers[key][output]
            good = torch.isfinite(want)
            error = float((have[good] - want[good]).norm() / want[good].norm())
            assert 0 < error <= check.LARGEST_ERROR, f"{key}: {output}: relative error {error}"
    generates(model, saved["runs"])
    if model_type in WITHOUT:
        blocklist, said = WITHOUT[model_type]
        with pytest.raises(RuntimeError, match=said):
            model.save_pretrained(out)
        with pytest.raises(RuntimeError, match=said):
            fp8.quant.save(model, out / "again")
        assert not list(out.rglob("*.safetensors"))
        if model_type == "gpt2":
            return None  # nothing else of it is in fp8
        model = fp8.quant.convert(load(folder)[0].to("hpu"), {**CONFIG, "blocklist": blocklist})
    model.save_pretrained(out)
    return [name, str(folder), str(out)]


READER = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import torch
import check, reference
import transformers
transformers.logging.set_verbosity_error()
assert not hasattr(torch, "hpu") and "fp8" not in sys.modules
torch.set_num_threads(1)
for name, folder, out in json.load(sys.stdin):
    saved, _ = reference.read(pathlib.Path(folder), torch)
    print("RESULT", json.dumps([out, check.loaded(name, pathlib.Path(out), saved, 1, torch)[1]]))
"""


def read_elsewhere(jobs):
    """{folder: why transformers, in a process that knows nothing of fp8, does not read the model from it}"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", READER, str(FAMILIES)], input=json.dumps(jobs), env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if line.startswith("RESULT "))


def test_they_are_forty():
    assert len(set(" ".join(GROUPS.values()).split())) >= 40


@pytest.mark.parametrize("group", GROUPS)
def test_architectures(group, tmp_path):
    jobs, failures = [], {}
    for model_type in GROUPS[group].split():
        folder = build.prepare(model_type)
        try:
            jobs.append(examine(model_type, folder, tmp_path / model_type))
        except Exception as error:  # noqa: BLE001: one that fails does not hide the others
            failures[model_type] = f"{type(error).__name__}: {error}"
    jobs = [job for job in jobs if job]
    problems = read_elsewhere(jobs)
    assert len(problems) == len(jobs)
    failures |= {out: causes for out, causes in problems.items() if causes}
    assert not failures, "\n".join(f"{name}: {why}" for name, why in failures.items())
