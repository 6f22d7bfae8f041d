# SPDX-License-Identifier: Apache-2.0
"""The rows of tools/pages/python.md, "Coming from ...": for the first cell of each what shows that the second one stands for it. They run
in a process that has fp8-habana-shim."""

import contextlib
import tempfile
import warnings

import torch

import fp8


def lightning_modules():
    import lightning_habana.pytorch.accelerator as old
    import lightning_habana.pytorch.plugins.precision as plugins

    import fp8.lightning.pytorch.accelerator as new
    assert old.HPUAccelerator is new.HPUAccelerator is fp8.lightning.HPUAccelerator and plugins.HPUPrecisionPlugin is fp8.lightning.HPUPrecisionPlugin


def device():
    import habana_frameworks.torch.hpu as old
    assert old is torch.hpu and old.device_count() == 1


def transformer_engine():
    import habana_frameworks.torch.hpex.experimental.transformer_engine as old
    assert old.Linear is fp8.te.Linear and old.fp8_autocast is fp8.te.fp8_autocast and old.recipe.DelayedScaling is fp8.te.recipe.DelayedScaling


def nvidias():
    layer = fp8.te.LayerNormMLP(16, 32)
    with fp8.te.fp8_autocast(True, fp8_recipe=fp8.te.recipe.nvidia.DelayedScaling()):
        layer(torch.randn(4, 16, device="hpu")).sum().backward()
    assert layer.fc1_weight.grad is not None


def nvidias_recipes():
    recipe = fp8.te.recipe.nvidia.DelayedScaling()
    assert (recipe.amax_history_len, recipe.amax_compute_algo, recipe.fp8_format.value) == (1024, "max", "HYBRID")


def nvidias_held_weights():
    with fp8.te.quantized_model_init(recipe="nvidia", preserve_high_precision_init_val=True):
        layer = fp8.te.Linear(16, 16)
    assert layer.weight.dtype == torch.float8_e4m3fn and layer.weight.get_high_precision_init_val().dtype == torch.float32


def rotation():
    assert fp8.te.rotary_position_embedding(8, 5).shape == (5, 1, 1, 8)


def toolkit():
    import habana_quantization_toolkit as old
    with tempfile.TemporaryDirectory() as folder:
        model, config = torch.nn.Linear(64, 32).to("hpu"), {"scale_method": "maxabs_pow2", "dump_stats_path": folder + "/inc"}
        old.prep_model(model, {**config, "mode": "MEASURE"})
        model(torch.randn(4, 64, device="hpu"))
        old.finish_measurements(model)
        old.prep_model(model, {**config, "mode": "QUANTIZE"})
        assert len(fp8.quant.report(model).converted) == 1


def core():
    import habana_frameworks.torch.core as old
    done = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.add_step_closure(done.append, (1,))
        old.mark_step()
    assert done == [1]


def optimums_names():
    import optimum.habana as old
    for name in ("GaudiTrainer", "GaudiSeq2SeqTrainer", "GaudiTrainingArguments", "GaudiSeq2SeqTrainingArguments", "GaudiConfig"):
        assert getattr(old, name) is getattr(fp8.optimum, name)


def optimums_helpers():
    from optimum.habana.distributed import all_reduce_gradients
    from optimum.habana.utils import set_seed
    assert all_reduce_gradients is fp8.optimum.distributed.all_reduce_gradients and set_seed is fp8.optimum.utils.set_seed


def adapted():
    from optimum.habana.transformers.modeling_utils import adapt_transformers_to_gaudi
    assert adapt_transformers_to_gaudi() is None


def trained(config=None, **given):
    """A step of a small Llama."""
    import transformers
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                                                   num_attention_heads=4, num_key_value_heads=4))
    rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 4
    args = fp8.optimum.GaudiTrainingArguments(tempfile.mkdtemp(), use_habana=True, max_steps=2, report_to=[], disable_tqdm=True, save_strategy="no",
                                              per_device_train_batch_size=2, **given)
    made = fp8.optimum.GaudiTrainer(model, config, args, train_dataset=rows, callbacks=[])
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    assert model.device.type == "hpu" and made.state.global_step == 2
    return made


def fused():
    optimizer = trained(fp8.optimum.GaudiConfig(use_fused_adam=True, use_fused_clip_norm=True)).optimizer
    assert isinstance(getattr(optimizer, "optimizer", optimizer), fp8.optim.FusedAdamW)


def in_fp8():
    assert len(trained(fp8=True).fp8_report.converted) == 8


def graphed():
    made = trained(use_hpu_graphs_for_training=True)
    assert getattr(made.model, "_original_forward", made.model.forward).cache.counts()[1] >= 1


def distribution():
    assert trained(distribution_strategy="fast_ddp").args.distribution_strategy == "fast_ddp"
    with contextlib.suppress(ValueError):
        trained(distribution_strategy="other")
        raise AssertionError


def copied():
    assert trained(non_blocking_data_copy=True).args.accelerator_config.non_blocking


def accepted():
    fp8.optimum._arguments._tell.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(pipelining_fwd_bwd=True)
    assert any("pipelining_fwd_bwd" in str(warning.message) for warning in said)


ROWS = {
    "`lightning_habana` and the modules below it": lightning_modules, "`habana_frameworks.torch.hpu`": device,
    "`habana_frameworks.torch.hpex.experimental.transformer_engine`": transformer_engine,
    "`transformer_engine.pytorch` of NVIDIA (`autocast`, `fp8_autocast`)": nvidias,
    "`transformer_engine.common.recipe` of NVIDIA": nvidias_recipes, "`quantized_model_init`, `fp8_model_init` of NVIDIA": nvidias_held_weights,
    "`RotaryPositionEmbedding(dim)(positions)` of NVIDIA": rotation,
    "`habana_quantization_toolkit` (`prep_model`, `finish_measurements`)": toolkit,
    "`habana_frameworks.torch.core` (`mark_step`, `add_step_closure`, `hpu_set_env`)": core,
    "`GaudiTrainer`, `GaudiSeq2SeqTrainer`, their arguments, `GaudiConfig`": optimums_names,
    "`optimum.habana.distributed.all_reduce_gradients`, `optimum.habana.utils`": optimums_helpers, "`adapt_transformers_to_gaudi`": adapted,
    "`use_fused_adam`, `use_fused_clip_norm`": fused, "`fp8`": in_fp8, "`use_hpu_graphs_for_training`, `_for_inference`": graphed,
    "`distribution_strategy`": distribution,
    "`non_blocking_data_copy`": copied,
    "`use_lazy_mode`, `pipelining_fwd_bwd`, `compile_*`, `flash_attention_*`": accepted}
