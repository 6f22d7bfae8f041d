# SPDX-License-Identifier: Apache-2.0
"""Models, devices and moments that prepare(), convert(), save() and load() do not expect: said by name, or right."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from conftest import batch
from doors import CONFIGS, Net, made, values_of
from torch import nn

import fp8

QUANTIZE = {**CONFIGS["dynamic"], "mode": "QUANTIZE"}


def changed(change):
    model = Net().to("hpu")
    other = change(model)
    return other if isinstance(other, nn.Module) else model


def parametrized(model):
    nn.utils.parametrize.register_parametrization(model.up_proj, "weight", nn.Identity())


def buffered(model):
    weight = model.up_proj.weight.detach()
    del model.up_proj.weight
    model.up_proj.register_buffer("weight", weight)


REFUSED = {
    "cpu": (lambda m: m.cpu(), "up_proj.*found it on cpu"), "meta": (lambda m: m.to("meta"), "up_proj.*found it on meta"),
    "mixed": (lambda m: m.down_proj.cpu() and None, "down_proj.*found it on cpu"), "parametrized": (parametrized, "up_proj: .*parametriz"),
    "weight_norm": (lambda m: nn.utils.parametrizations.weight_norm(m.up_proj) and None, "up_proj: .*parametriz"), "buffer": (buffered, "up_proj: .*buffer"),
    "lazy": (lambda m: setattr(m, "up_proj", nn.LazyLinear(128).to("hpu")), "up_proj: its weight has no values"),
    "double": (lambda m: m.double(), "up_proj: .*found Double"),
    "nan": (lambda m: m.up_proj.weight.data.fill_(float("nan")) is None, "up_proj.weight: amax is nan")}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(name, tmp_path):
    """By name, and nothing is changed."""
    change, said = REFUSED[name]
    model = changed(change)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items() if not torch.nn.parameter.is_lazy(tensor)}
    with pytest.raises((ValueError, RuntimeError), match=said):
        fp8.quant.convert(model, QUANTIZE)
    if name not in ("double", "nan"):
        with pytest.raises(ValueError, match=said):
            fp8.quant.prepare(model, {**CONFIGS["static"], "dump_stats_path": str(tmp_path / "inc")})
    after = model.state_dict()
    assert all(key in after and (t.is_meta or torch.equal(after[key].nan_to_num(), t.nan_to_num())) for key, t in before.items())
    with pytest.raises(ValueError, match="not converted"):
        fp8.quant.report(model)


RIGHT = {"shared": lambda m: m.share_memory(), "frozen": lambda m: m.requires_grad_(False), "hooked": lambda m: m.up_proj.register_forward_hook(
    lambda module, inputs, out: out * 1) and None, "compiled": lambda m: torch.compile(m, backend="eager"), "compiled_itself": lambda m: m.compile(backend="eager"),
         "half": lambda m: m.half(), "strided": lambda m: setattr(m.up_proj.weight, "data", m.up_proj.weight.data.t().contiguous().t())}


@pytest.mark.parametrize("name", RIGHT)
def test_models_that_are_taken(name):
    model, plain = changed(RIGHT[name]), Net().to("hpu")
    x = batch().to(next(model.parameters()).dtype)
    with torch.no_grad():
        before = model(x)
        fp8.quant.convert(model, QUANTIZE)
        fp8.quant.convert(plain.to(x.dtype), QUANTIZE)
        after = model(x)
        assert torch.equal(after, plain(x)) and 0 < float((after - before).norm() / before.norm()) < 0.1
    assert [module.name for module in fp8.quant.report(model).converted] == ["up_proj", "down_proj"]


def test_attached_then_converted(tmp_path):
    model = made("attached", tmp_path)
    high = values_of(model)
    fp8.quant.convert(model, QUANTIZE)
    assert float((model.up_proj.weight.dequantize() - high[0]).norm() / high[0].norm()) < 0.05


def test_parametrized_afterwards_keeps_its_scales(tmp_path):
    import safetensors.torch
    model, again = made("static", tmp_path), made("static", tmp_path)
    for m in (model, again):
        nn.utils.parametrize.register_parametrization(m.up_proj, "weight", nn.Identity())
    safetensors.torch.save_file(model.state_dict(), tmp_path / "file")
    state = safetensors.torch.load_file(tmp_path / "file")
    assert "up_proj.parametrizations.weight.original_scale" in state
    nn.init.zeros_(again.up_proj.bias)
    again.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(again(batch()), model(batch()))


def test_states_of_other_models(tmp_path):
    static, dynamic = made("static", tmp_path), made("dynamic", tmp_path)
    for model, state, said in ((static, dynamic.state_dict(), "found no 'up_proj.input_scale'"), (dynamic, static.state_dict(), "found 'up_proj.input_scale'")):
        with pytest.raises(RuntimeError, match=said):
            model.load_state_dict({key: tensor.cpu() for key, tensor in state.items()})
    state = {key: tensor for key, tensor in static.state_dict().items() if key != "up_proj.weight_scale"}
    state["up_proj.weight"] = state["up_proj.weight"].view(torch.uint8).clone().view(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="found codes without 'up_proj.weight_scale'"):
        static.load_state_dict(state)


def test_an_interrupted_calibration(tmp_path):
    model = Net().to("hpu")
    fp8.quant.prepare(model, {**CONFIGS["static"], "dump_stats_path": str(tmp_path / "stats" / "inc")})
    model(batch())

    def interrupt(*_):
        raise KeyboardInterrupt
    hook = model.down_proj.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(batch())
    assert not (tmp_path / "stats").exists()
    hook.remove()
    (tmp_path / "stats").write_text("in the way")
    with pytest.raises(RuntimeError, match="stats"):
        fp8.quant.finalize_calibration(model)
    (tmp_path / "stats").unlink()
    files = fp8.quant.finalize_calibration(model)
    nodes = json.loads((tmp_path / "stats" / "inc_hooks_maxabs.json").read_text())["Nodes"]
    assert len(files) == 4 and nodes["up_proj"]["inputs"] == [[[batch().abs().max().item()]]] and "down_proj" in nodes


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 2)", "raise ValueError"])
def test_the_interpreter_ends_with_a_calibration(end, tmp_path):
    """All files are there, and nothing crashes."""
    script = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
import fp8, doors
model = doors.Net().to("hpu")
fp8.quant.prepare(model, {{**doors.CONFIGS["static"], "dump_stats_path": sys.argv[2] + "/inc"}})
model(doors.batch())
{end}
"""
    done = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in ({"": 0, "raise ValueError": 1}.get(end, 130), {"os": -signal.SIGINT}.get(end[:2])), done.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == [f"inc_hooks_maxabs{rest}" for rest in (".fingerprint", ".json", ".npz", "_mod_list.json")]
    assert json.loads((tmp_path / "inc_hooks_maxabs.json").read_text())["Nodes"]["up_proj"]["inputs"] == [[[batch().abs().max().item()]]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_signal_in_a_forward(count, tmp_path):
    """Of each model that is being calibrated all files are there, with what was seen up to then."""
    script = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
import fp8, doors
models = [doors.Net().to("hpu") for _ in range({count})]
for i, model in enumerate(models):
    fp8.quant.prepare(model, {{**doors.CONFIGS["static"], "dump_stats_path": sys.argv[2] + f"/{{i}}/inc"}})
    model(doors.batch())
models[0].down_proj.register_forward_pre_hook(lambda *_: os.kill(os.getpid(), 2))
models[0](2 * doors.batch())
print("not interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (130, -signal.SIGINT) and "KeyboardInterrupt" in done.stderr and not done.stdout, done.stderr
    for i in range(count):
        assert sorted(f.name for f in (tmp_path / str(i)).iterdir()) == [f"inc_hooks_maxabs{rest}" for rest in (".fingerprint", ".json", ".npz", "_mod_list.json")]
        nodes = json.loads((tmp_path / str(i) / "inc_hooks_maxabs.json").read_text())["Nodes"]
        assert nodes["up_proj"]["inputs"] == [[[(2 if i == 0 else 1) * batch().abs().max().item()]]] and "down_proj" in nodes


def test_files_that_are_missing(tmp_path):
    model = Net().to("hpu")
    for call in (lambda: fp8.quant.load(tmp_path / "none"), lambda: fp8.quant.load(model, checkpoint=tmp_path / "none"),
                 lambda: fp8.quant.prepare(model, tmp_path / "none.json")):
        with pytest.raises(FileNotFoundError, match="none"):
            call()
    with pytest.raises(FileNotFoundError, match="none.*no such file"):
        fp8.quant.convert(model, {**CONFIGS["static"], "mode": "QUANTIZE", "dump_stats_path": str(tmp_path / "none" / "inc")})
    with pytest.raises(ValueError, match="key 'device_for_scales': found GAUDI2 on a gaudi3 device"):
        fp8.quant.convert(model, {**QUANTIZE, "device_for_scales": "GAUDI2"})
    with pytest.raises(RuntimeError, match="no fp8 module"):
        fp8.quant.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
