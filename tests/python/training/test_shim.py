# SPDX-License-Identifier: Apache-2.0
"""fp8-habana-shim: programs for Habana's packages run as they stand; transformers.Trainer and accelerate train on hpu with it."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import documents  # noqa: E402



@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The shim as pip installs it."""
    pytest.importorskip("setuptools")
    source, place = tmp_path_factory.mktemp("source") / "shim", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "tools" / "python" / "habana_shim", source)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", place, source],
                   check=True)
    return place


def python(*arguments, places=(), cwd=None, **environment):
    path = os.pathsep.join(os.path.abspath(place) for place in (*places, *os.environ.get("PYTHONPATH", "").split(os.pathsep)) if str(place))
    return subprocess.run([sys.executable, *map(str, arguments)], env={**os.environ, "PYTHONPATH": path, **environment}, cwd=cwd, capture_output=True,
                          text=True, check=False)


NAMES = """
import warnings
import habana_frameworks.torch as ht
import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.distributed.hccl as hccl
import habana_frameworks.torch.hpu as hthpu
import habana_frameworks.torch.hpu.graphs as htgraphs
import habana_frameworks.torch.utils.experimental as htexp
import habana_frameworks.torch.hpex.experimental.transformer_engine as te
import habana_quantization_toolkit as hqt
import fp8
from habana_frameworks.torch.hpex.experimental.transformer_engine import recipe
from habana_frameworks.torch.hpex.experimental.transformer_engine.recipe import DelayedScaling
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import FusedAdamW
from habana_frameworks.torch.utils.internal import is_lazy
from lightning_habana import HPUAccelerator
from lightning_habana.pytorch.strategies import SingleHPUStrategy
from optimum.habana import GaudiConfig, GaudiSeq2SeqTrainer, GaudiTrainer, GaudiTrainingArguments
from optimum.habana.distributed import all_reduce_gradients
from optimum.habana.transformers.modeling_utils import adapt_transformers_to_gaudi
from optimum.habana.transformers.trainer import GaudiTrainer as OfTrainer
from optimum.habana.utils import HabanaProfile, set_seed
import optimum.habana.utils.misc, optimum.other
assert hthpu is torch.hpu is ht.hpu and htgraphs is torch.hpu.graphs and te.Linear is fp8.te.Linear
assert recipe.DelayedScaling is DelayedScaling is fp8.te.recipe.DelayedScaling and HPUAccelerator is fp8.lightning.HPUAccelerator
assert FusedAdamW is fp8.optim.FusedAdamW and FusedClipNorm is fp8.optim.FusedClipNorm
assert GaudiTrainer is fp8.optimum.GaudiTrainer is OfTrainer and all_reduce_gradients is fp8.optimum.distributed.all_reduce_gradients
assert optimum.habana.utils.misc.HabanaProfile is HabanaProfile and adapt_transformers_to_gaudi() is None and optimum.other.here
assert htexp._get_device_type() == getattr(htexp.synDeviceType, "synDevice" + torch.hpu.get_device_name().capitalize())
assert not is_lazy() and hccl.initialize_distributed_hpu() == (1, 0, 0)
assert "mulation" in ht.__doc__ and "mulation" in htcore.__doc__ and "mulation" in hqt.__doc__
done = []
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = torch.nn.Linear(64, 32).to("hpu")
    assert htcore.hpu_set_env(model) is model and htcore.hpu_initialize() is None
    htcore.mark_step()
    htcore.add_step_closure(done.append, (1,))
    htcore.mark_step(sync=True)
assert done == [1] and len(said) == 1 and "there is no lazy mode" in str(said[0].message) and said[0].filename == __file__
try:
    htcore.nothing
except AttributeError as error:
    assert "allowed: mark_step" in str(error)
x = torch.randn(4, 64, device="hpu")
before = model(x)
for mode in ("MEASURE", "QUANTIZE"):
    with open("config.json", "w") as file:
        file.write('{"mode": "%s", "scale_method": "maxabs_pow2", "dump_stats_path": "stats/inc"}' % mode)
    os.environ["QUANT_CONFIG"] = "config.json"
    hqt.prep_model(model)
    after = model(x)
    hqt.finish_measurements(model)
assert 0 < (after - before).norm() / before.norm() < 0.1
del os.environ["QUANT_CONFIG"]
"""


