# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer and Fabric on hpu: they train there in the precision that they are asked for, or raise an error."""

import cProfile
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections import OrderedDict

import pytest

lightning = pytest.importorskip("lightning")
import documents  # noqa: E402
import torch  # noqa: E402
from conftest import BUILD  # noqa: E402
from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from lightning.pytorch.demos.boring_classes import BoringModel  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy  # noqa: E402

import fp8.lightning  # noqa: E402
from fp8.lightning import HPUAccelerator, HPUCheckpointIO, HPUPrecisionPlugin, SingleHPUStrategy  # noqa: E402
from fp8.lightning.fabric import HPUPrecision  # noqa: E402
from fp8.lightning.fabric import SingleHPUStrategy as FabricStrategy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 3
QUIET = {"max_steps": STEPS, "limit_val_batches": 0, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
DTYPES = {"32": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16, "fp8": torch.bfloat16}
PRECISIONS = list(DTYPES)


class Model(BoringModel):
    """Where its Linear computed, in which dtype, and how far its training in fp8 is."""

    def __init__(self):
        super().__init__()
        self.seen, self.fp8_steps = set(), 0
        self.layer.register_forward_hook(lambda module, given, out: self.seen.add((out.device.type, out.dtype)))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_end(self):
        self.fp8_steps = fp8_step(self.layer.weight)


def fp8_step(weight):
    return json.loads(torch.ops.fp8.training_state(weight))["step"] if torch.ops.fp8.tag_of(weight) != "null" else 0


def trained(expected, model=None, **asked):
    model = model or Model()
    lightning.Trainer(**asked, **QUIET, enable_checkpointing=False).fit(model)
    check(model, expected)


def check(model, precision):
    assert model.seen == {("hpu", DTYPES[precision])}
    assert getattr(model, "fp8_steps", 0) == (STEPS if precision == "fp8" else 0)


# How Trainer is asked: by arguments that name the precision, and by objects that have it.
NAMED = {
    "hpu": lambda: {"accelerator": "hpu"},
    "hpu, devices=1": lambda: {"accelerator": "hpu", "devices": 1},
    "hpu, devices='auto'": lambda: {"accelerator": "hpu", "devices": "auto"},
    "hpu, devices=-1": lambda: {"accelerator": "hpu", "devices": -1},
    "hpu, devices='1'": lambda: {"accelerator": "hpu", "devices": "1"},
    "auto": lambda: {"accelerator": "auto"},
    "nothing": lambda: {},
    "HPUAccelerator()": lambda: {"accelerator": HPUAccelerator()},
    "hpu, hpu_single": lambda: {"accelerator": "hpu", "strategy": "hpu_single"},
    "HPUAccelerator(), hpu_single": lambda: {"accelerator": HPUAccelerator(), "strategy": "hpu_single", "devices": 1},
    "hpu_single": lambda: {"strategy": "hpu_single"},
    "SingleHPUStrategy()": lambda: {"strategy": SingleHPUStrategy()},
    "HPUAccelerator(), SingleHPUStrategy()": lambda: {"accelerator": HPUAccelerator(), "strategy": SingleHPUStrategy()},
    "SingleHPUStrategy(accelerator)": lambda: {"strategy": SingleHPUStrategy(accelerator=HPUAccelerator())},
    "hpu, SingleDeviceStrategy('hpu')": lambda: {"accelerator": "hpu", "strategy": SingleDeviceStrategy("hpu")},
    "hpu, HPUCheckpointIO()": lambda: {"accelerator": "hpu", "plugins": [HPUCheckpointIO()]},
}
OBJECTS = {
    "HPUAccelerator(), plugins": lambda p: {"accelerator": HPUAccelerator(), "devices": 1, "plugins": [HPUPrecisionPlugin(p)]},
    "hpu, plugins": lambda p: {"accelerator": "hpu", "plugins": HPUPrecisionPlugin(precision=p)},
    "plugins": lambda p: {"plugins": HPUPrecisionPlugin(p)},
    "SingleHPUStrategy(precision_plugin)": lambda p: {"strategy": SingleHPUStrategy(precision_plugin=HPUPrecisionPlugin(p))},
    "SingleHPUStrategy(), plugins": lambda p: {"strategy": SingleHPUStrategy(), "plugins": [HPUPrecisionPlugin(p), HPUCheckpointIO()]},
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", NAMED)
def test_trainer(way, precision):
    trained(precision, **NAMED[way](), precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", OBJECTS)
def test_trainer_with_objects(way, precision):
    trained(precision, **OBJECTS[way](precision))


@pytest.mark.parametrize("asked, precision", [({"precision": 32}, "32"), ({"precision": 16}, "16-mixed"),
                                              ({"precision": "bf16"}, "bf16-mixed"), ({}, "32"),
                                              ({"plugins": MixedPrecision("bf16-mixed", "hpu")}, "bf16-mixed")])
def test_other_spellings(asked, precision):
    trained(precision, accelerator="hpu", **asked)


def test_parameters_in_bf16():
    """What is no mixture is Lightning's own, and is on hpu too."""
    trained("bf16-mixed", accelerator="hpu", precision="bf16-true")
    trained("16-mixed", accelerator="hpu", precision="16-true")


def test_environment(monkeypatch):
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "hpu")
    monkeypatch.setenv("PL_TRAINER_PRECISION", "bf16-mixed")
    trained("bf16-mixed")


REFUSED = {
    "devices=2": ({"accelerator": "hpu", "devices": 2}, MisconfigurationException, "allowed: a count from 1 to 1"),
    "devices=[0]": ({"accelerator": "hpu", "devices": [0]}, MisconfigurationException, "must be int, string or None"),
    "devices='0,1'": ({"accelerator": "hpu", "devices": "0,1"}, MisconfigurationException, "found '0,1'"),
    "ddp": ({"accelerator": "hpu", "strategy": "ddp"}, MisconfigurationException, "found DDPStrategy"),
    "auto, ddp": ({"strategy": "ddp"}, MisconfigurationException, "accelerator='cpu' computes on the CPU"),
    "cpu, hpu_parallel": ({"accelerator": "cpu", "strategy": "hpu_parallel"}, AssertionError, "HPUParallelStrategy requires HPUAccelerator"),
    "fsdp, 16-mixed": ({"accelerator": "hpu", "strategy": "hpu_fsdp", "precision": "16-mixed"}, ValueError, "allowed: 32-true, bf16-mixed, fp8"),
    "single_device": ({"accelerator": "hpu", "strategy": "single_device"}, MisconfigurationException, "found SingleDeviceStrategy"),
    "gpu": ({"accelerator": "gpu"}, MisconfigurationException, "No supported gpu backend"),
    "cpu, hpu_single": ({"accelerator": "cpu", "strategy": "hpu_single"}, AssertionError,
                        "SingleHPUStrategy requires HPUAccelerator. Found CPUAccelerator"),
    "cpu, plugins": ({"accelerator": "cpu", "plugins": HPUPrecisionPlugin("bf16-mixed")}, MisconfigurationException, "with CPUAccelerator"),
    "cpu, fp8": ({"accelerator": "cpu", "precision": "fp8"}, MisconfigurationException, "found 'fp8' with CPUAccelerator"),
    "cuda's autocast": ({"accelerator": "hpu", "plugins": MixedPrecision("bf16-mixed", "cuda")}, MisconfigurationException,
                        "MixedPrecision for cuda"),
    "transformer-engine": ({"accelerator": "hpu", "precision": "transformer-engine"}, ValueError, "must be one of: .*'fp8'"),
    "precision=8": ({"accelerator": "hpu", "precision": 8}, ValueError, "Precision 8 is invalid"),
    "both precisions": ({"accelerator": "hpu", "precision": "32", "plugins": HPUPrecisionPlugin("fp8")}, ValueError, "Choose one"),
    "of Fabric": ({"accelerator": "hpu", "strategy": SingleHPUStrategy(), "plugins": HPUPrecision("bf16-mixed")}, MisconfigurationException,
                  "nvalid type for plugin"),
}


@pytest.mark.parametrize("way", REFUSED)
def test_refused(way):
    asked, error, words = REFUSED[way]
    with pytest.raises(error, match=words):
        lightning.Trainer(**asked, **QUIET)


def test_refused_objects(monkeypatch):
    with pytest.raises(ValueError, match="precision='f16-mixed'.* must be one of: .*'16-mixed'"):
        HPUPrecisionPlugin("f16-mixed")
    with pytest.raises(AssertionError, match="should only be used with precision=`fp8`"):
        HPUPrecisionPlugin("bf16-mixed").convert_modules(Model())
    with pytest.raises(ValueError, match="HPUDDPStrategy: process_group_backend: found 'nccl', allowed: 'hccl'"):
        fp8.lightning.pytorch.strategies.HPUDDPStrategy(process_group_backend="nccl")
    with pytest.raises(ImportError, match="cannot import name 'HPUNothing'"):
        from fp8.lightning.pytorch.accelerator import HPUNothing  # noqa: F401
    monkeypatch.setattr(torch.hpu, "get_device_name", lambda device=None: "GAUDI")
    with pytest.raises(NotImplementedError, match="Gaudi2 or higher required"):
        HPUPrecisionPlugin("fp8")


def test_the_cpu_stays_the_cpu():
    model = Model()
    lightning.Trainer(accelerator="cpu", precision="bf16-mixed", **QUIET, enable_checkpointing=False).fit(model)
    assert model.seen == {("cpu", torch.bfloat16)}


FABRIC = {
    "hpu": lambda p: {"accelerator": "hpu", "precision": p},
    "auto": lambda p: {"precision": p},
    "HPUAccelerator()": lambda p: {"accelerator": HPUAccelerator(), "precision": p, "devices": 1},
    "hpu_single": lambda p: {"accelerator": "hpu", "strategy": "hpu_single", "precision": p},
    "SingleHPUStrategy()": lambda p: {"strategy": FabricStrategy(), "precision": p},
    "plugins": lambda p: {"accelerator": "hpu", "plugins": HPUPrecision(p)},
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", FABRIC)
def test_fabric(way, precision):
    fabric = lightning.Fabric(**FABRIC[way](precision))
    plain = Model()
    model, optimizer = fabric.setup(plain, plain.configure_optimizers())
    before = plain.layer.weight.detach().cpu().clone()
    for _ in range(STEPS):
        optimizer.zero_grad()
        fabric.backward(model(torch.randn(4, 32, device=fabric.device)).float().pow(2).mean())
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
    plain.on_train_end()
    check(plain, precision)
    assert not torch.equal(before, plain.layer.weight.detach().cpu())


@pytest.mark.parametrize("asked, error, words", [
    ({"accelerator": "hpu", "devices": 2}, MisconfigurationException, "allowed: a count from 1 to 1"),
    ({"accelerator": "hpu", "strategy": "ddp"}, MisconfigurationException, "found DDPStrategy"),
    ({"accelerator": "hpu", "strategy": "hpu_parallel"}, NotImplementedError, "hpu_parallel"),
    ({"accelerator": "hpu", "plugins": HPUPrecisionPlugin("bf16-mixed")}, MisconfigurationException,
     "of lightning.pytorch, allowed: one of lightning.fabric"),
    ({"accelerator": "cpu", "precision": "fp8"}, MisconfigurationException, "found 'fp8' with CPUAccelerator")])
def test_fabric_refuses(asked, error, words):
    with pytest.raises(error, match=words):
        lightning.Fabric(**asked)


@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "fp8"])
def test_a_checkpoint_resumes(tmp_path, precision):
    """An epoch, a file, another epoch: the bits of two epochs."""
    data = torch.utils.data.DataLoader(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), batch_size=4)

    def fit(epochs, resumed=None):
        torch.manual_seed(0)
        model = Model()
        trainer = lightning.Trainer(accelerator="hpu", precision=precision, max_epochs=epochs, enable_checkpointing=False,
                                    **{**QUIET, "max_steps": -1})
        trainer.fit(model, data, ckpt_path=resumed)
        return model, trainer
    whole, _ = fit(2)
    _, trainer = fit(1)
    file = tmp_path / "deep" / "half.ckpt"
    trainer.save_checkpoint(file)
    resumed, _ = fit(2, file)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(whole.parameters(), resumed.parameters()))
    assert resumed.fp8_steps == whole.fp8_steps
    saved = torch.load(file, weights_only=False)
    assert saved["global_step"] == 2 and saved["state_dict"]["layer.weight"].device.type == "cpu"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_an_interrupt_leaves_a_checkpoint_that_resumes(tmp_path):
    """SIGINT in the third step of fit, in fp8: what the second one saved goes on with the bits of a run of four steps."""
    class Interrupt(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if trainer.global_step == 2:
                os.kill(os.getpid(), signal.SIGINT)
    data = torch.utils.data.DataLoader(torch.randn(4, 32, generator=torch.Generator().manual_seed(0)), batch_size=4)

    def fit(folder, callbacks=(), **asked):
        torch.manual_seed(0)
        model, saves = Model(), lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
        lightning.Trainer(accelerator="hpu", precision="fp8", callbacks=[saves, *callbacks], **{**QUIET, "max_steps": 4}).fit(model, data, **asked)
        return model
    whole = fit(tmp_path / "whole")
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        fit(tmp_path / "cut", [Interrupt()])
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["step=1.ckpt", "step=2.ckpt"]
    resumed = fit(tmp_path / "again", ckpt_path=tmp_path / "cut" / "step=2.ckpt", weights_only=False)
    assert torch.equal(resumed.layer.weight, whole.layer.weight) and resumed.fp8_steps == whole.fp8_steps == 4


def test_a_checkpoint_is_whole(tmp_path, monkeypatch):
    """One that fails leaves the one before; tied weights are one."""
    file, weight = tmp_path / "a.ckpt", torch.ones(64, 64, device="hpu")
    HPUCheckpointIO().save_checkpoint({"a": weight, "b": [weight]}, file)
    loaded = HPUCheckpointIO().load_checkpoint(file)
    assert loaded["a"].device.type == "cpu" and loaded["a"].data_ptr() == loaded["b"][0].data_ptr()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        HPUCheckpointIO().save_checkpoint({}, file)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"] and "a" in HPUCheckpointIO().load_checkpoint(file)
    with pytest.raises(TypeError, match="storage_options"):
        HPUCheckpointIO().save_checkpoint({}, file, storage_options={})


def test_convert_modules():
    """The weight that the optimizer has stays, and fp8 is near f32."""
    plugin, model = HPUPrecisionPlugin("fp8"), Model()
    weight = model.layer.weight
    assert plugin.convert_modules(model, replace_layers=True, recipe=fp8.te.recipe.DelayedScaling()) is model
    assert model.layer.weight is weight and weight.device.type == "hpu"
    trained("fp8", model, accelerator=HPUAccelerator(), plugins=plugin)
    lightning.Trainer(accelerator="hpu", plugins=plugin, logger=False, enable_progress_bar=False).validate(model, verbose=False)


@pytest.mark.parametrize("quant, error, words", [(True, FileNotFoundError, "no such file"), (None, TypeError, "`quant` must be either a bool"),
                                                 ("none.json", FileNotFoundError, "none.json")])
def test_inference_refuses(tmp_path, quant, error, words):
    with pytest.raises(error, match=words):
        HPUPrecisionPlugin("fp8").convert_modules(Model(), inference=True, quant=quant, fp8_data_path=tmp_path)


@pytest.mark.parametrize("run", ["predict", "test", "validate"])
def test_inference(tmp_path, run):
    """Measured, then quantized, in one process; near what it was."""
    data, model = torch.utils.data.DataLoader(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), batch_size=4), Model()
    with torch.no_grad():
        before = torch.cat([model.layer(rows) for rows in data])
    for quant in (False, True):
        plugin = HPUPrecisionPlugin("fp8")
        plugin.convert_modules(model, inference=True, quant=quant, fp8_data_path=tmp_path)
        trainer = lightning.Trainer(accelerator="hpu", plugins=plugin, logger=False, enable_progress_bar=False)
        getattr(trainer, run)(model, dataloaders=data)
        assert list(tmp_path.glob("inc_output/measure_hooks_maxabs.json"))
    after = torch.cat(trainer.predict(model, dataloaders=data)).float().cpu()
    assert model.seen >= {("hpu", torch.bfloat16)} and 0 < (after - before).norm() / before.norm() < 0.1


