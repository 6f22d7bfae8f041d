# SPDX-License-Identifier: Apache-2.0
"""GaudiTrainingArguments and GaudiConfig: what can't be done is refused by name, files and flags are Optimum's."""

import json
import os
import re
import subprocess
import sys
import warnings

import pytest

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
import documents  # noqa: E402
import torch  # noqa: E402
from conftest import BUILD, ROOT  # noqa: E402
from test_optimum import FUSED, arguments, llama, rows, trainer  # noqa: E402

from fp8 import _trainers  # noqa: E402
from fp8.optimum import GaudiConfig, GaudiSeq2SeqTrainingArguments, GaudiTrainer, GaudiTrainingArguments, _arguments  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ON_CPU = {"use_habana": False, "use_lazy_mode": False}
# Arguments, and the words of the error. The first is the name that is refused.
REFUSED = [
    (ON_CPU | {"use_lazy_mode": True}, "use_lazy_mode: found True, allowed: with use_habana=True"),
    (ON_CPU | {"use_hpu_graphs_for_training": True}, "use_hpu_graphs_for_training: found True"),
    (ON_CPU | {"gaudi_config_name": "x"}, "gaudi_config_name: found 'x', allowed: with use_habana=True"),
    (ON_CPU | {"fp8": True}, "fp8: found True, allowed: with use_habana=True"),
    (ON_CPU | {"bf16": True}, "half_precision_backend: found 'hpu_amp', allowed: .*'cpu_amp' with bf16 on the CPU"),
    ({"half_precision_backend": "cpu_amp", "bf16": True}, "half_precision_backend: found 'cpu_amp', allowed: 'hpu_amp' with use_habana"),
    ({"half_precision_backend": "apex"}, "half_precision_backend: found 'apex', allowed: 'hpu_amp', 'cpu_amp'"),
    ({"use_cpu": True}, "use_cpu: found True, allowed: False with use_habana"),
    ({"use_lazy_mode": False, "use_hpu_graphs_for_training": True}, "use_lazy_mode: found False, allowed: True with graphs, or torch_compile"),
    ({"disable_tensor_cache_hpu_graphs": True}, "disable_tensor_cache_hpu_graphs: found True, allowed: with use_hpu_graphs_for_training or"),
    ({"max_hpu_graphs": 3}, "max_hpu_graphs: found 3, allowed: with use_hpu_graphs_for_training or"),
    ({"distribution_strategy": "fsdp"}, "distribution_strategy: found 'fsdp', allowed: 'ddp', 'fast_ddp'"),
    ({"throughput_warmup_steps": -1}, "throughput_warmup_steps: found -1, allowed: 0 or more"),
    ({"context_parallel_size": 2}, "context_parallel_size: found 2, allowed: 1"),
    ({"minimize_memory": True}, "minimize_memory: found True, allowed: with fp8=True"),
    ({"attn_implementation": "flash_attention_2"}, "attn_implementation: found 'flash_attention_2', allowed: None, 'eager', 'sdpa',"),
    ({"flash_attention_fp8": True}, "flash_attention_fp8: found True, allowed: False"),
    ({"ddp_backend": "nccl"}, "ddp_backend: found 'nccl', allowed: None, 'hccl', 'gloo'"),
    ({"fp16": True}, "fp16: found True, allowed: False"), ({"fp16_full_eval": True}, "fp16_full_eval: found True, allowed: False"),
    ({"fp16_backend": "apex"}, "fp16_backend: found 'apex', allowed: 'auto'"), ({"fp16_opt_level": "O2"}, "fp16_opt_level: found 'O2'"),
    ({"tf32": True}, "tf32: found True, allowed: None, False"), ({"mp_parameters": "x"}, "mp_parameters: found 'x', allowed: ''"),
    ({"tpu_num_cores": 8}, "tpu_num_cores: found 8, allowed: None"), ({"tpu_metrics_debug": True}, "tpu_metrics_debug: found True, allowed: False")]


@pytest.mark.parametrize("given, words", REFUSED, ids=[words.split(":")[0] for _, words in REFUSED])
def test_refused(tmp_path, given, words):
    with pytest.raises(ValueError, match=f"^GaudiTrainingArguments: {words}"):
        arguments(tmp_path, **given)


def test_each_argument_with_one_value_is_refused():
    asked = set(_arguments._ONLY) | set(_arguments._HABANAS) - {"use_hpu_graphs", "use_hpu_graphs_for_inference"}
    assert {words.split(":")[0] for _, words in REFUSED} >= asked


