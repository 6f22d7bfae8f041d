// SPDX-License-Identifier: Apache-2.0
// How well logits predict a text and how far they are from other logits, per chunk so that sums do not depend on the
// batch.
//
//   nll   = sum over positions 1..L-1 of -log softmax(logits[position - 1])[ids[position]]     f32 log-softmax, f64 sum
//   kl    = sum over all L positions of KL(softmax(reference) || softmax(logits))              f64, nats
//   agree = positions where both have the same largest logit
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/options/model_options.h"

namespace fp8::commands {

struct ChunkScore {
  double nll = 0, kl = 0;
  std::int64_t agree = 0;
};

/// logits [B, L, V] of any float dtype, ids [B, L] (or L + 1: the last row predicts one too) int64 in [0, V) or
/// undefined (then nll is 0), reference [B, L, V] or undefined (then kl and agree are 0); all on the CPU. Returns B
/// scores; NaN or infinite logits give a NaN or infinite nll.
std::vector<ChunkScore> score_chunks(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference);

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

}  // namespace fp8::commands