ELSEWHERE = """
import sys, torch, lightning
sys.path[:0] = {path!r}
from test_lightning import HPUPrecisionPlugin, Model
torch.manual_seed(0)
plugin, model = HPUPrecisionPlugin("fp8"), Model()
plugin.convert_modules(model, inference=True, quant=False, fp8_data_path={folder!r})
data = torch.utils.data.DataLoader(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), batch_size=4)
lightning.Trainer(accelerator="hpu", plugins=plugin, logger=False, enable_progress_bar=False).predict(model, dataloaders=data)
"""


def test_measured_in_another_process_and_by_the_package(tmp_path):
    """The files and the results are those of one process, and those of fp8.quant's own prepare, finalize_calibration and convert. `fp8
    measure` sees the same amaxes of inputs and weights in the model as TorchScript (it computes in f32)."""
    def model():
        torch.manual_seed(0)
        return Model()
    rows_ = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.DataLoader(rows_, batch_size=4)

    def run(quant, folder, made):
        plugin = HPUPrecisionPlugin("fp8")
        plugin.convert_modules(made, inference=True, quant=quant, fp8_data_path=folder)
        trainer = lightning.Trainer(accelerator="hpu", plugins=plugin, logger=False, enable_progress_bar=False)
        return torch.cat(trainer.predict(made, dataloaders=data)).cpu()
    one, other, own = tmp_path / "one", tmp_path / "other", tmp_path / "own"
    run(False, one, model())
    subprocess.run([sys.executable, "-c", ELSEWHERE.format(path=sys.path, folder=str(other))], check=True, capture_output=True)
    keys = {"dump_stats_path": str(own / "inc_output" / "measure"), "observer": "maxabs"}
    with torch.autocast("hpu", torch.bfloat16):
        measured = model().to("hpu")
        fp8.quant.prepare(measured, fp8.quant.FP8Config(mode="MEASURE", **keys))
        for rows in data:
            measured(rows.to("hpu"))
    fp8.quant.finalize_calibration(measured)
    names = sorted(path.name for path in (one / "inc_output").iterdir())
    assert "measure_hooks_maxabs.json" in names
    for folder in other, own:
        assert sorted(path.name for path in (folder / "inc_output").iterdir()) == names
    texts = [json.loads((folder / "inc_output" / "measure_hooks_maxabs.json").read_text())["Nodes"] for folder in (one, other, own)]
    assert texts[0] == texts[1] == texts[2]
    found = [run(True, folder, model()) for folder in (one, other, own)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"input": rows_}, tmp_path / "x.safetensors")
    plain = torch.nn.Linear(32, 2)
    plain.load_state_dict(model().layer.state_dict())
    torch.jit.script(torch.nn.Sequential(OrderedDict(layer=plain))).save(tmp_path / "model.jit")
    subprocess.run([BUILD / "bin" / "fp8", "measure", tmp_path / "model.jit", "-d", tmp_path / "x.safetensors", "-o", tmp_path / "program"], check=True,
                   capture_output=True)
    [program] = (tmp_path / "program").glob("*_hooks_maxabs.json")
    nodes = json.loads(program.read_text())["Nodes"]
    assert nodes.keys() == texts[0].keys() == {"layer"}
    for kind in ("inputs", "params"):
        assert nodes["layer"][kind] == texts[0]["layer"][kind]