def test_refused_with_the_trainer(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="GaudiTrainer: args: found TrainingArguments, allowed: GaudiTrainingArguments"):
        GaudiTrainer(llama(), GaudiConfig(), transformers.TrainingArguments(str(tmp_path), use_cpu=True))
    for given, words in ({"optim": "adafactor"}, "optim='adafactor'"), ({"optim_args": "a=1"}, "optim_args='a=1'"):
        with pytest.raises(ValueError, match=f"use_fused_adam: found True with .*{words}.* allowed: adamw_torch without optim_args"):
            trainer(tmp_path, **given)
    monkeypatch.setattr(torch.hpu, "get_device_name", lambda device=None: "GAUDI")
    with pytest.raises(ValueError, match="fp8: found True, allowed: False on GAUDI"):
        arguments(tmp_path, fp8=True)


LISTS = """
import json, torch, warnings
from fp8.optimum import GaudiConfig
config = GaudiConfig(use_torch_autocast=True, autocast_bf16_ops=["addmm", "relu", "no_such_op"], autocast_fp32_ops=["sin"])
def dtypes():
    x = torch.ones(2, 2, device="hpu")
    with torch.autocast("hpu", torch.bfloat16):
        return [str(f(x).dtype).partition(".")[2] for f in (torch.relu, lambda x: torch.sin(x.bfloat16()), lambda x: x @ x)]
before = dtypes()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    config.declare_autocast_bf16_fp32_ops()
print(json.dumps([before, dtypes(), [str(warning.message) for warning in told]]))
"""


@pytest.mark.parametrize("named", ["", "names.txt"])
def test_lists_of_autocast_are_the_config_s_but_where_the_environment_names_one(tmp_path, named):
    (tmp_path / "names.txt").write_text("mm\n")
    env = {**os.environ, "LOWER_LIST": named and str(tmp_path / named)}
    run = subprocess.run([sys.executable, "-c", LISTS], env=env, capture_output=True, text=True, check=True)
    before, after, told = json.loads(run.stdout)
    assert before == ["float32", "bfloat16", "bfloat16"]
    assert after == (before if named else ["bfloat16", "float32", "float32"])
    assert [text.partition(",")[0] for text in told] == ([] if named else [
        "GaudiConfig: autocast list lower (set_autocast_lists()): found 'no_such_op'"])


def test_what_changes_nothing_is_said_once(tmp_path):
    _arguments._tell.cache_clear()
    with pytest.warns(UserWarning, match="^use_lazy_mode, pipelining_fwd_bwd, cache_size_limit: accepted, and changes nothing") as said:
        for _ in range(2):
            arguments(tmp_path, pipelining_fwd_bwd=True, cache_size_limit=3)
    assert len([warning for warning in said if "changes nothing" in str(warning.message)]) == 1
    quiet = arguments(tmp_path, use_hpu_graphs=True, warmup_ratio=0.5)
    assert quiet.use_hpu_graphs_for_inference and quiet.get_warmup_steps(10) == 5


def test_flags_and_json(tmp_path):
    """As scripts read them, and as a file keeps them."""
    flags = """--use_habana --use_lazy_mode True --bf16 --half_precision_backend hpu_amp --use_hpu_graphs_for_training True --max_hpu_graphs 4
        --distribution_strategy fast_ddp --pipelining_fwd_bwd True --non_blocking_data_copy True --throughput_warmup_steps 3 --cache_size_limit 8
        --attn_implementation sdpa --dataloader_num_workers 1 --warmup_ratio 0.1""".split()
    parser = transformers.HfArgumentParser((GaudiTrainingArguments,))
    [made] = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *flags])
    assert made.device.type == "hpu" and made.cache_size_limit == 8 and made.throughput_warmup_steps == 3 and made.max_hpu_graphs == 4
    assert made.pipelining_fwd_bwd is made.use_hpu_graphs_for_training is True and made.warmup_steps == 0.1
    assert (made.optim, made.adam_epsilon, made.logging_nan_inf_filter, made.ddp_bucket_cap_mb) == ("adamw_torch", 1e-6, False, 230)
    again = GaudiTrainingArguments(**json.loads(made.to_json_string()))
    assert again.to_dict() == made.to_dict()
    torch.save(made, tmp_path / "args.bin")
    assert torch.load(tmp_path / "args.bin", weights_only=False).to_dict() == made.to_dict()


