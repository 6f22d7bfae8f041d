// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 train`, and OUT/train.json: what a run was started with, so that a resumed one is the same run.
// Texts, configs and recipes are the same where their fingerprints are, wherever they lie; the number of steps alone
// may change.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/train/train_task.h"

namespace fp8::commands {

inline constexpr const char* kDefaultRecipe = "habana";

struct TrainOptions {
  std::filesystem::path init, model, tokenizer, data, out, eval;
  std::int64_t batch = 16, seq_len = 256, grad_accum = 1, eval_every = 0, eval_batch = 0, save_every = 0,
               keep_checkpoints = 2;
  std::int64_t throughput_warmup = 0, statistics_every = 10;
  OptimizerSettings optimizer;
  double clip = 1;
  std::string precision = "bf16-mixed", recipe;  ///< recipe: empty: kDefaultRecipe
  std::vector<std::string> keep;                 ///< empty: lm_head and embeddings
  std::string measurements;                      ///< warm start; empty: none
  kernels::FloatType save_dtype = kernels::FloatType::BF16;
  trainer::NonFinite nonfinite = trainer::NonFinite::error;
  bool resume = false, overwrite = false, activation_checkpointing = false, plan = false;
};

/// Declares them.
void add_train_options(Options& options, std::shared_ptr<TrainOptions> values);

/// Throws UsageError for options that exclude or need each other.
void check_train_options(const TrainOptions& options, const Context& context);

/// What decides about the numbers of a run. more: keys that the options alone do not tell (the fingerprints of texts
/// and config, the recipe as it was read).
io::Json train_settings(const TrainOptions& options, const Context& context, const io::Json& more);

/// What a resumed run does about its steps.
struct ResumedSteps {
  std::int64_t done = 0;  ///< of the newest checkpoint
  std::string warning;    ///< where the number of steps is another one than before: what the learning rate does
};

/// May the run that `written` (read from `file`) tells of go on as `asked`? Throws io::Error naming the first key that
/// differs, and for fewer steps than are done.
ResumedSteps check_resume(const std::filesystem::path& file, const io::Json& written, const io::Json& asked,
                          const TrainOptions& options);

}  // namespace fp8::commands
