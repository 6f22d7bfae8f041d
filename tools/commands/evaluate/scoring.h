// SPDX-License-Identifier: Apache-2.0
// The forwards of an evaluation: one model, and a reference beside it, on all samples. What a chunk adds to each sum is
// kept by itself, so that sums do not depend on the number of processes, and intervals can be made of them.
//
// Logits are made and judged in slices of at most 1 GiB of f32, however long a chunk and large a vocabulary.
#pragma once

#include "fp8/quant/model/logit_scores.h"
#include "fp8/runtime/distributed/process_group.h"
#include "fp8/tools/commands/inputs/model_input.h"

namespace fp8::commands {

using quant::ChunkScore;
using quant::score_chunks;

/// Of each text, the cosine between the means of its hidden states in the two, [B, L, H]: f64. 1 where both are 0.
std::vector<double> cosines(const at::Tensor& hidden, const at::Tensor& reference);

// The processes that score together, where a launcher started several: they meet, and find before the first forward
// that they score the same chunks by the same model in the same way.

class EvaluateRanks {
 public:
  /// This process alone.
  EvaluateRanks() = default;
  /// Waits for the others, and compares program, options and the models' files with theirs, before anything is read.
  /// On ranks above 0 the context is quiet from now on. Throws c10::Error on every rank, "[evaluate] rank 1 differs
  /// from rank 0: model: config.json: ...".
  EvaluateRanks(const EvaluateOptions& options, Context& context);

  /// Null: alone.
  runtime::distributed::ProcessGroup* group() const { return group_.get(); }
  bool first() const { return group_ == nullptr || group_->rank() == 0; }
  /// Throws as the constructor unless all have the same chunks, and weights as they are now.
  void check_same(const Samples& samples, const models::LoadedModel& model, const models::LoadedModel* reference) const;
  /// Keys for --json: how many ranks there are, and the variables that said so. None: alone.
  io::Json summary() const;

 private:
  std::shared_ptr<runtime::distributed::ProcessGroup> group_;
  std::string said_by_;
};

// How far a mean over chunks of a text may be from that over all such texts.
//
//   mean  = sum x_i / sum n_i                                            x_i: of chunk i, a sum over n_i tokens
//   error = sqrt(C / (C - 1) sum (x_i - mean n_i)^2) / sum n_i           standard error, of C chunks
//   [mean - t error, mean + t error]                                     95 %; t: Student's, of C - 1
//
// Chunks count as drawn independently; neighbours of one text are alike, so that other texts differ more.

using Interval = std::array<double, 2>;

struct Estimate {
  double mean = 0;
  std::optional<double> error = {};       ///< none of a single chunk
  std::optional<Interval> interval = {};  ///< the same
};

/// sums, counts: x_i and n_i, as many of the one as of the other.
Estimate estimate(const std::vector<double>& sums, const std::vector<double>& counts);

/// The quantile of Student's distribution that 2.5 % lie above; freedom: 1 or more.
double student_t(std::int64_t freedom);

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