def replaced(code):
    code = code.replace("habana_frameworks.torch.hpex.experimental.transformer_engine", "fp8.te")
    return re.sub(r"\blightning_habana\b", "fp8.lightning", code)


READS = """
import sys
sys.path[:0] = {path!r}
import documents, safetensors.torch, torch
torch.manual_seed(0)
safetensors.torch.save_file(documents.run({code!r})["model"].state_dict(), "there.safetensors")
"""


@pytest.mark.skipif(not documents.blocks(), reason="FP8_TEST_DATA has no documents")
def test_a_document_quantizes_as_the_program_does(tmp_path, monkeypatch):
    """Its blocks of inference, in one process and in two: predict measures, convert_modules reads. Codes and scales are those that
    `fp8 quantize` writes of the same measurement."""
    safetensors = pytest.importorskip("safetensors.torch")
    monkeypatch.chdir(tmp_path)
    for name, value in {**documents.ENVIRONMENT, "HABANA_LOGS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    measures, reads = (replaced(documents.blocks()[f"hpu_intermediate_fp8.txt:{i}"]) for i in (4, 5))
    torch.manual_seed(0)
    names = documents.run(measures)
    (tmp_path / "plain").mkdir()
    safetensors.save_file(names["model"].state_dict(), tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_text("{}")
    safetensors.save_file(documents.run(reads, names)["model"].state_dict(), "here.safetensors")
    subprocess.run([sys.executable, "-c", READS.format(path=sys.path, code=measures.replace("quant=False", "quant=True"))], check=True)
    config = {"mode": "QUANTIZE", "scale_method": "maxabs_hw", "dump_stats_path": str(tmp_path / "inc_output" / "measure")}
    (tmp_path / "quant.json").write_text(json.dumps(config))
    subprocess.run([BUILD / "bin" / "fp8", "quantize", "plain", "--config", "quant.json", "-o", "program", "-q"], check=True)
    here, there, program = (safetensors.load_file(file) for file in ("here.safetensors", "there.safetensors", "program/model.safetensors"))
    assert here["layer.weight"].dtype == torch.float8_e4m3fn and {"layer.weight_scale", "layer.input_scale"} <= here.keys()
    for other in there, program:
        assert {key: (t.dtype, t.flatten().tolist()) for key, t in other.items()} == {key: (t.dtype, t.flatten().tolist()) for key, t in here.items()}


def test_device_stats():
    rows = HPUAccelerator().get_device_stats("hpu")
    assert set(rows) == {"Limit", "InUse", "MaxInUse", "NumAllocs", "NumFrees", "ActiveAllocs", "MaxAllocSize", "TotalSystemAllocs",
                         "TotalSystemFrees", "TotalActiveAllocs"}
    assert HPUAccelerator.auto_device_count() == 1 and HPUAccelerator.get_parallel_devices(2) == [torch.device("hpu")] * 2
    with pytest.raises(MisconfigurationException, match="Device should be HPU, got cpu instead"):
        HPUAccelerator().setup_device(torch.device("cpu"))


def test_profiler(tmp_path):
    profiler = fp8.lightning.HPUProfiler(dirpath=tmp_path, filename="perf", sort_by_key="hpu_time_total")
    lightning.Trainer(accelerator="hpu", profiler=profiler, **{**QUIET, "max_steps": 6}, enable_checkpointing=False).fit(Model())
    assert "aten::" in (tmp_path / "fit-perf.txt").read_text()
    trace = json.loads(next(tmp_path.glob("fit-perf*.json")).read_text())
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])


