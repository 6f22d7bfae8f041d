# SPDX-License-Identifier: Apache-2.0
"""fp8.optimum: GaudiTrainer trains on hpu to the bits of a bare loop with the same optimizer."""

import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import types

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import torch  # noqa: E402

import fp8  # noqa: E402
from fp8.optimum import (  # noqa: E402
    GaudiConfig, GaudiSeq2SeqTrainer, GaudiSeq2SeqTrainingArguments, GaudiTrainer, GaudiTrainingArguments, utils)
from fp8.optimum.distributed import all_reduce_gradients  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
FUSED = GaudiConfig(use_fused_adam=True, use_fused_clip_norm=True)
HERE = pathlib.Path(__file__).resolve().parent
RATE, DECAY, CLIP = 1e-2, 0.1, 0.5


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def rows(count=12):
    """Of 16 tokens."""
    ids = [torch.randint(64, (16,), generator=torch.Generator().manual_seed(i)) for i in range(count)]
    return [{"input_ids": row, "labels": row} for row in ids]


def arguments(folder, kind=GaudiTrainingArguments, **given):
    plain = {"use_habana": True, "max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": RATE, "weight_decay": DECAY,
             "max_grad_norm": CLIP, "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
             "train_sampling_strategy": "sequential"}
    return kind(str(folder), **{**plain, **given})


def trainer(folder, config=FUSED, model=None, **given):
    made = GaudiTrainer(model or llama(), config, arguments(folder, **given), train_dataset=rows(), eval_dataset=rows(4))
    made.remove_callback(transformers.PrinterCallback)
    return made


def losses(made):
    return [row["loss"] for row in made.state.log_history if "loss" in row]


def same(model, other):
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), other.parameters()))


def bare_loop(precision, accumulation=1, fused=True):
    """What GaudiTrainer does, by the names of torch and of fp8 alone."""
    model = llama().to("hpu").train()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = (fp8.optim.FusedAdamW if fused else torch.optim.AdamW)(groups, lr=RATE, eps=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 6)
    recipe = fp8.te.recipe.DelayedScaling(fp8_format=fp8.te.recipe.Format.HYBRID, interval=16, reduce_amax=False)
    if precision == "fp8":
        fp8.te.convert_modules(model)
    data, found = rows(), []
    for step in range(6):
        parts = [data[(step * accumulation + i) * 2 % 12:][:2] for i in range(accumulation)]
        count = torch.tensor(sum(len(row["labels"]) - 1 for part in parts for row in part), device="hpu")
        found.append(0.0)
        for part in parts:
            ids = torch.stack([row["input_ids"] for row in part]).to("hpu")
            with torch.autocast("hpu", torch.bfloat16, enabled=precision != "f32"), fp8.te.fp8_autocast(precision == "fp8", fp8_recipe=recipe):
                loss = model(input_ids=ids, labels=ids, num_items_in_batch=count).loss
            loss.backward()
            found[-1] += loss.item()
        if fused:
            fp8.optim.FusedClipNorm(model.parameters(), CLIP).clip_norm(model.parameters())
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return found, model


PRECISIONS = {"f32": {}, "bf16": {"bf16": True}, "fp8": {"fp8": True}}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_is_the_bare_loop(tmp_path, precision):
    expected, model = bare_loop(precision)
    made = trainer(tmp_path, **PRECISIONS[precision])
    assert isinstance(made.create_optimizer(), fp8.optim.FusedAdamW)
    made.train()
    assert made.model.device.type == "hpu" and losses(made) == expected and same(made.model, model)
    assert len(expected) == 6 and not same(model, llama())
    steps = {json.loads(torch.ops.fp8.training_state(m.weight))["step"] for m in made.model.modules() if isinstance(m, torch.nn.Linear)
             } if precision == "fp8" else set()
    assert steps == ({6} if precision == "fp8" else set()) and (made.fp8_report is None) == (precision != "fp8")


def test_precisions_differ_and_agree():
    found = {precision: bare_loop(precision)[0] for precision in PRECISIONS}
    assert len({tuple(row) for row in found.values()}) == 3
    assert all(abs(a - b) < 0.05 for row in found.values() for a, b in zip(row, found["f32"]))