@pytest.mark.parametrize("module", ["habana_frameworks.torch", "lightning_habana", "habana_quantization_toolkit", "optimum.habana"])
def test_beside_the_real_one(site, tmp_path, module):
    (tmp_path / "habana_torch_plugin-1.20.dist-info").mkdir()
    (tmp_path / "habana_torch_plugin-1.20.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: habana-torch-plugin\nVersion: 1.20\n")
    done = python("-c", f"import {module}", places=[site, tmp_path], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "ImportError: fp8-habana-shim emulates habana-torch-plugin, and found the real one: uninstall one of the two" in done.stderr


CLOSURES = """
import torch
import habana_frameworks.torch.core as htcore
seen, x = [], torch.ones(4, device="hpu")
for _ in range(3):
    y = x.mul(2)
    htcore.add_step_closure(lambda y=y: seen.append(y.sum().item()))
    before = len(seen)
    htcore.mark_step()
    assert len(seen) == before + 1, (before, seen)
assert seen == [8.0] * 3 and torch.classes.fp8_graphs.Metrics.is_lazy()
"""


def test_step_closures_wait_for_the_step_in_lazy_mode(site):
    done = python("-c", CLOSURES, places=[site], PT_HPU_LAZY_MODE="1")
    assert done.returncode == 0, done.stderr


INTEGERS = """
import torch, transformers
assert transformers.utils.import_utils.is_torch_hpu_available()
x, first = torch.tensor([[2**40 + 1, -2**50]], device="hpu"), torch.tensor([[0, 1]], device="hpu")
for found in (torch.gather(x, 1, first), x.gather(1, first), torch.gather(input=x, dim=-1, index=first, sparse_grad=False),
              torch.take_along_dim(x, first, 1), x.take_along_dim(first, 1)):
    assert torch.equal(found.cpu(), x.cpu())
"""


def test_integers_of_64_bits_keep_their_values(site):
    done = python("-c", INTEGERS, places=[site])
    assert done.returncode == 0, done.stderr


# Way: arguments of TrainingArguments or of Accelerator, and what a linear layer gives.
TRAINER = {
    "nothing": ({}, "float32"), "bf16": ({"bf16": True}, "bfloat16"), "fp16": ({"fp16": True}, "float16"),
    "bf16, recomputation": ({"bf16": True, "gradient_checkpointing": True}, "bfloat16"),
    "bf16, accumulation": ({"bf16": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}, "bfloat16"),
    "bf16, torch_compile": ({"bf16": True, "torch_compile": True}, "bfloat16"),
    "GaudiTrainer, fp8": ({"use_habana": True, "fp8": True}, "bfloat16"), "use_cpu": ({"use_cpu": True}, "cpu float32"),
}
ACCELERATE = {"no": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "ValueError: Using `fp8` precision requires"}
TRAINING = """
import json, os, sys, tempfile, traceback
sys.path.append(sys.argv[2])
import accelerate, documents, torch, transformers
from accelerate.state import AcceleratorState
trainer, mixed = json.loads(sys.argv[1])
def watched(model, layer):
    seen = set()
    layer.register_forward_hook(lambda module, given, out: seen.add(f"{out.device.type} {out.dtype}".replace("torch.", "")))
    return model, seen
def attempt(run):
    AcceleratorState._reset_state(True)
    try:
        return sorted(run())
    except Exception as error:
        return [f"{type(error).__name__}: {error}", traceback.format_exc()]
def with_trainer(arguments):
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
                                      num_key_value_heads=4)
    model = transformers.LlamaForCausalLM(config)
    model, seen = watched(model, model.model.layers[0].mlp.up_proj)
    data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
    with tempfile.TemporaryDirectory() as folder:
        from optimum.habana import GaudiTrainer, GaudiTrainingArguments
        ours = "use_habana" in arguments
        kinds = (GaudiTrainingArguments, GaudiTrainer) if ours else (transformers.TrainingArguments, transformers.Trainer)
        given = kinds[0](output_dir=folder, max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy="no",
                                               logging_strategy="no", disable_tqdm=True, **arguments)
        kinds[1](model=model, args=given, train_dataset=data).train()
    return seen
def with_accelerate(precision):
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU())
    model, seen = watched(model, model[0])
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(2):
        accelerator.backward(model(torch.randn(4, 32, device=accelerator.device)).sum())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return seen
answer = {"names": attempt(names)}
os.environ.update(documents.ENVIRONMENT)
answer["documents"] = {name: found if isinstance(found, str) else "" for name, found in documents.run_all().items()}
answer["trainer"] = {way: attempt(lambda: with_trainer(arguments)) for way, arguments in trainer.items()}
answer["accelerate"] = {way: attempt(lambda: with_accelerate(way)) for way in mixed}
import coming_from
answer["rows"] = {row: attempt(lambda: run() or []) for row, run in coming_from.ROWS.items()}
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def answer(site, tmp_path_factory):
    """Of one process that has the shim: what it found."""
    pytest.importorskip("lightning")
    place = tmp_path_factory.mktemp("run")
    (place / "elsewhere" / "optimum").mkdir(parents=True)  # another part of that namespace
    (place / "elsewhere" / "optimum" / "other.py").write_text("here = True\n")
    (place / "run.py").write_text("def names():\n" + textwrap.indent(NAMES, "    ") + "    return []\n" + TRAINING)
    done = python(place / "run.py", json.dumps([{way: arguments for way, (arguments, _) in TRAINER.items()}, list(ACCELERATE)]),
                  pathlib.Path(documents.__file__).parent, places=[place / "elsewhere", site], cwd=place, HABANA_LOGS=str(place))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_names(answer):
    assert answer["names"] == []


@pytest.mark.parametrize("way", TRAINER)
def test_transformers_trainer(answer, way):
    expected = TRAINER[way][1]
    assert answer["trainer"][way] == [expected if " " in expected else f"hpu {expected}"]


@pytest.mark.parametrize("way", ACCELERATE)
def test_accelerate(answer, way):
    found, expected = answer["accelerate"][way], ACCELERATE[way]
    assert found == [f"hpu {expected}"] or (":" in expected and found[0].startswith(expected))


@pytest.mark.skipif(not documents.blocks(), reason="FP8_TEST_DATA has no documents")
def test_documents(answer):
    """Their blocks, as they stand."""
    assert set(answer["documents"]) == set(documents.blocks()) - set(documents.LEFT_OUT) - set(documents.SEVERAL) and not any(answer["documents"].values())


def test_rows_of_the_page(answer):
    """Each row of its tables for who comes from another package runs."""
    page = (ROOT / "tools" / "pages" / "python.md").read_text().split("\n## Coming from ", 1)[1].split("\n## Where ", 1)[0]
    rows = [line.strip("| ").split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    assert rows == list(answer["rows"]) and len(rows) >= 17
    assert {row: found for row, found in answer["rows"].items() if found} == {}