def test_data_module(monkeypatch):
    """On stand-ins for torchvision's names."""
    class Images(list):
        def __init__(self, folder, steps):
            super().__init__((torch.full((32,), float(i)), i) for i in range(5))
            self.given = (folder, steps)
    transforms = types.SimpleNamespace(Compose=list, Normalize=lambda *numbers: "normalized")
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(datasets=types.SimpleNamespace(ImageFolder=Images), transforms=transforms))
    data = fp8.lightning.HPUDataModule("train", "val", num_workers=0, normalize=True, batch_size=2, train_transforms=["cut"], val_transforms=["cut"])
    assert isinstance(data, lightning.LightningDataModule)
    assert [labels.tolist() for _, labels in data.train_dataloader()] == [[0, 1], [2, 3]]
    assert data.val_dataloader().dataset.given == ("val", ["cut", "normalized"])


def test_cli(tmp_path, monkeypatch):
    """LightningCLI: strings, and plugins by the path of their class."""
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI
    monkeypatch.chdir(tmp_path)
    arguments = ["--trainer.accelerator=hpu", "--trainer.max_steps=3", "--trainer.logger=false", "--trainer.limit_val_batches=0"]
    plugin = ["--trainer.plugins=fp8.lightning.pytorch.plugins.precision.HPUPrecisionPlugin", "--trainer.plugins.precision=fp8"]
    for plugins, precision in (plugin, "fp8"), (["--trainer.strategy=hpu_single", "--trainer.precision=bf16-mixed"], "bf16-mixed"):
        cli = LightningCLI(Model, args=["fit", *arguments, *plugins], save_config_kwargs={"overwrite": True})
        check(cli.model, precision)