def test_torchs_own_optimizer_and_clipping(tmp_path):
    """Where GaudiConfig asks for nothing. bf16 by GaudiConfig is bf16 by the arguments."""
    expected, model = bare_loop("f32", fused=False)
    made = trainer(tmp_path, GaudiConfig())
    made.train()
    assert type(made.optimizer.optimizer) is torch.optim.AdamW and losses(made) == expected and same(made.model, model)
    made = trainer(tmp_path, GaudiConfig(use_fused_adam=True, use_fused_clip_norm=True, use_torch_autocast=True))
    made.train()
    assert losses(made) == bare_loop("bf16")[0] and made.args.bf16 is False


WAYS = {"accumulation": {"gradient_accumulation_steps": 2, "fp8": True}, "recomputation": {"gradient_checkpointing": True, "fp8": True},
        "graphs": {"use_hpu_graphs_for_training": True}, "graphs, bf16": {"use_hpu_graphs_for_training": True, "bf16": True},
        "graphs, fp8": {"use_hpu_graphs_for_training": True, "max_hpu_graphs": 2, "fp8": True},
        "graphs of both": {"use_hpu_graphs_for_training": True, "use_hpu_graphs_for_inference": True, "bf16": True},
        "graphs of evaluation": {"use_hpu_graphs_for_inference": True, "eval_strategy": "steps", "eval_steps": 2},
        "hints": {"pipelining_fwd_bwd": True, "non_blocking_data_copy": True, "use_lazy_mode": False, "attn_implementation": "gaudi_fused_sdpa"}}


@pytest.mark.parametrize("way", WAYS)
def test_ways_with_the_same_losses(tmp_path, way):
    given = WAYS[way]
    precision = "fp8" if given.get("fp8") else "bf16" if given.get("bf16") else "f32"
    made = trainer(tmp_path, **given)
    made.train()
    made.evaluate()
    found, expected = losses(made), bare_loop(precision, given.get("gradient_accumulation_steps", 1))[0]
    assert found == pytest.approx(expected, abs=1e-6) if way == "accumulation" else found == expected
    if given.get("use_hpu_graphs_for_training"):
        graphed = getattr(made.model, "_original_forward", made.model.forward)
        captured, replayed, eager = graphed.cache.counts()
        assert captured >= 1 and replayed >= 5 and eager == 0


