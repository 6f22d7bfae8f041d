// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {
namespace {

struct TrainingEstimate {
  double parameters = 0;
  double bytes = 0;
};

TrainingEstimate estimate_training(const models::CausalLM& model, const TrainOptions& options) {
  TrainingEstimate e;
  std::unordered_set<const void*> seen;  // a tied weight comes up twice
  for (const auto& p : model.parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) e.parameters += static_cast<double>(p.numel());
  }
  const double moments = options.optimizer.kind == OptimizerSettings::Kind::muon ? 1 : 2;  // Muon: one of each matrix
  const double tokens = static_cast<double>(options.batch) * static_cast<double>(options.seq_len);
  e.bytes = e.parameters * 4 * (2 + moments) + tokens * static_cast<double>(model.shape().vocab) * 4;
  return e;
}

}  // namespace

void refuse_oversized(const models::CausalLM& model, const TrainOptions& options, const std::string& file,
                      double available) {
  const TrainingEstimate e = estimate_training(model, options);
  if (e.bytes <= available) return;
  const auto text = [](double bytes) { return human_bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))); };
  throw io::Error(
      fmt::format("{}: training {:.3g} parameters with {} x {} tokens a step needs at least {} (weights, gradients, "
                  "moments and logits), "
                  "{} are free; take a smaller model, --batch or --seq-len",
                  file, e.parameters, options.batch, options.seq_len, text(e.bytes), text(available)));
}

}  // namespace fp8::commands
