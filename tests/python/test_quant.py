# SPDX-License-Identifier: Apache-2.0
"""fp8.quant: measuring and converting, beside the program's own measurements and checkpoints."""

import json
import subprocess

import pytest
import torch
from conftest import BUILD, DEMO, batch, net

import fp8


def relative(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def test_measure_and_convert(tmp_path):
    model = net()
    with torch.no_grad():
        high = model(batch())
        fp8.quant.prepare(model, fp8.quant.FP8Config(scale_method="maxabs_pow2", dump_stats_path=str(tmp_path / "inc")))
        assert torch.equal(model(batch()), high)
        assert fp8.quant.convert(model) is model
        low = model(batch())
    assert 0 < relative(low, high) < 0.1
    report = fp8.quant.report(model)
    assert [m.name for m in report.converted] == ["0", "2"] and not report.kept and "2 modules in fp8" in str(report)
    assert isinstance(model[0].weight, fp8.Fp8Parameter) and model[0].weight.dtype == torch.float32
    nodes = json.loads((tmp_path / "inc_hooks_maxabs.json").read_text())["Nodes"]
    assert nodes["0"]["inputs"] == [[[batch().abs().max().item()]]]


@pytest.mark.parametrize("keys, said", [
    ({"scale_metod": "unit_scale"}, "scale_method"), ({"mode": "MEASUR"}, "MEASURE"), ({"scale_method": "maxabs"}, "scale_method"),
    ({"blocklist": {"name": []}}, "names")])
def test_configs_are_checked(keys, said):
    with pytest.raises(ValueError, match=said):
        fp8.quant.FP8Config(**keys)


def test_steps_out_of_order(tmp_path, monkeypatch):
    monkeypatch.delenv("QUANT_CONFIG", raising=False)
    model = net()
    for step in (fp8.quant.convert, fp8.quant.prepare):
        with pytest.raises(ValueError, match="QUANT_CONFIG"):
            step(model)
    config = fp8.quant.FP8Config(dump_stats_path=str(tmp_path / "inc"))
    with pytest.raises(ValueError, match="not prepared"):
        fp8.quant.finalize_calibration(model)
    with pytest.raises(ValueError, match="on hpu"):
        fp8.quant.prepare(net("cpu"), config)
    fp8.quant.prepare(model, config)
    with pytest.raises(ValueError, match="prepared already"):
        fp8.quant.prepare(model, config)
    model(batch())
    fp8.quant.convert(model)
    for step in (fp8.quant.convert, fp8.quant.prepare):
        with pytest.raises(ValueError, match="converted already"):
            step(model, config)


def test_unknown_classes_are_named():
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = torch.nn.Parameter(torch.randn(32, 64))

        def forward(self, x):
            return torch.nn.functional.linear(x, self.matrix)

    model = torch.nn.Sequential(Mine()).to("hpu")
    config = {"mode": "QUANTIZE", "scale_method": "unit_scale"}
    fp8.quant.convert(model, config)
    assert [(m.name, "Mine" in m.reason) for m in fp8.quant.report(model).kept] == [("0.matrix", True)]
    with pytest.raises(ValueError, match="nearest that is known is 'Linear'"):
        fp8.quant.register(Mine, "Liner")
    fp8.quant.register(Mine, weight="matrix")
    model = torch.nn.Sequential(Mine()).to("hpu")
    fp8.quant.convert(model, config)
    assert [m.name for m in fp8.quant.report(model).converted] == ["0"]


def program(*arguments):
    done = subprocess.run([str(word) for word in (BUILD / "bin" / "fp8", *arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_equal_the_programs(tmp_path):
    """Of the same model, config and chunks: measurement, checkpoint and config.json, byte for byte."""
    import transformers
    folder, length, samples = DEMO / "kjv-byte-1.7M", 256, 8
    keys = {"scale_method": "maxabs_pow2", "blocklist": {"names": ["lm_head"], "types": ["KVCache", "ModuleFusedSDPA"]}}
    for side in ("python", "program"):
        for mode in ("MEASURE", "QUANTIZE"):
            (tmp_path / f"{side}_{mode}.json").write_text(json.dumps({**keys, "mode": mode, "dump_stats_path": f"{tmp_path}/{side}/inc_output"}))
    ids = transformers.AutoTokenizer.from_pretrained(folder)((DEMO / "kjv_calib.txt").read_text(), return_tensors="pt").input_ids[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("hpu").eval()
    fp8.quant.prepare(model, tmp_path / "python_MEASURE.json")
    with torch.no_grad():
        for chunk in ids[:samples * length].view(samples, 1, length):
            model(chunk.to("hpu"))
    files = fp8.quant.finalize_calibration(model)
    program("measure", folder, "--config", tmp_path / "program_MEASURE.json", "-d", DEMO / "kjv_calib.txt", "-n", samples, "--seq-len", length, "-q",
            "-o", tmp_path / "program")
    for file in ("inc_output_hooks_maxabs.json", "inc_output_hooks_maxabs.npz", "inc_output_hooks_maxabs_mod_list.json"):
        assert (tmp_path / "python" / file).read_bytes() == (tmp_path / "program" / file).read_bytes(), file
        assert str(tmp_path / "python" / file) in files
    fp8.quant.convert(model, tmp_path / "python_QUANTIZE.json")
    fp8.quant.save(model, tmp_path / "mine")
    program("quantize", folder, "--config", tmp_path / "program_QUANTIZE.json", "-o", tmp_path / "theirs", "-q")
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "mine" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes(), file