def test_pytorch_lightning():
    """The package of that name has classes of its own."""
    other = pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.demos.boring_classes import BoringModel as OtherModel
    for precision in PRECISIONS:
        model = type("Other", (OtherModel,), {"on_train_end": Model.on_train_end, "seen": set()})()
        model.layer.register_forward_hook(lambda module, given, out, model=model: model.seen.add((out.device.type, out.dtype)))
        other.Trainer(accelerator="hpu", precision=precision, **QUIET, enable_checkpointing=False).fit(model)
        check(model, precision)
        model.seen.clear()
    with pytest.raises(ValueError, match="invalid accelerator name"):
        other.Trainer(accelerator=HPUAccelerator())


@pytest.mark.skipif(not documents.blocks(), reason="FP8_TEST_DATA has no documents")
def test_documents(tmp_path, monkeypatch):
    """Their blocks, with the root replaced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HABANA_LOGS", str(tmp_path))
    for name, value in documents.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    done = documents.run_all(replaced)
    assert {name: found for name, found in done.items() if isinstance(found, str)} == {} and len(done) == 15
    seen = {name: names["model"].seen for name, names in done.items() if hasattr(names.get("model"), "seen")}
    assert set(seen) == {"hpu_intermediate.rst:1", *(f"hpu_intermediate_fp8.txt:{i}" for i in (1, 3, 4, 5))}
    assert all(pair == ("hpu", torch.bfloat16) for pairs in seen.values() for pair in pairs)
    assert all(names["trainer"].strategy.root_device.type == "hpu" for names in done.values() if "args" not in names)


def calls_of_a_step(run):
    """Of Python's functions."""
    found = []
    for steps in (2, 12):
        profile = cProfile.Profile()
        profile.runcall(run, steps)
        found.append(sum(entry.callcount for entry in profile.getstats()))
    return (found[1] - found[0]) / 10


