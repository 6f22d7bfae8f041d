// SPDX-License-Identifier: Apache-2.0
// The training arguments of Optimum Habana and transformers, by what becomes of each (see gaudi_config.h). To add one:
// one row. A refused one has the values that change nothing here.
#include <vector>

#include "fp8/configs/training/gaudi_config.h"

namespace fp8::configs {
namespace rows {

constexpr const char* kHub = "nothing is sent over a network";
constexpr const char* kNoGraph = "operators run at once: no graph is recorded or compiled, results are the same";
constexpr const char* kText = "chunks of a text are in memory: there is nothing to load beside training";
constexpr const char* kAdamW = "AdamW of fp8 train has betas 0.9 and 0.95 and epsilon 1e-8";
constexpr const char* kLog = "log.jsonl in --out has a line for each step";
constexpr const char* kAttention = "attention has one form in fp8 train";
constexpr const char* kPython = "FSDP runs from Python, with torch's own engine on the hpu device";
constexpr const char* kOneLoss = "an evaluation gives the loss alone";
constexpr const char* kOptimizers = "fp8 train has adamw and muon";
constexpr const char* kGenerate = "fp8 generate and fp8 evaluate do that";
constexpr const char* kSweep = "of searches over settings, which are another program's";
constexpr const char* kLaunched = "the launcher's variables say it";

constexpr KeyRow kBatchArguments[] = {
    {"output_dir", text(), read, "the run's folder", "--out"},
    {"overwrite_output_dir", boolean(), read, "a run that is there is begun anew", "--overwrite"},
    {"resume_from_checkpoint", words("true, false, null"), read, "goes on from the newest checkpoint in --out",
     "--resume"},
    {"per_device_train_batch_size", integer(1, 65536), read, "chunks of a forward", "--batch"},
    {"per_gpu_train_batch_size", words("null"), refused, "per_device_train_batch_size is its name"},
    {"per_device_eval_batch_size", integer(1, 65536), read,
     "chunks of a forward of an evaluation (with eval_strategy)"},
    {"per_gpu_eval_batch_size", words("null"), refused, "per_device_eval_batch_size is its name"},
    {"auto_find_batch_size", words("false"), refused, "a batch that does not fit ends the run by name"},
    {"gradient_accumulation_steps", integer(1, 1048576), read, "forwards of a step", "--grad-accum"},
    {"max_steps", integer(1), read, "optimizer steps", "--steps"},
    {"num_train_epochs", number(), ignored, "max_steps comes first, as in transformers"},
    {"learning_rate", number(0, 100), read, "highest rate", "--lr"},
    {"weight_decay", number(0, 100), read, "of matrices and embeddings, not of norms and biases", "--weight-decay"},
    {"max_grad_norm", number(0), read, "largest norm of all gradients; 0: not clipped", "--clip"},
    {"adam_beta1", words("0.9"), refused, kAdamW},
    {"adam_beta2", words("0.95"), refused, kAdamW},
    {"adam_epsilon", words("1e-8"), refused, kAdamW},
    {"optim", words("adamw_torch, adamw_torch_fused, muon"), read, kOptimizers},
    {"optim_args", words("null"), refused, "the optimizer's settings are options"},
    {"optim_target_modules", words("null"), refused, kOptimizers},
    {"adafactor", words("false"), refused, kOptimizers},
    {"lr_scheduler_type", words("cosine, cosine_with_min_lr"), read,
     "a cosine after a linear rise is the schedule that fp8 train has"},
    {"lr_scheduler_kwargs", object().or_null(), read, "of the schedule"},
    {"lr_scheduler_kwargs.min_lr", number(0, 100), read, "rate at the end", "--min-lr"},
    {"warmup_steps", integer(0), read, "steps of the linear rise", "--warmup"},
    {"warmup_ratio", words("0"), refused, "--warmup counts steps: warmup_steps"},
    {"label_smoothing_factor", words("0"), refused, "the loss is cross entropy"},
    {"neftune_noise_alpha", words("null, 0"), refused, "embeddings get no noise"},
    {"use_liger_kernel", words("false"), refused, "kernels of another vendor's devices"},
    {"liger_kernel_config", words("null"), refused, "kernels of another vendor's devices"},
    {"average_tokens_across_devices", boolean(), ignored, "a step weighs every token alike, whichever process has it"},
    {"seed", integer(0), read, "of everything random", "--seed"},
    {"data_seed", words("null"), refused, "--seed draws the order of the data too"},
    {"full_determinism", boolean(), ignored, "the same seed gives the same bits, on any number of threads"},
    {"use_habana", boolean(), read, "true: --device hpu, the default; false: --device cpu"},
    {"use_cpu", boolean(), read, "the model runs on the CPU", "--device cpu"},
    {"no_cuda", boolean(), read, "an older name of use_cpu", "--device cpu"},
    {"use_mps_device", words("false"), refused, "another vendor's device"},
    {"bf16", boolean(), read, "autocast to bf16; fp8 comes first", "--precision bf16-mixed"},
    {"fp8", boolean(), read, "linears in fp8, the rest in bf16", "--precision fp8"},
    {"fp16", words("false"), refused, "Optimum Habana refuses it too; fp8 train has --precision 16-mixed"},
    {"fp16_full_eval", words("false"), refused, "Optimum Habana refuses it too"},
    {"fp16_backend", words("auto, null"), refused, "Optimum Habana refuses it too"},
    {"fp16_opt_level", words("O1, null"), refused, "Optimum Habana refuses it too"},
    {"tf32", words("false, null"), refused, "Optimum Habana refuses it too: a format of another vendor's devices"},
    {"tpu_num_cores", words("null"), refused, "Optimum Habana refuses it too"},
    {"tpu_metrics_debug", words("false"), refused, "Optimum Habana refuses it too"},
    {"mp_parameters", words("\"\""), refused, "Optimum Habana refuses it too"},
    {"half_precision_backend", words("hpu_amp, cpu_amp"), read,
     "autocast is that of the device that the model runs on: cpu_amp needs use_cpu"},
    {"bf16_full_eval", boolean(), ignored, "an evaluation runs in --precision's dtypes"},
    {"sdp_on_bf16", boolean(), ignored, kAttention},
    {"gradient_checkpointing", boolean(), read, "inputs of layers are kept, the rest runs again in backward",
     "--activation-checkpointing"},
    {"gradient_checkpointing_kwargs", object().or_null(), ignored, "there is one form of it"},
    {"minimize_memory", boolean(), read, "PT_HPU_FP8_MINIMIZE_MEMORY=1: fp8 weights are cast again in backward"},
};

constexpr KeyRow kGaudiArguments[] = {
    {"gaudi_config_name", text().or_null(), read, "a file of its own: fp8 config explain gaudi_config.json"},
    {"use_lazy_mode", boolean(), ignored, kNoGraph},
    {"use_hpu_graphs", boolean(), ignored, kNoGraph},
    {"use_hpu_graphs_for_training", boolean(), ignored, kNoGraph},
    {"use_hpu_graphs_for_inference", boolean(), ignored, kNoGraph},
    {"disable_tensor_cache_hpu_graphs", boolean(), ignored, kNoGraph},
    {"max_hpu_graphs", integer(1).or_null(), ignored, kNoGraph},
    {"use_compiled_autograd", boolean(), ignored, kNoGraph},
    {"compile_from_sec_iteration", boolean(), ignored, kNoGraph},
    {"compile_dynamic", boolean().or_null(), ignored, kNoGraph},
    {"use_regional_compilation", boolean().or_null(), ignored, kNoGraph},
    {"cache_size_limit", integer(1).or_null(), ignored, kNoGraph},
    {"inline_inbuilt_nn_modules", boolean().or_null(), ignored, kNoGraph},
    {"allow_unspec_int_on_nn_module", boolean().or_null(), ignored, kNoGraph},
    {"use_zero3_leaf_promotion", boolean(), ignored, "of DeepSpeed, which runs from Python"},
    {"torch_compile", boolean(), ignored, kNoGraph},
    {"torch_compile_backend", text().or_null(), ignored, kNoGraph},
    {"torch_compile_mode", text().or_null(), ignored, kNoGraph},
    {"torchdynamo", text().or_null(), ignored, kNoGraph},
    {"jit_mode_eval", boolean(), ignored, kNoGraph},
    {"pipelining_fwd_bwd", boolean(), ignored, "a hint for lazy mode: operators run at once, in the same order"},
    {"non_blocking_data_copy", boolean(), ignored, "device memory is the host's: a copy has nothing to run beside"},
    {"context_parallel_size", words("1"), refused, "a sequence is not divided among processes"},
    {"throughput_warmup_steps", integer(0), read, "first steps that do not count for tokens_per_second",
     "--throughput-warmup"},
    {"adjust_throughput", boolean(), ignored, "time of logging, evaluation and saving never counts"},
    {"ignore_eos", boolean(), ignored, kGenerate},
    {"attn_implementation", words("eager, sdpa, gaudi_fused_sdpa, null"), ignored, kAttention},
    {"flash_attention_recompute", boolean(), ignored, kAttention},
    {"flash_attention_fast_softmax", boolean(), ignored, kAttention},
    {"flash_attention_causal_mask", boolean(), ignored, kAttention},
    {"flash_attention_fp8", words("false"), refused, "attention of fp8 train stays in bf16"},
    {"profiling_steps", integer(0), read, "steps that are recorded: --profile DIR --profile-schedule"},
    {"profiling_warmup_steps", integer(0), read, "steps before them: --profile DIR --profile-schedule"},
    {"profiling_steps_eval", integer(0), ignored, "fp8 evaluate --profile records an evaluation"},
    {"profiling_warmup_steps_eval", integer(0), ignored, "fp8 evaluate --profile records an evaluation"},
    {"profiling_record_shapes", boolean(), ignored, "shapes are always recorded"},
    {"profiling_with_stack", words("false"), refused, "there is no Python stack to record"},

    {"distribution_strategy", words("ddp, fast_ddp"), read, "how gradients of several processes are joined"},
    {"ddp_backend", words("hccl, gloo, null"), ignored, "messages are Gloo's, under either name"},
    {"ddp_bucket_cap_mb", integer(1).or_null(), read, "size of a bucket of gradients"},
    {"ddp_find_unused_parameters", boolean().or_null(), read, "parameters without a gradient are waited for"},
    {"ddp_broadcast_buffers", boolean().or_null(), ignored, "models of fp8 train have no buffers that change"},
    {"ddp_timeout", integer(1), ignored, "a process that does not come ends the others, by name"},
    {"local_rank", integer(-1), ignored, kLaunched},
    {"fsdp", words("\"\", false, null").or_nothing(), refused, kPython},
    {"fsdp_config", anything(), ignored, kPython},
    {"fsdp_min_num_params", integer(0), ignored, kPython},
    {"fsdp_transformer_layer_cls_to_wrap", text().or_null(), ignored, kPython},
    {"deepspeed", words("null"), refused,
     "DeepSpeed runs from Python, on the hpu device; fp8 config check judges its JSON"},
    {"accelerator_config", anything(), ignored, "of Accelerate, which nothing here uses"},
    {"parallelism_config", anything(), ignored, "of Accelerate, which nothing here uses"},
    {"split_batches", boolean().or_null(), ignored, "of Accelerate, which nothing here uses"},
    {"dispatch_batches", boolean().or_null(), ignored, "of Accelerate, which nothing here uses"},
};

constexpr KeyRow kLogArguments[] = {
    {"do_train", boolean(), ignored, "fp8 train trains"},
    {"do_eval", boolean(), ignored, "with --eval there is an evaluation after the last step"},
    {"do_predict", words("false"), refused, kGenerate},
    {"eval_strategy", words("no, steps"), read, "steps: --eval FILE --eval-every"},
    {"evaluation_strategy", words("no, steps"), read, "an older name of eval_strategy"},
    {"eval_steps", integer(1).or_null(), read, "steps between evaluations (with eval_strategy)"},
    {"eval_delay", words("0"), refused, "the first evaluation is after --eval-every steps"},
    {"eval_on_start", words("false"), refused, "fp8 evaluate gives the loss before training"},
    {"eval_accumulation_steps", integer(1).or_null(), ignored, kOneLoss},
    {"eval_do_concat_batches", boolean(), ignored, kOneLoss},
    {"eval_use_gather_object", boolean(), ignored, kOneLoss},
    {"batch_eval_metrics", boolean(), ignored, kOneLoss},
    {"prediction_loss_only", boolean(), ignored, kOneLoss},
    {"include_inputs_for_metrics", boolean(), ignored, kOneLoss},
    {"include_for_metrics", anything(), ignored, kOneLoss},
    {"label_names", anything(), ignored, kOneLoss},
    {"past_index", integer(-1), ignored, kOneLoss},
    {"predict_with_generate", words("false"), refused, kGenerate},
    {"generation_max_length", anything(), ignored, kGenerate},
    {"generation_num_beams", anything(), ignored, kGenerate},
    {"generation_config", anything(), ignored, kGenerate},
    {"sortish_sampler", words("false"), refused, "the order is drawn from --seed"},
    {"load_best_model_at_end", words("false"), refused, "the last step's weights are written"},
    {"metric_for_best_model", text().or_null(), ignored, "the last step's weights are written"},
    {"greater_is_better", boolean().or_null(), ignored, "the last step's weights are written"},
    {"save_strategy", words("no, steps"), read, "steps: --save-every"},
    {"save_steps", integer(1), read, "steps between checkpoints (with save_strategy)"},
    {"save_total_limit", integer(1).or_null(), read, "newest checkpoints that stay", "--keep-checkpoints"},
    {"save_safetensors", words("true"), refused, "weights are written as safetensors"},
    {"save_on_each_node", words("false"), refused, "the first process writes"},
    {"save_only_model", words("false"), refused, "a checkpoint has what --resume needs"},
    {"enable_jit_checkpoint", boolean(), ignored, "a run that is stopped writes a checkpoint"},
    {"restore_callback_states_from_checkpoint", boolean(), ignored, "there are no callbacks with a state"},
    {"ignore_data_skip", words("false"), refused, "--resume goes on with the next chunk"},
    {"logging_steps", integer(1), read, "steps between rows of device memory in log.jsonl; losses are in every row",
     "--logging-steps"},
    {"logging_dir", text().or_null(), ignored, kLog},
    {"logging_strategy", words("no, steps, epoch"), ignored, kLog},
    {"logging_first_step", boolean(), ignored, kLog},
    {"logging_nan_inf_filter", boolean(), ignored, "log.jsonl has what was; --non-finite says what comes of it"},
    {"log_level", text(), ignored, "--quiet leaves out warnings"},
    {"log_level_replica", text(), ignored, "--quiet leaves out warnings"},
    {"log_on_each_node", boolean(), ignored, "the first process writes"},
    {"disable_tqdm", boolean().or_null(), ignored, "a progress bar is drawn on a terminal only"},
    {"report_to", anything(), ignored, kLog},
    {"project", text(), ignored, kLog},
    {"trackio_space_id", text().or_null(), ignored, kLog},
    {"run_name", text().or_null(), ignored, "the run is called as its folder"},
    {"include_tokens_per_second", anything(), ignored, kLog},
    {"include_num_input_tokens_seen", anything(), ignored, kLog},
    {"skip_memory_metrics", boolean(), ignored, "--logging-steps adds rows of memory"},
    {"debug", anything(), ignored, "a loss that is not finite ends the run, with its batch: --non-finite"},
    {"torch_empty_cache_steps", integer(1).or_null(), ignored, "device memory is the host's"},
    {"dataloader_drop_last", words("false"), refused, "the last batch of an epoch has what is left over"},
    {"dataloader_num_workers", integer(0), ignored, kText},
    {"dataloader_prefetch_factor", integer(1).or_null(), ignored, kText},
    {"dataloader_pin_memory", boolean(), ignored, kText},
    {"dataloader_persistent_workers", boolean(), ignored, kText},
    {"remove_unused_columns", boolean(), ignored, "a text has no columns"},
    {"group_by_length", boolean(), ignored, "all chunks have one length"},
    {"length_column_name", text(), ignored, "all chunks have one length"},
    {"train_sampling_strategy", words("random"), refused, "the order is drawn from --seed"},
    {"use_ipex", boolean(), ignored, "the kernels are fp8's own"},
    {"use_legacy_prediction_loop", boolean(), ignored, kOneLoss},
    {"ray_scope", text().or_null(), ignored, kSweep},
    {"push_to_hub", words("false"), refused, kHub},
    {"hub_model_id", text().or_null(), ignored, kHub},
    {"hub_strategy", text(), ignored, kHub},
    {"hub_token", text().or_null(), ignored, kHub},
    {"hub_private_repo", boolean().or_null(), ignored, kHub},
    {"hub_always_push", boolean(), ignored, kHub},
    {"hub_revision", text().or_null(), ignored, kHub},
    {"push_to_hub_model_id", text().or_null(), ignored, kHub},
    {"push_to_hub_organization", text().or_null(), ignored, kHub},
    {"push_to_hub_token", text().or_null(), ignored, kHub},
    {"_n_gpu", integer(0), ignored, kLaunched},
    {"$schema", text(), ignored, "for editors"},
};

}  // namespace rows

KeyRows training_argument_keys() {
  static const std::vector<KeyRow> all = [] {
    std::vector<KeyRow> table;
    for (const KeyRows part :
         {KeyRows(rows::kBatchArguments), KeyRows(rows::kGaudiArguments), KeyRows(rows::kLogArguments)})
      table.insert(table.end(), part.begin(), part.end());
    return table;
  }();
  return all;
}

}  // namespace fp8::configs
