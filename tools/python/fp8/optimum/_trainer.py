# SPDX-License-Identifier: Apache-2.0
"""GaudiTrainer: transformers' Trainer, which trains on hpu as its GaudiTrainingArguments and GaudiConfig say."""

import copy
import functools
import time
import warnings
from typing import Any

import torch
import transformers

from fp8 import optim, quant, te
from fp8._trainers import expect
from fp8.optimum import utils
from fp8.optimum._arguments import GaudiConfig, GaudiTrainingArguments
from fp8.te import _attached

Metrics = dict[str, Any]
_ADAMW = (transformers.training_args.OptimizerNames.ADAMW_TORCH, transformers.training_args.OptimizerNames.ADAMW_TORCH_FUSED)


class _Watch:
    """Of a loop: its profile, and when its first steps, which do not count for the throughput, were over. batches: of a step."""

    def __init__(self, args: GaudiTrainingArguments, name: str, active: int, warmup: int, batches: int = 1) -> None:
        self.args, self.batches, self.seen, self.since, self.aside = args, batches, 0, time.time(), 0.0
        self.profile = utils.HabanaProfile(warmup, active, args.profiling_record_shapes, args.profiling_with_stack, name)

    def begin_batch(self) -> None:
        if self.seen and self.seen % self.batches == 0:
            self.profile.step()
        if self.seen == self.args.throughput_warmup_steps * self.batches:
            self.since, self.aside = time.time(), 0.0
        self.seen += 1

    def rates(self, split: str, steps: int, samples: float, samples_of_a_step: int) -> Metrics:
        """What stands in place of the rates from the beginning."""
        warmup = self.args.throughput_warmup_steps
        if steps <= warmup:
            if warmup:
                warnings.warn(f"throughput_warmup_steps: found {warmup} with {steps} steps: all of them count", stacklevel=3)
            return {}
        aside = self.aside if self.args.adjust_throughput else 0.0
        found = utils.speed_metrics(split, self.since + aside, samples - warmup * samples_of_a_step, steps - warmup)
        return {name: value for name, value in found.items() if (warmup or aside) and not name.endswith("_runtime")}