@pytest.mark.parametrize("wanted", [False, True])
def test_batches_are_copied_without_blocking_where_that_is_asked_for(tmp_path, monkeypatch, wanted):
    """From pinned memory: in lazy mode such a copy waits (tests/runtime/lazy)."""
    copies, to = [], torch.Tensor.to

    def noted(tensor, *args, **kwargs):
        if tensor.device.type == "cpu" and tensor.dtype == torch.int64 and "hpu" in str(args[0] if args else kwargs.get("device")):
            copies.append((tensor.is_pinned(), kwargs.get("non_blocking", False)))
        return to(tensor, *args, **kwargs)
    made = trainer(tmp_path, non_blocking_data_copy=wanted)
    monkeypatch.setattr(torch.Tensor, "to", noted)
    made.train()
    assert len(copies) >= 6 and set(copies) == {(True, wanted)} and losses(made) == bare_loop("f32")[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpoint_resumes(tmp_path, precision):
    given = {"save_strategy": "steps", "save_steps": 3, **PRECISIONS[precision]}
    whole = trainer(tmp_path, **given)
    whole.train()
    resumed = trainer(tmp_path, **given)
    with torch.no_grad():
        for p in resumed.model.parameters():
            p.zero_()  # nothing of its own
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 6 and same(resumed.model, whole.model)


def test_evaluation_is_in_high_precision(tmp_path):
    """As the same model has it without fp8."""
    made = trainer(tmp_path, fp8=True, use_hpu_graphs_for_inference=True)
    found = made.evaluate()["eval_loss"]
    plain, data = llama().to("hpu").eval(), rows(4)
    ids = torch.stack([row["input_ids"] for row in data]).to("hpu")
    with torch.no_grad(), torch.autocast("hpu", torch.bfloat16):
        assert found == pytest.approx(plain(input_ids=ids, labels=ids).loss.item(), rel=1e-6)
    assert made.predict(rows(4)).predictions.shape == (4, 16, 64)


def test_memory_rows(tmp_path):
    made = trainer(tmp_path)
    made.model.register_buffer("ballast", torch.zeros(1 << 26, device="hpu"), persistent=False)
    metrics = made.train().metrics
    stats = torch.hpu.memory_stats()
    assert metrics["total_memory_available (GB)"] == round(stats["Limit"] / 2**30, 2)
    assert 0.25 <= metrics["memory_allocated (GB)"] <= metrics["max_memory_allocated (GB)"] == round(stats["MaxInUse"] / 2**30, 2)
    assert all("memory_allocated (GB)" in row for row in made.state.log_history) and "max_memory_allocated (GB)" in made.evaluate()
    on_cpu = trainer(tmp_path, use_habana=False, use_lazy_mode=False)
    assert "memory_allocated (GB)" not in on_cpu.train().metrics and on_cpu.model.device.type == "cpu"


class Clock:
    """In place of time.time(): a step takes ten seconds, from the third on one; evaluation 100."""

    def __init__(self, monkeypatch):
        self.now, self.steps = 1000.0, 0
        monkeypatch.setattr(time, "time", lambda: self.now)

    def run(self, made):
        step, evaluate = made.training_step, made.evaluate

        def timed(*given, **named):
            loss = step(*given, **named)
            self.now, self.steps = self.now + (10 if self.steps < 2 else 1), self.steps + 1
            return loss

        def evaluated(*given, **named):
            self.now += 100
            return evaluate(*given, **named)
        made.training_step, made.evaluate = timed, evaluated
        return made.train().metrics


SPEEDS = {"all steps": ({}, 24 + 300, 6), "without two": ({"throughput_warmup_steps": 2}, 4 + 200, 4),
          "without evaluation": ({"adjust_throughput": True}, 24, 6),
          "without both": ({"throughput_warmup_steps": 2, "adjust_throughput": True}, 4, 4),
          "more than there are": ({"throughput_warmup_steps": 9}, 24 + 300, 6)}


@pytest.mark.parametrize("way", SPEEDS)
def test_throughput(tmp_path, monkeypatch, way):
    given, seconds, steps = SPEEDS[way]
    found = Clock(monkeypatch).run(trainer(tmp_path, eval_strategy="steps", eval_steps=2, **given))
    assert found["train_runtime"] == 24 + 300
    assert found["train_steps_per_second"] == round(steps / seconds, 3) and found["train_samples_per_second"] == round(2 * steps / seconds, 3)


def test_throughput_of_evaluation(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    made = trainer(tmp_path, throughput_warmup_steps=1, per_device_eval_batch_size=1)
    step = made.prediction_step

    def timed(*given, **named):
        clock.now, clock.steps = clock.now + (50 if clock.steps == 0 else 2), clock.steps + 1
        return step(*given, **named)
    made.prediction_step = types.MethodType(lambda self, *a, **n: timed(*a, **n), made)
    found = made.evaluate()
    assert found["eval_runtime"] == 56 and found["eval_steps_per_second"] == found["eval_samples_per_second"] == 0.75  # three after 52


def test_speed_metrics(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 110.0)
    assert utils.speed_metrics("train", 10.0, 200, 100) == {
        "train_runtime": 100.0, "train_samples_per_second": 2.0, "train_steps_per_second": 1.0}
    assert utils.speed_metrics("train", 10.0, 200, 100, 400, 60.0, 10.0) == {
        "train_runtime": 100.0, "train_samples_per_second": 5.0, "train_steps_per_second": 2.5, "train_tokens_per_second": 10.0}


def test_seq2seq(tmp_path):
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0)
    args = arguments(tmp_path, GaudiSeq2SeqTrainingArguments, fp8=True, max_steps=2, predict_with_generate=True, generation_max_length=4)
    made = GaudiSeq2SeqTrainer(transformers.T5ForConditionalGeneration(config), FUSED, args, train_dataset=rows(), eval_dataset=rows(4))
    assert args.adam_epsilon == 1e-6 and made.train().global_step == 2 and made.model.device.type == "hpu" and len(made.fp8_report.converted) > 8
    assert made.predict(rows(4)).predictions.shape[0] == 4


def test_model_init(tmp_path):
    """A model that train() makes is converted before its checkpoint is loaded."""
    made = GaudiTrainer(None, FUSED, arguments(tmp_path, fp8=True), train_dataset=rows(), model_init=llama)
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    assert losses(made) == bare_loop("fp8")[0]


def test_utils(tmp_path, monkeypatch):
    import random

    import numpy
    utils.set_seed(3)
    drawn = random.random(), numpy.random.rand(), torch.rand(2, device="hpu")
    utils.set_seed(3)
    assert drawn[:2] == (random.random(), numpy.random.rand()) and torch.equal(drawn[2], torch.rand(2, device="hpu"))
    assert utils.get_device_name() == torch.hpu.get_device_name().lower()
    assert fp8.optimum.transformers.modeling_utils.adapt_transformers_to_gaudi() is None
    assert fp8.optimum.transformers.trainer.GaudiTrainer is GaudiTrainer
    assert importlib.import_module("fp8.optimum.utils.misc").HabanaProfile is utils.HabanaProfile
    monkeypatch.chdir(tmp_path)
    first = utils.HabanaProfile(active=2, name="first")
    with first, utils.HabanaProfile(active=1, name="second") as second, utils.HabanaProfile() as none:
        for profile in first, second, none:  # the second has stopped the first
            torch.ones(3, device="hpu").add(1)
            profile.step()
    [trace] = (tmp_path / "hpu_profile" / "second").iterdir()
    assert any(event.get("name") == "aten::add" for event in json.loads(trace.read_text())["traceEvents"])


def test_profiles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = trainer(tmp_path, profiling_steps=2, profiling_warmup_steps=1, profiling_steps_eval=1, per_device_eval_batch_size=1)
    made.train()
    made.evaluate()
    for name, count in ("train", 2), ("evaluation", 1):
        [trace] = (tmp_path / "hpu_profile" / name).iterdir()
        steps = {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")}
        assert len(steps) == count


def rank_of_two(rank, folder):
    """What a process of two does."""
    args = arguments(folder)

    def reduced(dtype):
        model = torch.nn.Linear(8, 4).to("hpu")
        made = [torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) for i in (0, 1) for p in model.parameters()]
        for p, grad in zip(model.parameters(), made[2 * rank:]):
            p.grad = grad.to("hpu")
        all_reduce_gradients(model, fusion_buffer_dtype=dtype)
        mean = [(a.to(dtype) / 2 + b.to(dtype) / 2).float() for a, b in zip(made[:2], made[2:])]
        assert all(torch.equal(p.grad.cpu(), m) for p, m in zip(model.parameters(), mean)), dtype
        return model
    reduced(torch.float32)
    model = reduced(torch.bfloat16)
    model.bias.grad = None
    with pytest.raises(NotImplementedError, match="bias: found a change of the set of active gradients"):
        all_reduce_gradients(model)
    found = {"world": args.world_size, "device": str(args.device)}
    for strategy in "ddp", "fast_ddp":
        made = trainer(folder, distribution_strategy=strategy, per_device_train_batch_size=1, max_steps=3)
        made.train()
        found[strategy] = [losses(made), type(made.model_wrapped).__name__]
        made.model_wrapped = None
        made.accelerator.free_memory()
    print(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def ranks(tmp_path_factory):
    """Two processes, which run beside the other tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(HERE), str(HERE.parent), *(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)])
    common = {**os.environ, "PYTHONPATH": path, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    code = "import sys, test_optimum as here; here.rank_of_two(int(sys.argv[1]), sys.argv[2])"
    made = [subprocess.Popen([sys.executable, "-c", code, str(rank), tmp_path_factory.mktemp(f"rank{rank}")], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    yield made
    for process in made:
        process.kill()


def test_two_processes(tmp_path, ranks):
    """Half a batch each: near the whole batch in one process. Gradients are the mean, in the dtype of the message."""
    alone = trainer(tmp_path, max_steps=3)
    alone.train()
    for process in ranks:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
        found = json.loads(out.splitlines()[-1])
        assert (found["world"], found["device"]) == (2, "hpu:0")
        assert found["ddp"] == [pytest.approx(losses(alone), abs=1e-5), "DistributedDataParallel"]
        assert found["fast_ddp"] == [pytest.approx(losses(alone), abs=2e-3), "LlamaForCausalLM"]
