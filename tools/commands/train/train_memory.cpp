// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {
namespace {

struct TrainingEstimate {
  double parameters = 0;
  double bytes = 0;
};

TrainingEstimate estimate_training(const models::LlamaConfig& config, const TrainOptions& options) {
  const double hidden = static_cast<double>(config.hidden_size), inner = static_cast<double>(config.intermediate_size);
  const double vocabulary = static_cast<double>(config.vocab_size),
               heads = static_cast<double>(config.num_attention_heads);
  const double kv = static_cast<double>(config.num_key_value_heads), depth = static_cast<double>(config.head_dim);
  const double experts = static_cast<double>(std::max<std::int64_t>(config.num_local_experts, 1));
  const double attention = 2 * hidden * heads * depth + 2 * hidden * kv * depth, mlp = 3 * hidden * inner * experts;
  TrainingEstimate e;
  e.parameters = vocabulary * hidden * (config.tie_word_embeddings ? 1 : 2) + hidden +
                 static_cast<double>(config.num_hidden_layers) * (attention + mlp + 2 * hidden);
  const double moments = options.optimizer.kind == OptimizerSettings::Kind::muon ? 1 : 2;  // Muon: one of each matrix
  const double tokens = static_cast<double>(options.batch) * static_cast<double>(options.seq_len);
  e.bytes = e.parameters * 4 * (2 + moments) + tokens * vocabulary * 4;
  return e;
}

}  // namespace

void refuse_oversized(const models::LlamaConfig& config, const TrainOptions& options, const std::string& file,
                      double available) {
  const TrainingEstimate e = estimate_training(config, options);
  if (e.bytes <= available) return;
  const auto text = [](double bytes) { return human_bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))); };
  throw io::Error(
      fmt::format("{}: training {:.3g} parameters with {} x {} tokens a step needs at least {} (weights, gradients, "
                  "moments and logits), "
                  "{} are free; take a smaller model, --batch or --seq-len",
                  file, e.parameters, options.batch, options.seq_len, text(e.bytes), text(available)));
}

}  // namespace fp8::commands