def test_published_arguments():
    """Of Optimum's pages and examples. What is not taken needs a package, the other class, or the device's own default."""
    published = json.loads((ROOT / "tests" / "configs" / "training" / "published_training.json").read_text())
    taken, left = 0, []
    for _, given in published["training_args"]:
        kind = GaudiSeq2SeqTrainingArguments if "generation_max_length" in given or "predict_with_generate" in given else GaudiTrainingArguments
        if "deepspeed" in given or "use_habana" not in given:
            continue
        made = kind(**{"output_dir": "unused", **given})
        taken += made.device.type == "hpu"
        left += [key for key in given if not hasattr(made, key)]
    assert taken > 25 and left == []
    for _, keys in published["gaudi_configs"]:
        if not keys.get("use_habana_mixed_precision"):
            assert {key: value for key, value in GaudiConfig.from_dict(keys).to_dict().items() if key in keys}.items() <= keys.items()


def cases(section):
    """JSON of C++'s own test, and what it says of it."""
    text = (ROOT / "tests" / "configs" / "training" / "gaudi_config_test.txt").read_text()
    return text.partition(f"== GaudiConfig.{section}\n")[2].partition("\n==")[0]


def test_config_keys_are_those_of_the_program(tmp_path):
    taken, problems = (re.findall(r"(\{[^}]*\})\n  = ([^\n]*)", cases(section)) for section in ("EveryKeyOfThePublishedFiles", "Problems"))
    assert len(taken) == 4 and len(problems) == 5
    for text, _ in taken:
        given, made = json.loads(text), GaudiConfig.from_dict(json.loads(text)).to_dict()
        assert {key: given[key] for key in made if key in given} == {key: made[key] for key in made if key in given}
    for text, says in problems:
        (tmp_path / "g.json").write_text(text)
        with pytest.raises(ValueError, match=re.search(r"'(\w+)'", says)[1]) as error:
            GaudiConfig.from_pretrained(tmp_path / "g.json")
        assert str(error.value).startswith(f"{tmp_path / 'g.json'}: ")
        if "did you mean" in says:
            assert says.partition("did")[2] == str(error.value).partition("did")[2]


def test_config_files(tmp_path):
    config = GaudiConfig(True, ["add", "addmm"], ["embedding"], use_fused_adam=True)
    config.save_pretrained(tmp_path / "deep")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["gaudi_config.json"]
    assert GaudiConfig.from_pretrained(tmp_path / "deep") == config != GaudiConfig()

    def program(*words):
        return subprocess.run([BUILD / "bin" / "fp8", "config", *words], capture_output=True, text=True, check=True).stdout
    assert program("check", tmp_path / "deep" / "gaudi_config.json").endswith("gaudi_config.json: ok\n")
    program("explain", tmp_path / "deep" / "gaudi_config.json", "--out", tmp_path / "lists")
    config.write_bf16_fp32_ops_to_text_files(tmp_path / "lower", tmp_path / "fp32")
    for name in "lower", "fp32":
        assert (tmp_path / name).read_bytes() == (tmp_path / "lists" / f"{name}_list.txt").read_bytes()
    FUSED.save_pretrained(tmp_path / "plain")
    args = arguments(tmp_path, gaudi_config_name=str(tmp_path / "plain"))
    assert GaudiTrainer(llama(), args=args, train_dataset=rows()).gaudi_config == FUSED
    with pytest.raises(OSError, match="gaudi_config.json"):
        GaudiConfig.from_pretrained(tmp_path)


@pytest.mark.skipif(not documents.blocks(), reason="FP8_TEST_DATA has no documents")
def test_document():
    args = documents.run(documents.blocks()["accelerating_training.txt:0"])["args"]
    assert args.device.type == "hpu" and GaudiConfig.from_pretrained(args.gaudi_config_name).use_fused_adam


def test_the_cpu_beside_hpu_is_said_once(tmp_path):
    """Without fp8-habana-shim."""
    def said(kind=transformers.TrainingArguments, **given):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            device = kind(str(tmp_path), **given).device.type
        return device, sum("takes the CPU, and hpu is there" in str(warning.message) for warning in found)
    _trainers.tell_of_the_cpu.cache_clear()
    assert said(use_cpu=True) == ("cpu", 0) and said(GaudiTrainingArguments, use_habana=True) == ("hpu", 0)
    assert said() == ("cpu", 1) and said() == ("cpu", 0)
    accelerate.state.AcceleratorState._reset_state(True)
    _trainers.tell_of_the_cpu.cache_clear()
    with pytest.warns(UserWarning, match="takes the CPU, and hpu is there: fp8.optimum.GaudiTrainer trains on hpu"):
        assert accelerate.Accelerator().device.type == "cpu"
