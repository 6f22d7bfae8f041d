// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 train`. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/training/gaudi_config.h"
#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/trainer/non_finite.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/train/callback_options.h"
#include "fp8/tools/commands/train/optimizer_settings.h"
#include "fp8/tools/commands/train/run/run_settings.h"
#include "fp8/tools/commands/train/strategy_options.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

inline constexpr const char* kDefaultRecipe = "habana";

struct TrainOptions {
  std::filesystem::path init, model, tokenizer, out, eval;
  text::DataFiles data;
  std::int64_t batch = 16, seq_len = 256, grad_accum = 1, eval_every = 0, eval_batch = 0, save_every = 0,
               keep_checkpoints = 2;
  std::int64_t throughput_warmup = 0, statistics_every = 10, logging_steps = 500;
  OptimizerSettings optimizer = {.steps = 1000};
  double epochs = 0, warmup_ratio = 0;  ///< 0: --steps, --warmup; else what those become when the data is known
  double clip = 1;
  std::string precision = "bf16-mixed", recipe;  ///< recipe: empty: kDefaultRecipe
  std::vector<std::string> keep;                 ///< empty: lm_head and embeddings
  std::string measurements;                      ///< warm start; empty: none
  kernels::FloatType save_dtype = kernels::FloatType::BF16;
  trainer::NonFinite nonfinite = trainer::NonFinite::error;
  ProfileOptions profile;
  StrategySettings ranks;
  CallbackSettings callbacks;
  RunSettings run;
  bool resume = false, overwrite = false, activation_checkpointing = false, plan = false;
  bool cpu_amp = false;  ///< bf16-mixed is autocast on the CPU
  bool eval_each_epoch = false, save_each_epoch = false, drop_last = false, whole_time = false, minimize_memory = false;
  std::filesystem::path gaudi_config, training_args;
  std::optional<configs::AutocastOps> autocast_ops;  ///< of gaudi_config; empty: the environment's, or the default
};

/// What the command does with options that passed its checks: train.cpp.
extern Late<void(const TrainOptions& options, Context& context)> train_model;

}  // namespace fp8::commands