class _OnHpu:
    """What stands before a Trainer of transformers."""
    args: GaudiTrainingArguments
    fp8_recipe: te.recipe.Argument = te.recipe.DelayedScaling(fp8_format=te.recipe.Format.HYBRID, interval=16, reduce_amax=False)
    fp8_report: quant.Report | None = None
    _rates: Metrics = {}
    _graphed: torch.nn.Module | None = None

    def __init__(self, model: Any = None, gaudi_config: GaudiConfig | None = None, args: GaudiTrainingArguments | None = None,
                 *positional: Any, **named: Any) -> None:
        args = GaudiTrainingArguments(output_dir="tmp_trainer", use_habana=True) if args is None else args
        expect(isinstance(args, GaudiTrainingArguments), type(self).__name__, "args", type(args).__name__, "GaudiTrainingArguments")
        if gaudi_config is None and args.gaudi_config_name:
            gaudi_config = GaudiConfig.from_pretrained(args.gaudi_config_name)
        self.gaudi_config: GaudiConfig = copy.deepcopy(gaudi_config or GaudiConfig()) if args.use_habana else GaudiConfig()  # it is the device's
        if args.bf16 or args.fp8 or self.gaudi_config.use_torch_autocast:
            self.gaudi_config.declare_autocast_bf16_fp32_ops()
        fits = not self.gaudi_config.use_fused_adam or args.optim in _ADAMW and not args.optim_args
        expect(fits, "GaudiConfig", "use_fused_adam", f"True with optim={args.optim.value!r}, optim_args={args.optim_args!r}",
               "adamw_torch without optim_args")
        super().__init__(model, args, *positional, **named)

    def _build_accelerator_args(self, **kwargs: Any) -> Any:
        found = super()._build_accelerator_args(**kwargs)  # type: ignore[misc]
        return {**found, "mixed_precision": "bf16"} if self.args.fp8 or self.gaudi_config.use_torch_autocast else found

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if self.args.distribution_strategy == "fast_ddp":  # no DistributedDataParallel
            self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        super()._move_model_to_device(model, device)  # type: ignore[misc]
        if self.args.attn_implementation is not None:
            model.set_attn_implementation("eager" if self.args.attn_implementation == "eager" else "sdpa")
        self._convert(model)

    def _convert(self, model: Any) -> None:
        if self.args.fp8 and not _attached.within(model):
            self.fp8_report = te.convert_modules(model, minimize_memory=bool(self.args.minimize_memory))

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        graphs = self.args.use_hpu_graphs_for_training if training else self.args.use_hpu_graphs_for_inference
        if graphs and self._graphed is not self.model:
            self._graphed = torch.hpu.ModuleCacher(self.args.max_hpu_graphs or 10)(self.model)
        return super()._wrap_model(model, training, dataloader)  # type: ignore[misc]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.gaudi_config.use_fused_adam and self.optimizer_cls_and_kwargs is None:
            options = {"lr": self.args.learning_rate, "betas": (self.args.adam_beta1, self.args.adam_beta2), "eps": self.args.adam_epsilon}
            self.__dict__["optimizer_cls_and_kwargs"] = optim.FusedAdamW, options
        return super().create_optimizer(model)  # type: ignore[misc]

    def compute_loss_context_manager(self) -> Any:
        stack = super().compute_loss_context_manager()  # type: ignore[misc]
        if self.args.fp8 and self.model.training:
            stack.enter_context(te.fp8_autocast(True, fp8_recipe=self.fp8_recipe))
        return stack

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        self._watch.begin_batch()
        loss = super().training_step(model, *args, **kwargs)  # type: ignore[misc]
        if self.args.distribution_strategy == "fast_ddp" and self.args.world_size > 1 and self.accelerator.sync_gradients:
            utils.all_reduce_gradients(model)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        if not self.gaudi_config.use_fused_clip_norm:
            return super()._clip_grad_norm(model)  # type: ignore[misc]
        parameters = list(model.parameters())
        return optim.FusedClipNorm(parameters, self.args.max_grad_norm).clip_norm(parameters)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        given = self.args
        if given.fp8 and (given.fsdp or given.deepspeed):  # which have left it on the host
            self._convert(self.model.to(given.device))
        self._watch = _Watch(given, "train", given.profiling_steps, given.profiling_warmup_steps, given.gradient_accumulation_steps)
        with self._watch.profile:
            return super()._inner_training_loop(*args, **kwargs)  # type: ignore[misc]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        began = time.time()
        super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]
        self._watch.aside += time.time() - began

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        steps = self.state.global_step - self._initial_global_step
        samples = num_train_samples * steps / max(self.state.max_steps, 1)
        self._rates = self._watch.rates("train", steps, samples, self.get_total_train_batch_size(self.args))
        return super()._finalize_training(trial, num_train_samples, start_time)  # type: ignore[misc]

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._evaluation = watch = _Watch(self.args, "evaluation", self.args.profiling_steps_eval, self.args.profiling_warmup_steps_eval)
        with watch.profile:
            found = super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]
        batch = self.args.eval_batch_size * self.args.world_size
        self._rates = watch.rates(kwargs.get("metric_key_prefix", "eval"), watch.seen, found.num_samples, batch)
        return found

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        self._evaluation.begin_batch()
        return super().prediction_step(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().predict(*args, **kwargs)  # type: ignore[misc]
        found.metrics.update(self._rates)
        return found

    def log(self, logs: Metrics, *args: Any, **kwargs: Any) -> None:
        if self._rates.keys() <= logs.keys():
            logs.update(self._rates)
        if self.args.use_habana:
            logs.update(utils.get_hpu_memory_stats(self.args.device))
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class GaudiTrainer(_OnHpu, transformers.Trainer):
    """transformers.Trainer with a gaudi_config as its second argument. fp8_recipe: of fp8=True, Optimum's unless it is set; fp8_report: which
    modules train in fp8."""


class GaudiSeq2SeqTrainer(_OnHpu, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer with a gaudi_config as its second argument."""