def test_a_step_of_fit_makes_no_more_calls_than_on_the_cpu():
    """Beyond those of a bare loop of the same steps: the precision's own, of some 1,500."""
    def fit(steps, model, **how):
        lightning.Trainer(**{**QUIET, "max_steps": steps}, enable_checkpointing=False, **how).fit(model, loader)

    def loop(steps, model, region):
        optimizer, batches = model.configure_optimizers(), iter(loader)
        for _ in range(steps):
            with region():
                loss = model.training_step(next(batches).to(model.layer.weight.device), 0)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @contextlib.contextmanager
    def in_fp8():
        with torch.autocast("hpu", torch.bfloat16, cache_enabled=False), fp8.te.fp8_autocast(True):
            yield
    loader, more = torch.utils.data.DataLoader(torch.randn(48, 32), batch_size=4), {}
    for device, region, precision in (("hpu", in_fp8, "fp8"), ("cpu", contextlib.nullcontext, "32")):
        bare, fitted = Model().to(device), Model()
        if device == "hpu":
            fp8.te.convert_modules(bare)
        loop(2, bare, region)
        fit(2, fitted, accelerator=device, precision=precision)
        more[device] = calls_of_a_step(lambda steps: fit(steps, fitted, accelerator=device, precision=precision)) - calls_of_a_step(  # noqa: B023
            lambda steps: loop(steps, bare, region))  # noqa: B023
    assert more["hpu"] - more["cpu"] <= 20 < more["cpu"]


def test_import_costs_little(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fp8.lightning")]:
        monkeypatch.delitem(sys.modules, name)
    began = time.process_time()
    importlib.import_module("fp8.lightning").HPUAccelerator  # noqa: B018: its class is made
    assert time.process_time() - began < 0.1
