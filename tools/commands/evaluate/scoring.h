// SPDX-License-Identifier: Apache-2.0
// The forwards of an evaluation: one model, and a reference beside it, on all samples. What a chunk adds to each sum is
// kept by itself, so that sums do not depend on the number of processes, and intervals can be made of them.
//
// Logits are made and judged in slices of at most 1 GiB of f32, however long a chunk and large a vocabulary.
#pragma once
#include <vector>

#include "fp8/tools/commands/evaluate/confidence.h"
#include "fp8/tools/commands/evaluate/score.h"

namespace fp8::commands {

/// One model's.
struct Evaluation {
  models::Task task = models::Task::causal;
  std::int64_t chunks = 0, tokens = 0;  ///< tokens: rows of logits
  double seconds = 0, forward_seconds = 0;
  // Of each chunk: sums over its rows or predicted tokens, and how many these are.
  std::vector<double> nll = {}, reference_nll = {}, kl = {}, agree = {}, cosine = {}, rows = {}, predicted = {};

  /// Logits are of the next token, so that texts have a probability.
  bool predicts() const { return task == models::Task::causal || task == models::Task::answer; }
};

/// The models, samples and processes of an evaluation.
struct Scoring {
  const EvaluateOptions& options;
  const Context& context;
  const std::filesystem::path& folder;  ///< the model's
  models::LoadedModel& model;
  models::LoadedModel* reference;  ///< may be null
  const Samples& samples;
  EnvironmentConfig& quant_config;
  runtime::distributed::ProcessGroup* group;  ///< null: this process alone
};

/// Throws io::Error for logits that are not finite, and what forwards throw.
Evaluation evaluate_on(const Scoring& scoring);

}  // namespace fp8::commands
